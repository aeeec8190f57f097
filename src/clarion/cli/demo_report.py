"""What the demo shows: progress while it runs, and the report at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from clarion.cli.output import add_row, console, plain_table

if TYPE_CHECKING:
    from rich.progress import TaskID
    from rich.table import Table

    from clarion.cli.demo_pipeline import Archived


@dataclass(slots=True)
class Report:
    """What came of it."""

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
        return self.sent == self.acked and not (self.lost or self.repeated or self.out_of_order or self.damaged)

    def as_json(self) -> dict[str, Any]:
        """Give it for programs."""
        delivered = sum(self.received.values())
        return {
            "ok": self.ok,
            "sent": self.sent,
            "acked": self.acked,
            "received": self.received,
            "lost": self.lost,
            "repeated": self.repeated,
            "out_of_order": self.out_of_order,
            "damaged": self.damaged,
            "kills": self.kills,
            "away_s": round(self.away_s, 3),
            "elapsed_s": round(self.elapsed_s, 3),
            "messages_per_s": round(self.acked / self.elapsed_s),
            "mb_per_s": round(self.acked * self.size_bytes / self.elapsed_s / 1e6, 2),
            "deliveries_per_s": round(delivered / self.elapsed_s),
            "delivered_mb_per_s": round(delivered * self.size_bytes / self.elapsed_s / 1e6, 2),
        } | ({} if self.archived is None else {"archived": self.archived._asdict()})

    def as_table(self) -> Table:
        """Give it for people."""
        told = self.as_json()
        table = plain_table(["", "messages"], ["messages"])
        add_row(table, "sent", f"{self.sent:,}")
        add_row(table, "acked (on disk)", f"{self.acked:,}")
        for name, count in self.received.items():
            add_row(table, f"received by {name}", f"{count:,}")
        wrong = {"lost": self.lost, "repeated": self.repeated, "out of order": self.out_of_order}
        if self.damaged:
            wrong["damaged"] = self.damaged
        for name, count in wrong.items():
            add_row(table, name, f"{count:,}", style="bold red" if count else "bold green")
        add_row(
            table,
            "stored per second",
            f"{told['messages_per_s']:,}",
        )
        add_row(table, "delivered per second", f"{told['deliveries_per_s']:,}")
        if self.archived is not None:
            self._add_archived(table, self.archived)
        return table

    def _add_archived(self, table: Table, archived: Archived) -> None:
        add_row(table, "archived as Parquet by Spark", f"{archived.rows:,}")
        for publisher, count in archived.by_publisher.items():
            add_row(table, f"  of publisher {publisher}", f"{count:,}")
        repeated = archived.rows - archived.different
        add_row(table, "repeated in the archive", f"{repeated:,}", style="bold red" if repeated else "bold green")
        add_row(table, "from publisher to disk, median ms", f"{archived.median_ms:,.1f}")
        add_row(table, "from publisher to disk, 99 % ms", f"{archived.p99_ms:,.1f}")

    def verdict(self) -> str:
        """Give it in a sentence or two."""
        told = self.as_json()
        speed = (
            f"{self.elapsed_s:.1f} s in all; {told['mb_per_s']:.1f} MB/s stored,"
            f" {told['delivered_mb_per_s']:.1f} MB/s delivered."
        )
        killed = f"The broker was killed and was away for {self.away_s:.1f} s. " if self.kills else ""
        kept = "Nothing lost, nothing repeated, all in order." if self.ok else "A promise was broken: see above."
        return f"{killed}{speed}\n{kept}"


class Display:
    """Live bars on standard error if it is a terminal; what happens is said there in any case."""

    def __init__(self, messages: int, names: list[str], *, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._quiet = quiet
        self._console = console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>9,.0f}/s"), TimeElapsedColumn(),
            console=self._console, disable=quiet or not self._console.is_terminal,
        )  # fmt: skip
        self._began_s: float | None = None
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=messages, rate=0.0, start=False) for name in names
        }

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self) -> None:
        """Start the clocks."""
        self._began_s = time.monotonic()
        for task in self._tasks.values():
            self._progress.start_task(task)

    def show(self, name: str, count: int) -> None:
        """Move a bar."""
        if self._began_s is None:
            return
        task = self._progress.tasks[self._tasks[name]]
        if count > task.completed:
            rate = count / max(1e-3, time.monotonic() - self._began_s)
            self._progress.update(task.id, completed=count, rate=rate)
            if task.finished:
                self._progress.stop_task(task.id)

    def say(self, text: str) -> None:
        """Say what happens."""
        if not self._quiet:
            self._console.print(text, markup=False, soft_wrap=True)
