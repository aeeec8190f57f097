"""`clarion links`, `up --name --link` and what `subscribe` says of linked brokers, with real brokers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.conftest import StartBroker
from tests.integration.shell import ANYWHERE, DEADLINE_S, Shell, one_line, read_line, run, running, stop
from tests.integration.waiting import eventually

from clarion import Admin, Publisher, Subscriber


def _shell(broker: BrokerProcess) -> Shell:
    return Shell(broker.process, broker.url, broker.data)


def _chain(start_broker: StartBroker, *names: str) -> list[BrokerProcess]:
    """Start brokers, each linked with the one before."""
    found: list[BrokerProcess] = []
    for name in names:
        links = [found[-1].url] if found else []
        found.append(start_broker(name, name=name, links=links))
    return found


def _reaches(broker: BrokerProcess, *names: str) -> None:
    """Wait until a broker reaches these, and no others."""
    with Admin(broker.url) as admin:
        eventually(
            lambda: {one.name for one in admin.links().brokers if one.reachable} == set(names), f"{names} are reached"
        )


def _subscribed(shell: Shell, topic: str, is_so: Callable[[Any], bool]) -> Any:
    """Subscribe, again where the machine was too slow for others to confirm in time."""

    def told() -> Any:
        found = shell.json("subscribe", topic, "--as", "reader")
        return found if is_so(found) else None

    return eventually(told, f"others confirm {topic}")


def test_a_broker_without_links_says_how_to_make_one(shell: Shell) -> None:
    assert b"clarion up --name NAME --link URL" in shell.ok("links")
    told = shell.json("links")
    assert (told["links"], told["brokers"]) == ([], [])
    assert told["name"] == f"broker-{told['broker']}"
    assert shell.ok("subscribe", "alerts", "--as", "reader") == b"reader subscribes to alerts, start new\n"
    told = shell.json("subscribe", "alerts", "--as", "reader")
    assert (told["new"], told["origins"], told["unconfirmed"]) == (False, [], [])
    assert shell.run("links", "forget", "nobody", "--yes").returncode == 1


def test_links_are_made_by_options_and_messages_cross_two_of_them(tmp_path: Path) -> None:
    urls = [free_url() for _ in "abc"]
    said = [
        ("up", "--name", name, "--data", str(tmp_path / name), "--listen", url, *links)
        for name, url, links in (
            ("a", urls[0], ()),
            ("b", urls[1], ("--link", urls[0])),
            ("c", urls[2], ("--link", urls[1])),
        )
    ]
    with running(*said[0]) as a, running(*said[1]) as b, running(*said[2]) as c:
        for process in (a, b, c):
            assert b"ready" in read_line(process)
        at_a, at_c = Shell(a, urls[0], tmp_path / "a"), Shell(c, urls[2], tmp_path / "c")
        with Admin(urls[2]) as admin:
            eventually(lambda: all(one.reachable for one in admin.links().brokers[:2]), "both are reached")
        told = _subscribed(at_c, "alerts", lambda found: len(found["origins"]) == 2)
        assert told["origins"] == [{"broker": "a", "offset": 0}, {"broker": "b", "offset": 0}]
        at_a.ok("put", "alerts", "hello")
        assert at_c.ok("get", "alerts", "--as", "reader", "--max", "1", "--wait", f"{DEADLINE_S}s") == b"hello\n"
        words = at_c.ok("subscribe", "alerts", "--as", "reader").decode().splitlines()
        assert words[1].startswith("confirmed by a (from offset ")
        links = at_c.json("links")
        assert [(one["name"], one["url"], one["state"]) for one in links["links"]] == [("b", urls[1], "up")]
        brokers = {one["name"]: one for one in links["brokers"]}
        assert (brokers["a"]["via"], brokers["a"]["received_messages"], brokers["b"]["received_messages"]) == (
            "b",
            1,
            0,
        )
        table = at_a.ok("links").decode()
        assert "this broker is a (" in table
        assert "calls here" in table
        assert "link up: b (" in stop(a)[2].decode()


def test_a_pattern_is_confirmed_without_an_offset(start_broker: StartBroker) -> None:
    _, b = _chain(start_broker, "a", "b")
    _reaches(b, "a")
    told = _subscribed(_shell(b), "alerts/#", lambda found: bool(found["origins"]))
    assert told["origins"] == [{"broker": "a", "offset": None}]
    assert _shell(b).ok("subscribe", "alerts/#", "--as", "reader").endswith(b"\nconfirmed by a\n")


def test_a_broker_that_does_not_confirm_is_told_and_the_offset_is_the_origins(start_broker: StartBroker) -> None:
    a, b = _chain(start_broker, "a", "b")
    _reaches(b, "a")
    with Subscriber(b.url, "reader") as reader, Publisher(a.url) as publisher, Admin(a.url) as admin:
        admin.configure_topic("kept", retention="keep")
        publisher.put_many("kept", [b"1", b"2", b"3"]).result(DEADLINE_S)
        eventually(lambda: reader.subscribe("kept").origins == {"a": 3}, "a confirms")
        assert reader.subscribe("kept").unconfirmed == ()
        a.send(signal.SIGSTOP)
        told = reader.subscribe("alerts")
        assert told, "it is new"
        assert (told.origins, told.unconfirmed) == ({}, ("a",))
        assert _shell(b).ok("subscribe", "alerts", "--as", "reader").endswith(b"\nnot yet by a\n")
        a.send(signal.SIGCONT)
        eventually(lambda: reader.subscribe("alerts").origins == {"a": 0}, "a confirms")
        assert not reader.subscribe("alerts"), "it was there"


def test_what_may_not_come_in_is_not_confirmed(start_broker: StartBroker) -> None:
    p = start_broker("p", name="p")
    q = start_broker("q", name="q", links=[{"url": p.url, "topics_in": ["open/#"]}])
    _reaches(q, "p")
    words = _shell(q).ok("subscribe", "secret/x", "--as", "reader")
    assert words.endswith(b"\nnot by p: topics_in of the link with p lets nothing of secret/x in\n")
    assert list(_shell(q).json("subscribe", "secret/x", "--as", "reader")["reasons"]) == ["p"]


def test_a_broker_that_will_not_come_back_is_forgotten(start_broker: StartBroker) -> None:
    a, _, c = _chain(start_broker, "a", "b", "c")
    _reaches(a, "b", "c")
    _subscribed(_shell(c), "alerts", lambda found: not found["unconfirmed"])
    shell = _shell(a)
    linked = shell.run("links", "forget", "c", "--yes")
    assert linked.returncode == 1
    assert "c is linked with this broker right now" in one_line(linked)
    c.stop()
    _reaches(a, "b")
    shell.ok("put", "alerts", "hello")
    (told,) = [one for one in shell.json("links")["brokers"] if one["name"] == "c"]
    assert (told["lag_topics"], told["lag_messages"], told["confirmed"]) == (1, 1, False)
    unsure = shell.run("links", "forget", "c")
    assert unsure.returncode == 2
    assert "c has not confirmed 1 message of 1 topic. Forget it" in one_line(unsure)
    assert shell.json("links", "forget", "c", "--yes") == {"broker": "c", "forgotten": True}
    eventually(lambda: [one["name"] for one in shell.json("links")["brokers"]] == ["b"], "c is forgotten")
    assert shell.run("put", "alerts", "hello").returncode == 5, "nobody subscribes any more"
    assert "nothing is kept for a broker called c" in one_line(shell.run("links", "forget", "c", "--yes"))


def test_a_link_that_cannot_be_says_why_where_it_is_seen_and_once_in_the_log(start_broker: StartBroker) -> None:
    a = start_broker("a", name="same")
    b = start_broker("b", name="same", links=[a.url, free_url()])
    shell = _shell(b)

    def refused() -> Any:
        same, nobody = shell.json("links")["links"]
        return (same, nobody) if same["state"] == "refused" else None

    same, nobody = eventually(refused, "the link is refused")
    assert "both brokers are called same: give one of them another name (--name)" in same["reason"]
    assert (nobody["state"], nobody["for_s"]) == ("down", None)
    assert "nobody has answered there yet" in shell.ok("links").decode()
    with Admin(a.url) as admin:
        eventually(lambda: admin.links().counters.get("links_refused", 0) >= 3, "it is tried again")
    for broker in (a, b):
        assert broker.said().count("WARNING no link with ") == 1


def test_links_can_be_watched(start_broker: StartBroker) -> None:
    a, b = _chain(start_broker, "a", "b")
    _reaches(a, "b")
    with running("links", "--watch", "0.1", "--json", CLARION_URL=a.url) as watching:
        assert all(json.loads(read_line(watching))["name"] == "a" for _ in range(2))
        assert stop(watching, signal.SIGINT)[0] == 130
    with running("links", "--watch", "0.1", CLARION_URL=b.url) as watching:
        tables = 0
        while tables < 2:
            line = read_line(watching)
            assert line, "it ended"
            tables += line.startswith(b"this broker is b")
        assert stop(watching, signal.SIGINT)[0] == 130


def test_a_cache_follows_a_topic_and_refuses_puts(start_broker: StartBroker) -> None:
    a = start_broker("a", name="a", default_retention="keep")
    _shell(a).ok("topics", "create", "alerts", "--retention", "keep")
    _shell(a).ok("put", "alerts", "early")
    cache = start_broker("cache", name="cache", links=[a.url], follow="alerts,news/#")
    shell = _shell(cache)
    eventually(lambda: shell.run("browse", "alerts").stdout, "it has what was put before it was there")
    shell.ok("subscribe", "alerts", "--as", "reader", "--start", "earliest")
    assert shell.ok("get", "alerts", "--as", "reader") == b"early\n"
    done = shell.run("put", "alerts", "late")
    assert done.returncode == 1
    assert "read-only cache" in one_line(done)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--link", "nowhere"), "links: 'nowhere' is not an address to connect to"),
        (("--link", "tcp://127.0.0.1:1", "--link", "tcp://127.0.0.1:1"), "links has tcp://127.0.0.1:1 more than once"),
        (("--name", "a b"), "name: a broker's name has printable characters, and no space, comma or slash"),
        (("--name", "x" * 65), "name: a broker's name has 1 to 64 characters, not 65"),
        (("--set", "accept_links=some"), "accept_links is any, listed or none, not 'some'"),
        (("--set", "follow=#/a"), "follow: in '#/a' the # is not at the end"),
    ],
)
def test_a_link_or_name_that_cannot_be_is_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = run("up", "--data", str(tmp_path / "data"), "--listen", ANYWHERE, *arguments)
    assert done.returncode == 1
    assert words in one_line(done)


def test_links_of_options_are_added_to_the_tables_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    table, of_set, said, of_environment = (free_url() for _ in range(4))
    file.write_text(f'[[links]]\nurl = "{table}"\nname = "p"\ntopics_in = ["open/#"]\n')
    started = running(
        "up", "--config", str(file), "--data", str(tmp_path / "data"), "--listen", ANYWHERE, "--json",
        "--link", said, "--link", table, "--set", f"links={of_set}", CLARION_LINKS=of_environment,
    )  # fmt: skip
    with started as broker:
        (url,) = json.loads(read_line(broker))["urls"]
        links = {one["url"]: one["name"] for one in Shell(broker, url, tmp_path).json("links")["links"]}
    assert links == {table: "p", of_environment: "", of_set: "", said: ""}


def test_a_table_with_an_unknown_key_says_what_was_likely_meant(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text('[[links]]\nurl = "tcp://127.0.0.1:1"\ntopic_in = ["a"]\n')
    done = run("config", "--config", str(file))
    assert done.returncode == 1
    assert f"a link has no setting 'topic_in'; did you mean topics_in? (in {file})" in one_line(done)


def test_the_toml_of_config_has_the_links_and_starts_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    links = {"CLARION_LINKS": "tcp://127.0.0.1:1", "CLARION_NAME": "lbl", "CLARION_DATA": str(tmp_path / "data")}
    file.write_bytes(run("config", "--toml", **links).stdout)
    rows = [json.loads(line) for line in run("config", "--config", str(file), "--json").stdout.splitlines()]
    (row,) = [row for row in rows if row["name"] == "links"]
    assert [link["url"] for link in row["value"]] == ["tcp://127.0.0.1:1"]
    with running("up", "--config", str(file), "--listen", ANYWHERE, "--json") as broker:
        (url,) = json.loads(read_line(broker))["urls"]
        told = Shell(broker, url, tmp_path).json("links")
        assert (told["name"], told["links"][0]["url"]) == ("lbl", "tcp://127.0.0.1:1")
