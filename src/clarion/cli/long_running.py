"""What commands share that run until they are told to stop: their log, signals, and a broker where none answers."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clarion.cli.command_errors import note
from clarion.model.errors import PermanentError, RetryableError


def log_to_stderr() -> None:
    """Have the log go to standard error, for people."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s", level=logging.INFO)
    logging.getLogger("clarion.session").addFilter(_tell_outages_once())


def _tell_outages_once() -> Callable[[logging.LogRecord], bool]:
    """Return a filter by which a process with several clients says once that its broker is away, and once that it is
    back."""
    away = False

    def is_news(record: logging.LogRecord) -> bool:
        nonlocal away
        text = record.getMessage()
        if not text.startswith(("no broker answers", "a broker answers")):
            return record.levelno >= logging.WARNING
        before, away = away, text.startswith("no")
        return away != before

    return is_news


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield what the first SIGTERM or Ctrl-C sets; the second ends the program at once."""
    from clarion.session.service_process import StopSignals

    stopping, signals = threading.Event(), StopSignals()

    def stop(number: int, _frame: object) -> None:
        if signals.is_echo(number, time.monotonic()):
            return
        if stopping.is_set():
            os._exit(128 + number)  # consumers, and a broker started here, hear of it by themselves
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    yield stopping


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or Ctrl-C, on the running event loop; the second ends the program at once."""
    import asyncio

    from clarion.session.service_process import StopSignals

    loop, signals, stopping = asyncio.get_running_loop(), StopSignals(), False

    def on_signal(number: int) -> None:
        nonlocal stopping
        if signals.is_echo(number, time.monotonic()):
            return
        if stopping:
            os._exit(128 + number)
        stopping = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


@contextmanager
def broker_where_none_answers(
    url: str, data: Path, stopping: threading.Event
) -> Iterator[subprocess.Popen[bytes] | None]:
    """Start a broker where none answers, yield it, and end it with us."""
    from clarion.session.service_process import dying_with_us

    if _answers(url):
        yield None
        return
    if "127.0.0.1" not in url and "localhost" not in url and not url.startswith("ipc://"):
        raise PermanentError(
            f"no broker answers at {url}, and one is started on this machine only; nothing was started. Start it there"
            " (`clarion up`), or name another with --url"
        )
    note(f"no broker answers at {url}: starting one, with its data in {data}")
    command = [sys.executable, "-m", "clarion", "up", "--data", str(data), "--listen", url]
    broker = subprocess.Popen(dying_with_us(command), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while not _answers(url) and not stopping.is_set():
            if broker.poll() is not None:
                raise PermanentError(f"the broker did not start: it ended with {broker.returncode}; see above")
        yield broker
    finally:
        broker.terminate()
        broker.wait()


def _answers(url: str) -> bool:
    """Tell whether a broker answers; that none does is for the caller to tell."""
    from clarion.admin import Admin

    log = logging.getLogger("clarion.session")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with Admin(url, timeout_s=1.0) as admin:
            admin.hello()
        return True
    except RetryableError:
        return False
    finally:
        log.setLevel(before)
