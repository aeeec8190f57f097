"""What holds for every command: one shape of JSON, durations and sizes in one language, no number that breaks it.

The commands are found by walking the command line itself, so that one that is added later is asked, too.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.integration.broker_process import free_url
from tests.integration.shell import running

from clarion import Admin, Publisher, Subscriber
from clarion.cli.main import app
from clarion.model.errors import Closed

Captured = pytest.CaptureFixture[str]
_ROOT = typer.main.get_command(app)
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
_FLOW = str(Path(__file__).parents[2] / "examples" / "microscopy" / "microscopy.yaml")

# Commands that list things, an object each; every other prints one object.
_LISTS = {"get", "browse", "config", "topics list", "subscriptions list", "dead list", "feeds list"}
# How each command is run, in this order; {name} is a file of the test's own.
_RUNS: list[tuple[str, list[str]]] = [
    ("config", []),
    ("stats", []),
    ("links list", []),
    ("trace", ["00000001000000010ca3e5eb43c60000"]),
    ("topics create", ["alerts", "--retention", "keep"]),
    ("topics configure", ["alerts", "--max-age", "7d"]),
    ("topics describe", ["alerts"]),
    ("subscribe", ["alerts", "--as", "reader"]),
    ("subscriptions list", []),
    ("put", ["alerts", "hello"]),
    ("browse", ["alerts"]),
    ("topics list", []),
    ("get", ["alerts", "--as", "reader"]),
    ("subscriptions seek", ["alerts", "reader", "--to", "earliest", "--yes"]),
    ("subscriptions delete", ["alerts", "reader", "--yes"]),
    ("topics purge", ["alerts", "--yes"]),
    ("dead list", ["jobs"]),
    ("dead replay", ["jobs"]),
    ("dead drop", ["jobs", "--yes"]),
    ("unsubscribe", ["jobs", "--as", "workers", "--yes"]),
    ("topics delete", ["alerts", "--yes"]),
    ("state get", ["leader"]),
    ("request", ["questions", "what?", "--wait", "60s"]),
    ("outbox show", ["{outbox}"]),
    ("outbox resend", ["{outbox}"]),
    ("outbox drop", ["{outbox}"]),
    ("simulate publisher", ["--seconds", "2s", "--warm-up", "0s", "--trace-out", "{tuner.csv}"]),
    ("simulate trace", ["ztf", "--hours", "1m", "--out", "{arrivals.csv}"]),
    ("simulate plot-trace", ["{tuner.csv}", "--out", "{tuner.png}"]),
    ("plan", [_FLOW, "--budget", "5"]),
    ("simulate workflow", [_FLOW, "--consumers", "A=2,B=2,C=2,D=3", "--jobs", "500"]),
    ("simulate feeds", ["--nodes", "64", "--channels", "500", "--subscriptions", "10000", "--churn-per-hour", "0.1"]),
    ("workflow check", [_FLOW, "--no-handlers"]),
    ("feeds subscribe", ["http://127.0.0.1:1/", "--page", "--as", "reader"]),
    ("feeds list", []),
    ("feeds show", ["http://127.0.0.1:1/"]),
    ("feeds unsubscribe", ["http://127.0.0.1:1/", "--as", "reader"]),
    ("feeds forget", ["http://127.0.0.1:1/", "--yes"]),
    ("feeds plan", ["{channels.csv}", "--nodes", "16"]),
]
# What takes long, or never ends, or needs Spark, a workflow or a node that runs: the tests of each look at its JSON.
_ELSEWHERE: dict[str, list[str]] = {
    "up": [],
    "links forget": ["somebody", "--yes"],
    "demo": [],
    "publish": ["--from-http"],
    "reproduce publisher": ["--out", "{reproduced}"],
    "reproduce workflow": ["--out", "{reproduced}"],
    "reproduce feeds": ["--out", "{reproduced}"],
    "reproduce tracking": ["--out", "{reproduced}"],
    "workflow run": [_FLOW],
    "workflow status": [],
    "workflow advise": [_FLOW],
    "workflow keda-scaler": [],
    "worker": [_FLOW, "--task", "A"],
    "jobs submit": ["microscopy-1"],
    "jobs status": ["some-id"],
    "jobs result": ["some-id"],
    "jobs cancel": ["some-id"],
    "jobs list": [],
    "feeds node": [],
    "feeds run": [],
    "feeds nodes": [],
    "feeds watch": [],
    "feeds notify": [],
    "feeds chat": ["--jid", "corona@example.org", "--password-file", "{password}"],
    "feeds opml import": ["{feeds.opml}"],
    "feeds opml export": [],
    "pipeline archive": ["alerts", "--to", "{lake}"],
    "pipeline compact": ["{lake}"],
    "pipeline replay": ["{lake}"],
    "pipeline rates": ["alerts"],
    "pipeline latency": ["alerts"],
    "pipeline channels": [],
    "pipeline audit": ["{ids.txt}", "--histories", "{histories}"],
    "pipeline sweep": [],
    "tracking export": ["--out", "{exports}"],
}
_ARGUMENTS = {**dict(_RUNS), **_ELSEWHERE}


def _leaves(command: Any = _ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, below in command.commands.items():
        yield from _leaves(below, (*path, name))


_COMMANDS = dict(_leaves())


def _options(name: str) -> list[Any]:
    """Return a command's options that take a value."""
    found = [one for one in _COMMANDS[name].params if one.param_type_name == "option"]
    return [one for one in found if not getattr(one, "is_flag", False) and one.name != "help"]


