"""Real runs of the message-tracking document's experiment: a broker that tracks and one that does not, real clients,
what latency messages take, and what the broker's histories take on disk and in memory."""

from __future__ import annotations

import gzip
import json
import math
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np

from clarion.admin import Admin
from clarion.model.errors import PermanentError
from clarion.model.ids import stamp_from_unix_s
from clarion.reproduce.tracking_model import Load, Traffic, make_traffic
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.packing import Notes
from clarion.tracking.tracker import HistoryName, Tracker

Tracking = Literal["none", "log", "bloom"]
TRACKINGS: tuple[Tracking, ...] = ("none", "log", "bloom")
PROBE_EVERY_S = 0.02
WARM_UP_S = 2.0
_DRAIN_S = 20.0
_END_S = 60.0
_FILE = "histories.sqlite"


class Room(msgspec.Struct, frozen=True):
    """What a file of histories takes: first as notes are saved, and then packed."""

    histories: int
    notes: int  # a batch in a history each
    saves: int
    saved_over_s: float  # from the first save to the last one
    saved_bytes: int  # of notes as they are saved, compressed
    packed_bytes: int  # of filters, and of notes that stay exact
    packed_gzip_bytes: int  # the same, each compressed once more
    file_bytes: int  # of all pages that are used
    filters: int
    exact: int  # notes that are in no filter
    packing_s: float

    @property
    def bytes_per_entry(self) -> float:
        """Bytes of a batch in a history when it is packed, with all that the file has beside them."""
        return self.file_bytes / max(1, self.notes)


class Run(msgspec.Struct, frozen=True):
    """What was seen of one broker."""

    tracking: Tracking
    seconds: float
    per_s: float  # messages that were asked for
    put: int
    put_in_all: int  # with those that warmed everything up
    delivered: int
    expected: int
    batches: int
    pace: float  # of what was asked, 1 where the publishers kept to it
    round_trips_s: list[float]
    lost: int  # latency messages that did not come back
    cpu: float  # of a core, of the broker
    memory_bytes: float
    written_per_s: float  # bytes that the broker had written
    room: Room | None

    @property
    def keeps_up(self) -> bool:
        """Whether all that was asked for was put in time, and came."""
        return self.pace > 0.98 and self.delivered >= 0.999 * self.expected and not self.lost

    @property
    def latency_ms(self) -> dict[str, float]:
        """The round trips: mean, p50 and p99."""
        if not self.round_trips_s:
            return {"mean": math.nan, "p50": math.nan, "p99": math.nan}
        p50, p99 = np.percentile(self.round_trips_s, (50, 99))
        return {"mean": 1e3 * statistics.fmean(self.round_trips_s), "p50": 1e3 * float(p50), "p99": 1e3 * float(p99)}


def run_really(
    load: Load, seconds: float, rounds: int, *, persist_s: float, on_done: Callable[[], None] | None = None
) -> list[Run]:
    """Run the experiment with each way of tracking in turn, so many times; the first of a round is the last of the
    next."""
    found = []
    for turn in range(rounds):
        for tracking in TRACKINGS if turn % 2 == 0 else reversed(TRACKINGS):
            found.append(_run(load, tracking, seconds, persist_s))
            if on_done is not None:
                on_done()
    return found


