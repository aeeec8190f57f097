"""One run of the demo: who is started when, when the broker is killed, when it is over, and what came of it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clarion.model.errors import PermanentError

_STOP_WAIT_S = 10.0
_LOG_TAIL_BYTES = 2000


class Heard(NamedTuple):
    """A line that a process printed; `facts` is None when it will print no more."""

    name: str
    facts: dict[str, Any] | None


class Processes:
    """Processes of this Python that print JSON lines. Leaving the `with` ends every one that was started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}
        self.heard: queue.Queue[Heard] = queue.Queue()

    def start(self, name: str, *arguments: str) -> int:
        """Start `python -m arguments`; what it says on standard error goes into a file. Return the pid."""
        # Settings in the environment are for the user's own broker, not for this one.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CLARION_")}
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                # -P: what lies in the current folder must not be taken for Clarion.
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the others
            )
        self._running[name] = process
        threading.Thread(target=self._listen, args=(name, process), daemon=True).start()
        return process.pid

    def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.heard.put(Heard(name, json.loads(line)))
        self.heard.put(Heard(name, None))

    def order(self, name: str) -> None:
        """Tell a process to go on."""
        stdin = self._running[name].stdin
        assert stdin is not None
        try:
            stdin.write("go on\n")
            stdin.flush()
        except BrokenPipeError:  # it has ended, which is heard elsewhere
            pass

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, and see it gone."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def log_tail(self, name: str) -> str:
        """Return the end of what a process said on standard error."""
        try:
            return self._log(name).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_error: object) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must leave nothing behind
        try:
            for process in self._running.values():
                process.terminate()
            for process in self._running.values():
                try:
                    process.wait(_STOP_WAIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


WRONG = ("lost", "repeated", "out_of_order", "damaged")  # what there should be none of


@dataclass(slots=True)
class Report:
    """What came of a run."""

    size_bytes: int
    sent: int = 0
    acked: int = 0
    received: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    damaged: int = 0
    kills: int = 0
    away_s: float = 0.0
    elapsed_s: float = 0.0
    archived: Archived | None = None

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        if self.archived is not None and not self.archived.rows == self.archived.different == self.acked:
            return False
        return self.sent == self.acked and not any(getattr(self, name) for name in WRONG)

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        delivered = sum(self.received.values())
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in ("sent", "acked", "received", *WRONG, "kills")},
            "away_s": round(self.away_s, 3),
            "elapsed_s": round(self.elapsed_s, 3),
            "messages_per_s": round(self.acked / self.elapsed_s),
            "mb_per_s": round(self.acked * self.size_bytes / self.elapsed_s / 1e6, 2),
            "deliveries_per_s": round(delivered / self.elapsed_s),
            "delivered_mb_per_s": round(delivered * self.size_bytes / self.elapsed_s / 1e6, 2),
        } | ({} if self.archived is None else {"archived": self.archived._asdict()})

    def verdict(self) -> str:
        """Return the report in a sentence or two."""
        told = self.as_json()
        speed = (
            f"{self.elapsed_s:.1f} s in all; {told['mb_per_s']:.1f} MB/s stored,"
            f" {told['delivered_mb_per_s']:.1f} MB/s delivered."
        )
        killed = f"The broker was killed and was away for {self.away_s:.1f} s. " if self.kills else ""
        kept = "Nothing lost, nothing repeated, all in order." if self.ok else "A promise was broken: see above."
        return f"{killed}{speed}\n{kept}"


class Archived(NamedTuple):
    """What is in the archive."""

    rows: int
    different: int  # message ids
    by_publisher: dict[str, int]
    median_ms: float  # from the publisher's stamp to the broker's commit
    p99_ms: float