def _named(arguments: list[str], folder: Path) -> list[str]:
    return [str(folder / one[1:-1]) if one.startswith("{") else one for one in arguments]


def _run(name: str, *arguments: str) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        app([*name.split(), *arguments], prog_name="clarion")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    raise AssertionError("a command ends by SystemExit")


def _error(capfd: Captured) -> dict[str, Any]:
    """Return the error on standard error, the only thing that was said."""
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    told = json.loads(line)
    assert told.keys() == {"error"}
    assert told["error"].keys() == {"code", "message", "exit_code"}
    return dict(told["error"])


def test_every_command_is_known_here() -> None:
    assert set(_COMMANDS) == set(_ARGUMENTS)


@pytest.fixture
def world(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A broker with a dead letter and somebody who answers, and an outbox; the value is the folder of files."""
    monkeypatch.setenv("CLARION_URL", url)
    with Subscriber(url, "workers", ack="explicit") as worker, Publisher(url) as publisher:
        worker.subscribe("jobs", shared=True, max_attempts=1)
        publisher.put("jobs", b"poison").result(60)
        worker.get("jobs", wait_s=60)[0].nack(reason="broken")
        worker.flush_acks()
    with Publisher(url, outbox=str(tmp_path / "outbox")):
        pass
    channels = "channel,subscribers,size,update_interval_s\nhttps://example.org/feed,3,2000,3600\n"
    (tmp_path / "channels.csv").write_text(channels, encoding="utf-8")
    server = Subscriber(url, "server", ack="explicit")
    server.subscribe("questions", shared=True)

    def answer() -> None:
        with Publisher(url) as publisher, suppress(Closed):
            for question in server.stream("questions"):
                publisher.reply(question, b"that").result(60)
                question.ack()

    answering = threading.Thread(target=answer)
    answering.start()
    yield tmp_path
    server.close()
    answering.join(60)


def test_with_json_a_command_prints_objects_one_a_line_and_nothing_else(world: Path, capfd: Captured) -> None:
    for name, arguments in _RUNS:
        code = _run(name, *_named(arguments, world), "--json")
        out, err = capfd.readouterr()
        told = [json.loads(line) for line in out.splitlines()]
        is_nothing = name == "state get" or told[0].get("state") in ("never seen", "unknown")
        assert (name, code, err) == (name, 3 if is_nothing else 0, "")
        assert all(isinstance(one, dict) for one in told), name
        assert (name, len(told) >= 1 if name in _LISTS else len(told) == 1) == (name, True)


def test_a_thing_has_the_same_names_wherever_it_is_told(world: Path, capfd: Captured) -> None:
    def told(name: str, *arguments: str) -> dict[str, Any]:
        assert _run(name, *arguments, "--json") == 0
        return dict(json.loads(capfd.readouterr().out.splitlines()[-1]))

    told("subscribe", "same", "--as", "reader")
    put = told("put", "same", "hello")
    assert put.keys() == told("put", "same", "later", "--deliver-at", "+1h").keys()
    browsed, got = told("browse", "same"), told("get", "same", "--as", "reader")
    assert browsed.keys() | {"attempt"} == got.keys()
    described = told("topics describe", "same")
    listed = next(json.loads(line) for line in _lines("topics list", capfd) if '"same"' in line)
    assert listed.keys() <= described.keys()
    (of_list,), (of_description,) = listed["subscriptions"], described["subscriptions"]
    assert of_list.keys() - {"shared"} <= of_description.keys()
    assert of_description.keys() == told("subscriptions list", "same").keys()


def _lines(name: str, capfd: Captured) -> list[str]:
    assert _run(name, "--json") == 0
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize("name", _COMMANDS)
def test_a_wrong_command_line_is_json_where_json_is_asked_for(name: str, capfd: Captured) -> None:
    assert _run(name, "--json", "--no-such-option") == 2
    told = _error(capfd)
    assert (told["code"], told["exit_code"]) == ("UsageError", 2)
    assert "--no-such-option" in told["message"]


@pytest.mark.parametrize("words", [("nonsense",), ("dead", "nonsense"), ("topics", "nonsense"), ("get",)])
def test_so_is_a_command_that_is_none_or_lacks_something(words: tuple[str, ...], capfd: Captured) -> None:
    assert _run(words[0], *words[1:], "--json") == 2
    assert _error(capfd)["code"] == "UsageError"


def _asks(name: str, option: str) -> bool:
    return name in dict(_RUNS) and any(option in one.opts for one in _options(name))


@pytest.mark.parametrize("name", [name for name in _COMMANDS if _asks(name, "--url")])
def test_an_address_that_is_none_is_told_the_same_way_everywhere(name: str, capfd: Captured) -> None:
    assert _run(name, *_ARGUMENTS[name], "--url", "tcp://127.0.0.1:80x", "--json") == 1
    told = _error(capfd)
    assert (told["code"], told["exit_code"]) == ("BadSettings", 1)
    assert "'tcp://127.0.0.1:80x' is not an address to connect to" in told["message"]


def test_where_no_broker_answers_that_is_said_the_same_way_everywhere(capfd: Captured, tmp_path: Path) -> None:
    nowhere = f"ipc://{tmp_path}/nobody"
    for name in [name for name in _COMMANDS if _asks(name, "--timeout")]:
        assert _run(name, *_ARGUMENTS[name], "--url", nowhere, "--timeout", "50ms", "--json") == 4
        told = _error(capfd)
        assert (name, told["code"], told["exit_code"]) == (name, "Unreachable", 4)
        assert nowhere in told["message"]


@pytest.mark.parametrize("command", [("stats",), ("put", "alerts", "x"), ("get", "alerts", "--as", "reader")])
def test_a_wait_for_a_broker_is_told_meanwhile(command: tuple[str, ...]) -> None:
    nowhere = free_url()
    told = f"no answer from {nowhere} yet; trying for 10m in all"
    for more, line in (
        ((), f"clarion: {told}"),
        (("--json",), json.dumps({"note": {"message": told}}, separators=(",", ":"))),
    ):
        with running(*command, *more, "--url", nowhere, "--timeout", "10m") as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline().decode() == line + "\n"


# Numbers.

_TEXTS: dict[str, list[tuple[str, float]]] = {
    "TIME": [("5s", 5), ("500ms", 0.5), ("1h30m", 5400), ("2", 2), ("1.5s", 1.5)],
    "SIZE": [("64KB", 64_000), ("64KiB", 65_536), ("0.5MB", 500_000), ("70000", 70_000)],
}
_ODD = ["0", "-1", "1e9", "nan", "inf", "-inf", "1" + "0" * 30, "9" * 5000, "", " ", "0.5", "1e-300", "5s", "²"]


def _parse(name: str, *words: str) -> dict[str, Any]:
    arguments = [*_ARGUMENTS[name], *words]
    context = _COMMANDS[name].make_context(name, arguments, parent=_ROOT.make_context("clarion", ["up"]))
    return dict(context.params)


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_that_is_a_duration_or_a_size_takes_the_same_texts(name: str) -> None:
    for option in _options(name):
        metavar = option.metavar or ""
        assert not {"SECONDS", "BYTES", "MS"} & set(metavar.split("|")), f"{name} {option.opts[0]} has its own unit"
        for kind in {"TIME", "SIZE"} & set(metavar.split("|")):
            if option.opts[0] in ("--deliver-at", "--hours"):  # a point in time; hours where no unit is given
                continue
            for text, value in _TEXTS[kind]:
                assert _parse(name, option.opts[0], text)[option.name] == value, f"{name} {option.opts[0]} {text}"


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_text_for_an_option_is_a_traceback(name: str) -> None:
    for option in _options(name):
        for text in _ODD:
            try:
                _parse(name, option.opts[0], text)
            except _USAGE_ERROR:
                continue


@pytest.mark.parametrize(
    "words",
    [
        "browse numbers --from 999999999999999",
        "browse numbers --last 999999999999999",
        "browse numbers --max 999999999999999",
        "get numbers --as reader --max 999999999999999",
        "get numbers --as other --subscribe --start 999999999999999",
        "get numbers --as later --subscribe --start 9999-12-31T23:59:59Z",
        "get numbers --as earlier --subscribe --start 0001-01-01T00:00:00Z",
        "dead list numbers --max 999999999999999",
        "dead drop numbers --offset 999999999999999 --yes",
        "dead replay numbers --offset 999999999999999",
        "topics purge numbers --below 999999999999999 --yes",
        "topics create numbers --max-age 36525d --ttl 36525d --max-size 9000TB --max-batch 9000TB",
        "topics configure numbers --max-subscriptions 999999999999999",
        "subscribe numbers --as w1 --shared --lease 36525d --max-attempts 999999999999999 --expires 36525d",
        "subscribe numbers --as w2 --shared --lease 0.001ms",
        "subscriptions seek numbers reader --to 999999999999999 --yes",
        "put numbers x --ttl 36525d",
        "put numbers x --ttl 0.000001ms",
        "put numbers x --deliver-at +36525d",
        "put numbers x --deliver-at 9999-12-31T23:59:59Z",
        "put numbers x --deliver-at 0001-01-01T00:00:00Z",
        "put numbers x --timeout 36525d",
        "stats --timeout 36525d",
        "get numbers --as reader --wait 0.000001ms",
    ],
)
def test_large_and_small_numbers_are_done_or_refused(
    words: str, url: str, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    monkeypatch.setenv("CLARION_URL", url)
    with Admin(url) as admin:
        admin.configure_topic("numbers", retention="keep")
        admin.subscribe("numbers", "reader", "earliest")
    name = next(name for name in _COMMANDS if words.startswith(name + " "))
    code = _run(name, *words.removeprefix(name).split(), "--json")
    _, err = capfd.readouterr()
    assert code in (0, 3) or (code in (1, 2) and "error" in json.loads(err)), f"{code}: {err}"