def _run(load: Load, tracking: Tracking, seconds: float, persist_s: float) -> Run:
    read = load.topics_of_subscribers()
    readers = np.bincount(read, minlength=load.topics)
    topics = load.topics_of_publishers()
    with tempfile.TemporaryDirectory(prefix="clarion-tracking-") as name, ExitStack() as ending:
        folder = Path(name)
        broker, url = ending.enter_context(_broker(folder, tracking, persist_s))
        with Admin(url) as admin:  # a topic that nobody reads keeps messages, or the broker would refuse them
            for topic in np.flatnonzero(readers == 0).tolist():
                admin.configure_topic(f"t/{topic}", retention="keep")
        receiving = ending.enter_context(_client("receive", url, topics=read.tolist()))
        publishing = ending.enter_context(_client("publish", url, topics=topics.tolist()))
        probing = ending.enter_context(_client("probe", url))
        warm = publishing.do(per_s=load.per_s, seconds=WARM_UP_S)
        expected = _deliveries(topics, readers, 0, warm["put"])
        before_got = receiving.do(total=expected, within_s=_DRAIN_S)["got"]
        before, begin_s = _usage(broker.pid), time.perf_counter()
        publishing.tell(per_s=load.per_s, seconds=seconds)
        probing.tell(seconds=seconds, every_s=PROBE_EVERY_S)
        put, probed = publishing.answer(2 * seconds + _END_S), probing.answer(2 * seconds + _END_S)
        wanted = _deliveries(topics, readers, warm["put"], put["put"])
        got = receiving.do(total=expected + wanted, within_s=_DRAIN_S)["got"]
        after, taken_s = _usage(broker.pid), time.perf_counter() - begin_s
        ending.close()
        room = _room(folder / "data" / _FILE, tracking) if tracking != "none" else None
    asked = max(1, int(load.per_s * seconds))
    return Run(
        tracking, seconds, load.per_s, put["put"], warm["put"] + put["put"], got - before_got, wanted,
        put["batches"] - warm["batches"], min(1.0, seconds / put["taken_s"]) * put["put"] / asked,
        probed["taken_s"], probed["lost"], (after["cpu_s"] - before["cpu_s"]) / taken_s, after["memory_bytes"],
        (after["written_bytes"] - before["written_bytes"]) / taken_s, room,
    )  # fmt: skip