def archive_and_summarise(url: str, topic: str, lake: Path) -> Archived:
    """Archive a topic, read the archive, and return what is there."""
    try:
        from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

        from clarion.pipeline import archive, start_session
        from clarion.pipeline.jobs.latency import publish_latency
        from clarion.pipeline.lake import read_lake
        from clarion.pipeline.spark_session import plain_interrupts
    except ImportError as error:
        raise PermanentError('--pipeline needs PySpark: pip install "clarion[spark]"') from error
    spark = start_session(name="clarion demo")
    with plain_interrupts():
        try:
            if archive(spark, url, [topic], str(lake)).stopped:
                raise KeyboardInterrupt
            messages = read_lake(spark, str(lake)).persist()
            counts = messages.agg(F.count("*").alias("rows"), F.countDistinct("id").alias("different")).collect()[0]
            publishers = messages.groupBy("publisher").count().orderBy("publisher").collect()
            took = publish_latency(messages).collect()[0]
            return Archived(
                counts["rows"],
                counts["different"],
                {str(row["publisher"]): row["count"] for row in publishers},
                took["p50_ms"],
                took["p99_ms"],
            )
        finally:
            spark.stop()


_TOPIC = "demo"
_STALLED_S = 30.0
_KILL_AT = 0.4  # of the messages acked
_HOLD_AT = 0.8  # of the messages put: the rest waits for the broker to be back, so that the kill is in the middle


class DemoFailed(PermanentError):
    """The demo could not be brought to its end."""


def shares(messages: int, publishers: int) -> list[int]:
    """Divide messages among publishers, as evenly as it goes."""
    each, rest = divmod(messages, publishers)
    return [each + (place < rest) for place in range(publishers)]


class Said(NamedTuple):
    """Something happened that is told in a sentence."""

    text: str


class Began(NamedTuple):
    """Everybody is connected, and messages begin to move."""


class Moved(NamedTuple):
    """So many messages were sent, acked, or received by a subscriber."""

    name: str
    messages: int


