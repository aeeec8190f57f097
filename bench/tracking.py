"""What tracking costs: a note, a save, a packing, a question, room on disk and in memory; and how many brokers are
asked for a path (`python -m bench.tracking`)."""

from __future__ import annotations

import random
import resource
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from clarion.model.ids import MessageId, stamp_from_unix_s
from clarion.overlay.link_graph import Announcement, LinkGraph
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.paths import Answer
from clarion.tracking.tracker import Claim, HistoryName, Strategy, Tracker

_NOW_US = 1_750_000_000_000_000
_NOTES = 1 << 20


def _memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure_notes() -> None:
    """Print what a note costs."""
    tracker = Tracker()
    number = tracker.number_of(HistoryName("publisher", 7))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for stamp in range(200_000):
            tracker.note(number, 7 << 32 | 5, stamp)
        took.append((time.perf_counter() - began) / 200_000 * 1e9)
    print(f"a note: {statistics.median(took):.0f} ns")


def measure_file(histories: int, strategy: Strategy, efpp: float) -> None:
    """Print what saving, packing and asking take: batches of 200 publishers, each to every tenth of 100 subscribers or
    so, over ten minutes."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "histories"
        kept = HistorySettings(strategy, Accuracy(efpp=efpp))
        file = HistoryFile(place, kept, now_us=_NOW_US)
        before = _memory_mb()
        tracker = Tracker()
        numbers = [
            tracker.number_of(HistoryName("subscriber", 7, 0, b"subscriber-%06d" % each)) for each in range(histories)
        ]
        dice = np.random.default_rng(1)
        begin = stamp_from_unix_s(_NOW_US / 1e6) - 38_400_000
        batches = _NOTES // 10
        stamps = np.repeat(begin + np.arange(batches) * 366 + dice.integers(0, 12_800, batches), 10)
        who = np.repeat((7 << 32) + dice.integers(1, 201, batches), 10)
        notes = np.stack([np.array(numbers)[dice.integers(0, histories, batches * 10)], who, stamps], axis=1)
        saves = []
        for some in np.array_split(notes.astype(np.uint64), 300):
            taken = tracker.take()
            if taken is None:
                tracker.published_up_to(1)
                taken = tracker.take()
                assert taken is not None
            taken.notes.frombytes(some.tobytes())
            began = time.perf_counter()
            file.save(taken, now_us=_NOW_US)
            saves.append(time.perf_counter() - began)
            tracker.saved()
        journal = file._writer.execute("SELECT sum(length(data)) FROM block").get
        asked = [_ask(file, notes[dice.integers(0, len(notes))]) for _ in range(20)]
        pauses: list[float] = []
        stop = threading.Event()
        watcher = threading.Thread(target=_watch, args=(pauses, stop))
        watcher.start()
        began = time.perf_counter()
        packings = 0
        while file.pack(now_us=_NOW_US):
            packings += 1
        packed_s = time.perf_counter() - began
        stop.set()
        watcher.join()
        used = file._writer.pragma("page_count") - file._writer.pragma("freelist_count")
        filters, exact = file._writer.execute(
            "SELECT (SELECT count(*) FROM filter), (SELECT coalesce(sum(notes), 0) FROM block)"
        ).get
        again = [_ask(file, notes[dice.integers(0, len(notes))]) for _ in range(20)]
        print(
            f"{histories} histories, {strategy}, efpp {efpp:g}: save of {_NOTES // 300} notes"
            f" {statistics.median(saves) * 1e3:.1f} ms; journal {journal / len(notes):.2f} B a note; asked"
            f" {statistics.median(asked) * 1e3:.1f} ms before; packed in {packed_s:.2f} s ({packings} times), others"
            f" waited {max(pauses) * 1e3:.0f} ms at most, {statistics.quantiles(pauses, n=100)[98] * 1e3:.1f} at p99;"
            f" file {used * 8192 / len(notes):.2f} B a note, {filters} filters, {exact} exact; asked"
            f" {statistics.median(again) * 1e3:.1f} ms after; peak {_peak_mb() - before:.0f} MB more"
        )
        file.close()


def _ask(file: HistoryFile, note: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    began = time.perf_counter()
    assert file.seen((int(note[1]), int(note[2])))
    return time.perf_counter() - began


def _watch(pauses: list[float], stop: threading.Event) -> None:
    """Note how long a thread that does little waits for the interpreter."""
    while not stop.is_set():
        began = time.perf_counter()
        time.sleep(0.0005)
        pauses.append(time.perf_counter() - began - 0.0005)


def count_questions(brokers: int, degree: int, share: float, efpp: float, networks: int = 50) -> None:
    """Print how many brokers are asked for a path in random networks, by each way; reduction 1 keeps a history for each
    neighbour forwarded to, reduction 2 puts the set of them into the key and tries all sets."""
    message = MessageId(1, 1, 1, 0)
    dice = random.Random(7)
    asked: dict[str, list[int]] = {}
    probes: dict[str, list[int]] = {}
    had_counts = []
    for _ in range(networks):
        answers, had = _network(dice, brokers, degree, share, efpp)
        had_counts.append(len(had))
        for name, onward in _ways(dice, message, answers, had, efpp).items():
            known: set[int] = set()
            while following := {message.broker}.union(*(onward[broker] for broker in known)) - known:
                known |= following
            asked.setdefault(name, []).append(len(known))
            sets = [2 ** len(answers[each].linked) if name == "reduction 2" else 1 for each in known]
            sets = [
                1 + len(answers[each].linked) if name == "reduction 1" else had
                for each, had in zip(known, sets, strict=True)
            ]
            probes.setdefault(name, []).append(sum(sets))
    means = ", ".join(
        f"{name} {statistics.mean(some):.1f} ({statistics.mean(probes[name]):.0f})" for name, some in asked.items()
    )
    print(
        f"{brokers} brokers with {degree} links each, {statistics.mean(had_counts):.1f} had it, efpp {efpp:g}: asked"
        f" (histories looked into) {means}"
    )


def _network(
    dice: random.Random, brokers: int, degree: int, share: float, efpp: float
) -> tuple[dict[int, Answer], dict[int, set[int]]]:
    """Return what brokers of a random network answer, with errors of filters, and to whom each forwarded the batch."""
    links = {(broker, dice.randrange(1, broker)) for broker in range(2, brokers + 1)}
    while len(links) < brokers * degree // 2:
        links.add((dice.randint(1, brokers), dice.randint(1, brokers)))
    graph = LinkGraph()
    for broker in range(1, brokers + 1):
        linked = sorted({other for pair in links for other in pair if broker in pair})
        graph.hear(Announcement(broker, "", b"", 1, tuple(linked)))
    had: dict[int, set[int]] = {1: set()}
    for broker in dice.sample(range(2, brokers + 1), max(1, round(share * brokers))):
        while broker not in had:
            had[broker] = set()
            broker = graph.parent(1, broker) or 1
    for broker in had:
        if broker != 1:
            had[graph.parent(1, broker) or 1].add(broker)
    answers = {}
    for broker in range(1, brokers + 1):
        claims: list[Claim] = []
        if broker == 1:
            claims.append(Claim(HistoryName("publisher", 1), efpp))
        for via in graph.linked_with(broker):
            if (broker in had and graph.parent(1, broker) == via) or dice.random() < efpp:
                claims.append(Claim(HistoryName("routing", 1, via), efpp))
        answers[broker] = Answer(broker, "", tuple(graph.linked_with(broker)), tuple(claims))
    return answers, had


def _ways(
    dice: random.Random, message: MessageId, answers: dict[int, Answer], had: dict[int, set[int]], efpp: float
) -> dict[str, dict[int, set[int]]]:
    """Return the ways of asking: `all` asks the whole network, `neighbours` goes on from brokers that claim to have had
    the message, as Clarion does, and a reduction asks of those only the ones it seems to have been forwarded to."""
    first: dict[int, set[int]] = {}
    second: dict[int, set[int]] = {}
    for broker, answer in answers.items():
        truly = had.get(broker, set())
        wrongly = {other for other in answer.linked if dice.random() < efpp}
        first[broker] = truly | wrongly
        # Each of the other sets seems to be in the history with efpp; a neighbour is in half of them.
        sets = sum(dice.random() < efpp for _ in range(2 ** min(len(answer.linked), 12)))
        seeming = {other for other in answer.linked for _ in range(sets) if dice.random() < 0.5}
        second[broker] = truly | seeming
    linked = {broker: set(answer.linked) for broker, answer in answers.items()}
    claim = {broker for broker, answer in answers.items() if answer.arrivals(message)}
    return {"all": linked} | {
        name: {broker: others if broker in claim else set() for broker, others in onward.items()}
        for name, onward in (("neighbours", linked), ("reduction 1", first), ("reduction 2", second))
    }


def main() -> None:
    """Print all of it."""
    measure_notes()
    for histories in (1000, 20_000, 100_000):
        measure_file(histories, "bloom", 1e-5)
    measure_file(1000, "bloom", 0.01)
    measure_file(1000, "log", 1e-5)
    for degree in (3, 6):
        for share in (0.02, 0.1, 0.5):
            for efpp in (1e-5, 0.05):
                count_questions(50, degree, share, efpp)


if __name__ == "__main__":
    main()
