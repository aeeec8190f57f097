"""The end of a program, by Ctrl-C or while forgotten clients are finished: nothing is raised, nobody is forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from clarion.model.errors import TimedOut
from clarion.session import endings
from clarion.session.endings import Works, finish_all


class Finishing(Works):
    """Notes how long it was given, and then is interrupted or out of time."""

    def __init__(self, error: BaseException, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.error = error
        self.loop = loop
        self.given_s: list[float] = []

    def end(self, timeout_s: float) -> asyncio.Future[None] | None:  # type: ignore[override]
        self.given_s.append(timeout_s)
        raise self.error


@pytest.fixture(autouse=True)
def _nothing_else_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "_open", {})
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.fixture
def idle_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_after_ctrl_c_no_client_is_waited_for_and_each_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Finishing(KeyboardInterrupt()), Finishing(TimedOut("3 messages were not sent"))
    endings._open.update({first: "Publisher at a", second: "Publisher at b"})
    finish_all()
    assert first.given_s[0] > 0
    assert second.given_s == [0.0]
    said = "clarion: the program ended without closing its Publisher at b: 3 messages were not sent\n"
    assert capsys.readouterr().err == said
    assert not endings._open


def test_after_ctrl_c_among_those_of_asyncio_the_others_are_still_told(
    idle_loop: asyncio.AbstractEventLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    of_asyncio, other = Finishing(KeyboardInterrupt(), idle_loop), Finishing(TimedOut("one was not sent"))
    endings._open.update({of_asyncio: "AsyncPublisher at a", other: "Publisher at b"})
    finish_all()
    assert other.given_s == [0.0]
    assert "Publisher at b: one was not sent" in capsys.readouterr().err


def test_a_program_may_end_at_the_moment_at_which_a_forgotten_client_is_about_to_be_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class AboutToStart(threading.Thread):
        def start(self) -> None:
            finish_all()
            super().start()

    works = Finishing(TimedOut("one was not sent"))
    monkeypatch.setattr(endings, "EXIT_S", 0.01)
    monkeypatch.setattr(threading, "Thread", AboutToStart)
    endings._open[works] = "Publisher at a"
    endings._start_finishing(works)
    assert "Publisher at a: one was not sent" in capsys.readouterr().err
    eventually_done = endings._finishing.get(works)
    assert eventually_done is None or eventually_done.wait(60)
    assert len(works.given_s) == 2