@dataclass(eq=False, kw_only=True)
class DemoRun:
    """Starts everything, listens to everybody, and ends with a report; leaving the `with` ends all processes."""

    folder: Path
    messages: int
    publishers: int
    subscribers: int
    size_bytes: int
    kill: bool
    pipeline: bool
    keep: bool

    def __post_init__(self) -> None:
        self._shares = shares(self.messages, self.publishers)
        self._publishers = {f"publisher-{number}": number - 1 for number in range(1, self.publishers + 1)}
        self._subscribers = [f"subscriber-{number}" for number in range(1, self.subscribers + 1)]
        self._processes = Processes(self.folder)
        self._events: list[Said | Began | Moved] = []
        self.report = Report(self.size_bytes, received=dict.fromkeys(self._subscribers, 0))
        self._url = "tcp://127.0.0.1:*"
        self._broker = ""
        self._sent = dict.fromkeys(self._publishers, 0)
        self._acked = dict.fromkeys(self._publishers, 0)
        self._ready: set[str] = set()
        self._done: set[str] = set()
        self._began_s = self._killed_s = self._moved_s = 0.0

    def __enter__(self) -> DemoRun:
        self._processes.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._processes.__exit__(*error)

    @property
    def counted(self) -> list[str]:
        """The names under which it tells how many messages moved."""
        return ["sent", "acked", *self._subscribers]

    def events(self) -> Iterator[Said | Began | Moved]:
        """Run to the end and tell what happens meanwhile; then `report` is complete."""
        self._start_broker()
        while len(self._done) < len(self._publishers) + len(self._subscribers):
            self._take(self._hear())
            events, self._events = self._events, []
            yield from events
        report = self.report
        report.sent, report.acked = sum(self._sent.values()), sum(self._acked.values())
        report.elapsed_s = max(1e-3, self._moved_s - self._began_s)
        if self.pipeline:
            yield Said("Archiving the topic into a Parquet lake with Spark ...")
            report.archived = archive_and_summarise(self._url, _TOPIC, self.folder / "lake")

    def _hear(self) -> Heard:
        try:
            heard = self._processes.heard.get(timeout=_STALLED_S)
        except queue.Empty:
            raise DemoFailed(f"nothing moved for {_STALLED_S:g} s; {self._broker_said()}") from None
        if self._moved_s and time.monotonic() - self._moved_s > _STALLED_S:
            raise DemoFailed(f"no message moved for {_STALLED_S:g} s; {self._broker_said()}")
        return heard

    def _take(self, heard: Heard) -> None:
        name, facts = heard
        if facts is None:
            if name == self._broker or not (name in self._done or name.startswith("broker")):
                said = self._processes.log_tail(name).splitlines()[-1:]
                raise DemoFailed(f"{name} ended on its own: {said[0] if said else 'it said nothing'}")
        elif name == self._broker:
            self._on_broker_ready(facts)
        elif "ready" in facts:
            self._on_ready(name)
        elif name in self._publishers:
            self._on_published(name, facts)
        else:
            self._on_received(name, facts)

    # The broker.

    def _start_broker(self) -> None:
        self._broker = f"broker-{self.report.kills + 1}"
        where = ("--data", str(self.folder / "data"), "--listen", self._url)
        self._processes.start(self._broker, "clarion", "up", "--json", *where)

    def _on_broker_ready(self, facts: dict[str, Any]) -> None:
        if self.report.kills:
            self.report.away_s = time.monotonic() - self._killed_s
            self._say(f"The broker is back after {self.report.away_s:.1f} s, on the same data and port.")
            for name in self._publishers:
                self._processes.order(name)
            return
        self._url = facts["urls"][0]
        self._say(f"A broker is up on {self._url} (pid {facts['pid']}).")
        if self.keep or self.pipeline:
            self._keep_messages()
        for name in self._subscribers:
            self._start_worker(name, do="subscribe", name=name, shares=self._shares)

    def _keep_messages(self) -> None:
        from clarion.admin import Admin

        with Admin(self._url) as admin:
            admin.configure_topic(_TOPIC, retention="keep")

    def _kill_broker(self) -> None:
        acked = sum(self._acked.values())
        self._say(f"Killing the broker with SIGKILL, {acked:,} of {self.messages:,} messages acked so far ...")
        self._killed_s = time.monotonic()
        self._processes.kill(self._broker)
        self.report.kills += 1
        self._start_broker()

    def _say(self, text: str) -> None:
        self._events.append(Said(text))

    def _broker_said(self) -> str:
        return f"the broker's last words: {self._processes.log_tail(self._broker)[-300:] or 'none'}"

    # The others.

    def _start_worker(self, worker: str, **order: Any) -> None:
        order |= {"url": self._url, "topic": _TOPIC, "size_bytes": self.report.size_bytes}
        self._processes.start(worker, "clarion.demo.demo_clients", json.dumps(order))

    def _on_ready(self, name: str) -> None:
        self._ready.add(name)
        if name in self._subscribers and self._ready.issuperset(self._subscribers):
            for publisher, index in self._publishers.items():
                count = self._shares[index]
                hold_at = int(count * _HOLD_AT) if self.kill else None
                self._start_worker(publisher, do="publish", index=index, messages=count, hold_at=hold_at)
        elif self._ready.issuperset(self._publishers):
            self._say(f"{len(self._publishers)} publishers and {len(self._subscribers)} subscribers are connected; go.")
            self._began_s = self._moved_s = time.monotonic()
            self._events.append(Began())
            for publisher in self._publishers:
                self._processes.order(publisher)

    def _on_published(self, name: str, facts: dict[str, Any]) -> None:
        if facts["acked"] > self._acked[name]:
            self._moved_s = time.monotonic()
        self._sent[name], self._acked[name] = facts["sent"], facts["acked"]
        acked = sum(self._acked.values())
        self._events.append(Moved("sent", sum(self._sent.values())))
        self._events.append(Moved("acked", acked))
        if self.kill and not self.report.kills and acked >= _KILL_AT * self.messages:
            self._kill_broker()
        if "done" in facts:
            self._done.add(name)
            if self._done.issuperset(self._publishers):
                for subscriber in self._subscribers:
                    self._processes.order(subscriber)

    def _on_received(self, name: str, facts: dict[str, Any]) -> None:
        report = self.report
        if facts["received"] > report.received[name]:
            self._moved_s = time.monotonic()
        report.received[name] = facts["received"]
        self._events.append(Moved(name, facts["received"]))
        if "done" in facts:
            self._done.add(name)
            for wrong in WRONG:
                setattr(report, wrong, getattr(report, wrong) + facts[wrong])
