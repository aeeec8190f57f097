"""One run of the demo: who is started when, when the broker is killed, and when it is over."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path
from typing import Any

from clarion.cli.demo_processes import Heard, Processes
from clarion.cli.demo_report import Display, Report
from clarion.cli.demo_tally import shares
from clarion.model.errors import PermanentError

_STALLED_S = 30.0
_KILL_AT = 0.4  # of the messages acked
_HOLD_AT = 0.8  # of the messages put: the rest waits for the broker to be back, so that the kill is in the middle


class DemoFailed(PermanentError):
    """The demo could not be brought to its end."""


class DemoRun:
    """Starts everything, listens to everybody, and ends with a report."""

    def __init__(
        self,
        folder: Path,
        *,
        messages: int,
        publishers: int,
        subscribers: int,
        size_bytes: int,
        kill: bool,
        pipeline: bool,
        keep: bool,
        quiet: bool,
    ) -> None:
        self._folder = folder
        self._messages = messages
        self._shares = shares(messages, publishers)
        self._publishers = {f"publisher-{number}": number - 1 for number in range(1, publishers + 1)}
        self._subscribers = [f"subscriber-{number}" for number in range(1, subscribers + 1)]
        self._kill = kill
        self._pipeline = pipeline
        self._keep = keep
        self._processes = Processes(folder)
        self._display = Display(messages, ["sent", "acked", *self._subscribers], quiet=quiet)
        self._report = Report(size_bytes, received=dict.fromkeys(self._subscribers, 0))
        self._url = "tcp://127.0.0.1:*"
        self._broker = ""
        self._sent = dict.fromkeys(self._publishers, 0)
        self._acked = dict.fromkeys(self._publishers, 0)
        self._ready: set[str] = set()
        self._done: set[str] = set()
        self._began_s = self._killed_s = self._moved_s = 0.0

    def run(self) -> Report:
        """Run it; everything that was started has ended when this returns or raises."""
        with self._processes, self._display:
            self._start_broker()
            while len(self._done) < len(self._publishers) + len(self._subscribers):
                self._take(self._hear())
            report = self._report
            report.sent, report.acked = sum(self._sent.values()), sum(self._acked.values())
            report.elapsed_s = max(1e-3, self._moved_s - self._began_s)
            if self._pipeline:
                self._run_pipeline()
        return report

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
        self._broker = f"broker-{self._report.kills + 1}"
        where = ("--data", str(self._folder / "data"), "--listen", self._url)
        self._processes.start(self._broker, "clarion", "up", "--json", *where)

    def _on_broker_ready(self, facts: dict[str, Any]) -> None:
        if self._report.kills:
            self._report.away_s = time.monotonic() - self._killed_s
            self._display.say(f"The broker is back after {self._report.away_s:.1f} s, on the same data and port.")
            for name in self._publishers:
                self._processes.order(name)
            return
        self._url = facts["urls"][0]
        self._display.say(f"A broker is up on {self._url} (pid {facts['pid']}).")
        if self._keep or self._pipeline:
            self._keep_messages()
        for name in self._subscribers:
            self._start_worker(name, do="subscribe", name=name, shares=self._shares)

    def _keep_messages(self) -> None:
        from clarion.admin import Admin
        from clarion.cli.demo_worker import TOPIC

        with Admin(self._url) as admin:
            admin.configure_topic(TOPIC, retention="keep")

    def _kill_broker(self) -> None:
        acked = sum(self._acked.values())
        self._display.say(f"Killing the broker with SIGKILL, {acked:,} of {self._messages:,} messages acked so far ...")
        self._killed_s = time.monotonic()
        self._processes.kill(self._broker)
        self._report.kills += 1
        self._start_broker()

    def _broker_said(self) -> str:
        return f"the broker's last words: {self._processes.log_tail(self._broker)[-300:] or 'none'}"

    def _run_pipeline(self) -> None:
        from clarion.cli.demo_pipeline import archive_and_summarise
        from clarion.cli.demo_worker import TOPIC

        self._display.say("Archiving the topic into a Parquet lake with Spark ...")
        self._report.archived = archive_and_summarise(self._url, TOPIC, self._folder / "lake")

    # The others.

    def _start_worker(self, worker: str, **order: Any) -> None:
        order |= {"url": self._url, "size_bytes": self._report.size_bytes}
        self._processes.start(worker, "clarion.cli.demo_worker", json.dumps(order))

    def _on_ready(self, name: str) -> None:
        self._ready.add(name)
        if name in self._subscribers and self._ready.issuperset(self._subscribers):
            for publisher, index in self._publishers.items():
                count = self._shares[index]
                hold_at = int(count * _HOLD_AT) if self._kill else None
                self._start_worker(publisher, do="publish", index=index, messages=count, hold_at=hold_at)
        elif self._ready.issuperset(self._publishers):
            self._display.say(
                f"{len(self._publishers)} publishers and {len(self._subscribers)} subscribers are connected; go."
            )
            self._began_s = self._moved_s = time.monotonic()
            self._display.begin()
            for publisher in self._publishers:
                self._processes.order(publisher)

    def _on_published(self, name: str, facts: dict[str, Any]) -> None:
        if facts["acked"] > self._acked[name]:
            self._moved_s = time.monotonic()
        self._sent[name], self._acked[name] = facts["sent"], facts["acked"]
        acked = sum(self._acked.values())
        self._display.show("sent", sum(self._sent.values()))
        self._display.show("acked", acked)
        if self._kill and not self._report.kills and acked >= _KILL_AT * self._messages:
            self._kill_broker()
        if "done" in facts:
            self._done.add(name)
            if self._done.issuperset(self._publishers):
                for subscriber in self._subscribers:
                    self._processes.order(subscriber)

    def _on_received(self, name: str, facts: dict[str, Any]) -> None:
        report = self._report
        if facts["received"] > report.received[name]:
            self._moved_s = time.monotonic()
        report.received[name] = facts["received"]
        self._display.show(name, facts["received"])
        if "done" in facts:
            self._done.add(name)
            report.lost += facts["lost"]
            report.repeated += facts["repeated"]
            report.out_of_order += facts["out_of_order"]
            report.damaged += facts["damaged"]
