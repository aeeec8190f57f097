"""`clarion up` and `config`, `topics`, `stats`: a broker from the shell."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.integration.shell import (
    ANYWHERE,
    DEADLINE_S,
    Shell,
    one_line,
    read_line,
    run,
    running,
    stop,
)


def test_up_says_in_one_line_that_it_is_ready_and_sigterm_drains_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running("up", "--data", str(data), "--listen", ANYWHERE) as broker:
        line = read_line(broker).decode()
        assert line.startswith("clarion: ready on tcp://127.0.0.1:")
        assert line.endswith(f" (data in {data}, pid {broker.pid})\n")
        code, out, err = stop(broker)
    assert (code, out) == (0, b"")
    logs = [json.loads(line) for line in err.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(logs[0])
    assert logs[0]["message"] == "ready"
    assert "stopped" in logs[-1]["message"]


@pytest.mark.parametrize(
    "service", [("up", "--listen", ANYWHERE), ("publish", "--from-http", "--listen", "127.0.0.1:0")]
)
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_service_whose_ready_line_reaches_nobody_goes_on(
    tmp_path: Path, service: tuple[str, ...], how: tuple[str, ...]
) -> None:
    with running(*service, *how, CLARION_DATA=str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert any(b"standard output takes nothing (Broken pipe); going on" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_up_tells_programs_where_it_listens(tmp_path: Path) -> None:
    listen = ("--listen-publishers", ANYWHERE, "--listen-subscribers", ANYWHERE)
    with running("up", "--data", str(tmp_path), *listen, "--json") as broker:
        ready = json.loads(read_line(broker))
        assert ready.keys() == {"event", "urls", "data", "pid"}
        assert (ready["event"], ready["data"], ready["pid"]) == ("ready", str(tmp_path), broker.pid)
        assert len(ready["urls"]) == 2
        assert stop(broker, signal.SIGINT)[0] == 0


def test_settings_come_from_file_environment_and_flags_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text("max_topics = 1\nmax_get_msgs = 1\nmax_batch_bytes = 2000\n")
    flags = ("--config", str(file), "--set", "max_topics=3")
    done = run("config", "--config", str(file), "--json", CLARION_MAX_GET_MSGS="2")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    told = {row["name"]: (row["value"], row["source"]) for row in rows}
    assert told["max_topics"] == (1, "file")
    assert told["max_get_msgs"] == (2, "environment")
    where = ("--data", str(tmp_path / "data"), "--listen", ANYWHERE)
    with running("up", *flags, *where, "--json") as broker:
        url = json.loads(read_line(broker))["urls"][0]
        client = Shell(broker, url, tmp_path)
        for topic in ("a", "b", "c"):
            client.ok("topics", "create", topic, "--retention", "keep")
        refused = client.run("topics", "create", "d", "--retention", "keep")
        assert refused.returncode == 1
        assert "max_topics" in one_line(refused)
        large = client.run("put", "a", stdin=b"x" * 3000)
        assert large.returncode == 1
        assert "2000 bytes" in one_line(large)


def test_a_data_folder_in_use_is_refused(shell: Shell) -> None:
    done = run("up", "--data", str(shell.data), "--listen", ANYWHERE)
    assert done.returncode == 8
    assert f"process {shell.broker.pid}" in one_line(done)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clarion.db").write_bytes(b"garbage" * 100)
    done = run("up", "--data", str(tmp_path), "--listen", ANYWHERE)
    assert done.returncode == 8
    assert "not a Clarion store" in one_line(done)


def test_an_address_in_use_is_refused(shell: Shell, tmp_path: Path) -> None:
    done = run("up", "--data", str(tmp_path / "other"), "--listen", shell.url, "--json")
    assert done.returncode == 1
    told = json.loads(one_line(done))
    assert told["error"]["code"] == "BadSettings"
    assert shell.url in told["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "max_topics=many"), "max_topics is a whole number, not 'many'"),
        (("--set", "max_topics=0"), "max_topics is at least 1, not 0"),
        (("--set", "max_topic=5"), "there is no setting 'max_topic'; did you mean max_topics?"),
        (("--data", ""), "data is a path, not ''"),
        (("--log-level", "loud"), "log_level is debug, info, warning or error, not 'loud'"),
        (("--listen", "nowhere"), "'nowhere' is not an address to listen on"),
        (("--listen", "tcp://127.0.0.1:80x"), "'tcp://127.0.0.1:80x' is not an address to listen on"),
        (("--listen", "tcp://no-such-interface:5590"), "cannot listen on tcp://no-such-interface:5590"),
        (("--config", "missing.toml"), "cannot read missing.toml: No such file or directory"),
    ],
)
def test_a_bad_setting_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run("up", "--data", str(tmp_path / "data"), "--listen", ANYWHERE, *arguments)
    assert done.returncode == 1
    line = one_line(done)
    assert line.startswith("clarion: ")
    assert words in line


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text("max_topics = 5\nmax_tropics = 5\n")
    done = run("up", "--data", str(tmp_path), "--config", str(file))
    assert done.returncode == 1
    assert "max_tropics" in one_line(done)


def test_a_usage_error_has_its_own_code() -> None:
    assert run("put").returncode == 2
    assert run("get", "alerts", "--as", "").returncode == 2
    assert run("up", "--set", "max_topics").returncode == 2
    assert run("nonsense").returncode == 2


def test_topics_and_stats_are_tables_and_json(shell: Shell) -> None:
    assert shell.ok("topics", "--json") == b""
    assert shell.ok("topics").startswith(b"no topics yet")
    shell.ok("subscribe", "[red]alerts[/red]", "--as", "reader")
    shell.ok("put", "[red]alerts[/red]", "--lines", stdin=b"1\n2\n")
    topic = shell.json("topics")
    assert (topic["topic"], topic["retention"], topic["messages"]) == ("[red]alerts[/red]", "until-read", 2)
    assert topic["subscriptions"][0]["lag"] == 2
    table = shell.ok("topics").decode()
    assert "[red]alerts[/red]" in table
    assert "reader (2)" in table
    assert shell.json("stats")["messages_stored"] == 2
    assert b"messages stored" in shell.ok("stats")


def test_stats_can_be_watched(shell: Shell) -> None:
    with running("stats", "--watch", "0.1", "--json", CLARION_URL=shell.url) as watching:
        assert all("commits" in json.loads(read_line(watching)) for _ in range(2))
        assert stop(watching, signal.SIGINT)[0] == 130
    with running("stats", "--watch", "0.1", CLARION_URL=shell.url) as watching:  # into a pipe, too, table by table
        tables = 0
        while tables < 2:
            line = read_line(watching)
            assert line, "it ended"
            tables += line.startswith(b"since the start")
        assert stop(watching, signal.SIGINT)[0] == 130


def test_the_toml_of_config_starts_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_bytes(run("config", "--toml", CLARION_DATA=str(tmp_path / "data")).stdout)
    with running("up", "--config", str(file), "--listen", ANYWHERE, "--json") as broker:
        assert json.loads(read_line(broker))["data"] == str(tmp_path / "data")