def _deliveries(topics: Any, readers: Any, first: int, count: int) -> int:
    """Return how many deliveries follow from messages of these numbers."""
    numbers = np.arange(first, first + count)
    publishers, each = topics.shape
    return int(readers[topics[numbers % publishers, numbers // publishers % each]].sum())


class _Client:
    """A client in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], role: str, errors: IO[bytes]) -> None:
        self._process, self._role, self._errors = process, role, errors

    def tell(self, **order: Any) -> None:
        """Order something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self, within_s: float = _END_S) -> dict[str, Any]:
        """Return what came of it."""
        return dict(json.loads(self.line(within_s)))

    def do(self, **order: Any) -> dict[str, Any]:
        """Order something, and return what came of it."""
        self.tell(**order)
        return self.answer(_END_S + order.get("seconds", 0.0) * 2)

    def line(self, within_s: float) -> str:
        """Return the next line that it says; who says nothing for too long is ended."""
        assert self._process.stdout is not None
        alarm = threading.Timer(within_s, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            self._process.wait()
            raise PermanentError(f"the process that was to {self._role} ended: {_last_line(self._errors)}")
        return line


def _last_line(errors: IO[bytes]) -> str:
    """Return the last thing that a process said."""
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip().splitlines()
    return said[-1] if said else "it said nothing"


@contextmanager
def _client(role: str, url: str, **options: Any) -> Iterator[_Client]:
    command = [sys.executable, "-m", "clarion.reproduce.tracking_clients", role, url, json.dumps(options)]
    errors = tempfile.TemporaryFile()  # noqa: SIM115 open as long as the process
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        client = _Client(process, role, errors)
        client.line(_END_S)  # ready
        yield client
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        for stream in (process.stdin, process.stdout, errors):
            stream.close()


@contextmanager
def _broker(folder: Path, tracking: Tracking, persist_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "clarion", "up", "--json", "--data", str(folder / "data")]
    command += ["--listen", "tcp://127.0.0.1:*", "--log-level", "error", "--set", f"tracking={tracking}"]
    command += ["--set", f"tracking_persist_s={persist_s}"]
    errors = tempfile.TemporaryFile()  # noqa: SIM115 open as long as the process
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        if not line:
            raise PermanentError(f"the broker did not start: {_last_line(errors)}")
        yield broker, json.loads(line)["urls"][0]
    finally:
        broker.terminate()
        broker.wait()
        assert broker.stdout is not None
        for stream in (broker.stdout, errors):
            stream.close()


def _usage(pid: int) -> dict[str, float]:
    """Return processor time, memory and bytes written of a process; nan where there is no /proc."""
    place = Path(f"/proc/{pid}")
    try:
        fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
        pages = int((place / "statm").read_text().split()[1])
        written = (place / "io").read_text().partition("\nwrite_bytes: ")[2].split()[0]
    except OSError:
        return {"cpu_s": math.nan, "memory_bytes": math.nan, "written_bytes": math.nan}
    return {
        "cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "memory_bytes": float(pages * os.sysconf("SC_PAGE_SIZE")),
        "written_bytes": float(written),
    }


# What histories take on disk.


def _room(file: Path, tracking: Tracking) -> Room:
    """Return what a broker's file takes as it was saved, and packed as it would be later."""
    settings = HistorySettings("log" if tracking == "log" else "bloom")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as reading:
        notes, saved, saves, over_us = reading.execute(
            "SELECT coalesce(sum(notes), 0), coalesce(sum(length(data)), 0), count(DISTINCT at_us),"
            " coalesce(max(at_us) - min(at_us), 0) FROM block"
        ).fetchone()
    now_us = time.time_ns() // 1000
    with closing(HistoryFile(file, settings, now_us=now_us)) as histories:
        begin_s = time.perf_counter()
        while histories.pack(now_us=now_us):
            pass
        packing_s = time.perf_counter() - begin_s
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as reading:
        filters = [data for (data,) in reading.execute("SELECT data FROM filter")]
        blocks = list(reading.execute("SELECT notes, data FROM block"))
        named = reading.execute("SELECT count(*) FROM history").fetchone()[0]
        pages, free, size = (
            reading.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    kept = [*filters, *(data for _, data in blocks)]
    return Room(
        named, notes, saves, over_us / 1e6, saved, sum(map(len, kept)),
        sum(len(gzip.compress(data, 6)) for data in kept), (pages - free) * size, len(filters),
        sum(count for count, _ in blocks), packing_s,
    )  # fmt: skip


def ours_by_message(load: Load, tracking: Tracking, notes: int = 1 << 19) -> Room:
    """Return what our histories take where every message is a batch of its own: as many notes as are packed at once,
    of the document's load."""
    traffic = make_traffic(load, notes / load.per_s / 2)
    with tempfile.TemporaryDirectory(prefix="clarion-tracking-") as folder:
        file = Path(folder) / _FILE
        now_us = 1_750_000_000_000_000
        with closing(HistoryFile(file, HistorySettings(), now_us=now_us)) as histories:
            tracker = Tracker()
            tracker.number_of(HistoryName("publisher", 1))
            for place in range(load.subscribers):
                tracker.number_of(HistoryName("subscriber", 1, 0, b"s-%d" % place))
            saves = max(1, round(traffic.seconds / 2.0))
            for some in np.array_split(_notes_of(traffic, now_us / 1e6)[:notes], saves):
                tracker.published_up_to(now_us)
                unsaved = tracker.take()
                assert unsaved is not None
                unsaved.notes.frombytes(some.tobytes())
                now_us += 2_000_000
                histories.save(unsaved, now_us=now_us)
                tracker.saved()
        return _room(file, tracking)


def _notes_of(traffic: Traffic, begin_s: float) -> Notes:
    """Return notes of all messages, put and delivered, in the order of time; stamps count 1/64 ms."""
    stamps = np.uint64(stamp_from_unix_s(begin_s)) + (traffic.at_s * 64_000).astype(np.uint64)
    put = np.stack([np.ones(len(stamps), dtype=np.uint64), traffic.keys[:, 0], stamps], axis=1)
    some = traffic.message
    got = np.stack([traffic.subscriber.astype(np.uint64) + np.uint64(2), put[some, 1], stamps[some]], axis=1)
    order = np.argsort(np.concatenate([traffic.at_s, traffic.at_s[some]]), kind="stable")
    notes: Notes = np.concatenate([put, got])[order]
    return notes
