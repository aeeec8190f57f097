"""The report: the message-tracking document's claims beside what we see, by a model of its scheme and really.

Claims are in the document's order, each above the function that judges it; ours follow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clarion.reproduce.claims import listed, percent, table
from clarion.reproduce.judged_claims import (
    DIFFERS,
    HOLDS,
    NOT,
    NOT_SHOWN,
    Claim,
    Rules,
    Seen,
    claim_rows,
    count_verdicts,
    held,
    write_parts,
)
from clarion.reproduce.tracking_experiments import DOCUMENT, Results
from clarion.reproduce.tracking_figures import FIGURES
from clarion.reproduce.tracking_model import ID_BYTES, LAYOUTS, TABLE_2, cut, make_traffic
from clarion.reproduce.tracking_runs import TRACKINGS, Room, Tracking
from clarion.tracking.accuracy import fpp_for
from clarion.tracking.bloom import Shape

_SLIGHT = 1.1  # times the latency without tracking
_SAME = 0.99  # so much of what a full filter takes is left by gzip where it does not compress
_FULL = [one for one in TABLE_2 if one.bits and one.stores_full]


_rules: Rules[Results] = Rules()


@_rules.judges("bits", "n = 2521 in m = 64 Ki with k = 16 errs at most as two filters of efpp 1e-5 may (Eq. 1, 2)")
def _bits(results: Results) -> Seen:
    """For 99.999 % take 26 bits for each entry, and 16 hash functions."""
    one = results.outcome("BF", "10K", 1, 0.99999).configuration
    best = Shape.for_keys(one.capacity, fpp_for(1e-5, 2))
    text = (
        f"{one.bits / one.capacity:.1f} bits and k = {one.hashes}: efpp {one.efpp:.1e}. The least for the same keys is"
        f" {best.bits / one.capacity:.1f} bits with k = {best.hashes}"
    )
    return Seen(held(one.efpp <= 1e-5), text, {"efpp": one.efpp, "least_bits": best.bits / one.capacity})


@_rules.judges("accuracy", "efpp of full filters, two of them matching, is within what each row of Table 2 promises")
def _accuracy(results: Results) -> Seen:
    """Table 2's n, m and k keep 99.999 %, 99 % and 95 %."""
    rows = [one.configuration for one in results.outcomes if one.configuration.bits]
    worst = {f"{one.accuracy:.5g}": max(each.efpp for each in rows if each.accuracy == one.accuracy) for one in rows}
    holds = all(one.efpp <= 1 - one.accuracy + 1e-12 for one in rows)
    text = ", ".join(f"{float(name):.3%}: efpp at most {efpp:.2g}" for name, efpp in worst.items())
    return Seen(held(holds), text, {"efpp": worst})


@_rules.judges("async-forces", "the publisher history's forces at 5000 messages/s round to eight")
def _async_forces(results: Results) -> Seen:
    """With 10,000 bytes ASYNC records at most 625 messages between disk forces: about eight a second."""
    one = results.outcome("ASYNC", "10K", 1)
    per_s = one.publisher.forces_per_s
    text = (
        f"{one.configuration.capacity} messages, {per_s:.2f} forces a second for the publisher history;"
        f" {one.forces_per_s('together'):.1f} with a buffer for all deliveries, {one.forces_per_s('each'):.0f} with one"
        " for each subscriber"
    )
    return Seen(held(round(per_s) == 8 and one.configuration.capacity == 625), text, {"per_s": per_s})


@_rules.judges("bf-forces", "the publisher history's forces are between 1.8 and 2, and ASYNC's four times as many")
def _bf_forces(results: Results) -> Seen:
    """The highest accuracy of BF takes 2521 messages in the same memory: slightly less than two writes a second, a
    fourth of ASYNC's."""
    per_s = results.outcome("BF", "10K", 1, 0.99999).publisher.forces_per_s
    ratio = results.outcome("ASYNC", "10K", 1).publisher.forces_per_s / per_s
    text = f"{per_s:.2f} a second; ASYNC {ratio:.2f} times as many"
    return Seen(held(1.8 < per_s < 2 and round(ratio) == 4), text, {"per_s": per_s, "ratio": ratio})


@_rules.judges(
    "full-buffers", "in the model most stored buffers of the publisher history are full where the table says yes"
)
def _full_buffers(results: Results) -> Seen:
    """Table 2 says of each configuration whether it stores full buffers."""
    rows = [one for one in results.outcomes if one.configuration.stores_full is not None]
    wrong = [
        one.configuration.name
        for one in rows
        if {one.publisher.full > 0.5, one.together.full > 0.5} != {one.configuration.stores_full}
    ]
    each = sum(one.each.full > 0.5 for one in rows)
    text = (
        f"{len(rows) - len(wrong)} of {len(rows)} for the publisher history, and for one buffer of all deliveries. Were"
        f" there a buffer for each subscriber, as Section 3.2 has it, {each} would"
    )
    return Seen(held(not wrong), text, {"wrong": wrong})


@_rules.judges(
    "slight-latency", f"the median mean of three rounds or more is with bloom at most {_SLIGHT} times that without"
)
def _slight_latency(results: Results) -> Seen:
    """BF imposes only slight overhead on latency as compared to NULL."""
    if not results.runs:
        return Seen(NOT_SHOWN, "no real run", {})
    means = {one: _median(results, one, "mean") for one in TRACKINGS}
    text = ", ".join(f"{one} {mean:.1f} ms" for one, mean in means.items())
    ratio = means["bloom"] / means["none"]
    rounds = len(results.runs) // len(TRACKINGS)
    text = f"mean round trip: {text}; bloom {percent(ratio)}"
    text += "; fewer than three rounds do not tell that from noise" if rounds < 3 else f", {rounds} rounds"
    if rounds < 3:
        return Seen(NOT_SHOWN, text, {"mean_ms": means})
    if not all(run.keeps_up for run in results.runs):
        return Seen(NOT_SHOWN, f"{text}; but the machine did not keep up with the load", {"mean_ms": means})
    return Seen(held(ratio <= _SLIGHT), text, {"mean_ms": means})


@_rules.judges("rate", "forces at 20,000 messages/s are between 2.5 and 3, and BF's filters 45 to 55 % full")
def _rate(results: Results) -> Seen:
    """At four times the rate ASYNC with 135K would force slightly less than three times a second, and the highest
    accuracy of BF would still store nearly half-empty filters."""
    log, bloom = results.at_four_times("ASYNC", "135K", 1), results.at_four_times("BF", "135K", 1, 0.99999)
    per_s, fill = log.publisher.forces_per_s, bloom.publisher.fill
    text = f"{per_s:.2f} forces a second; filters are {fill:.0%} full"
    holds = 2.5 < per_s < 3, 0.45 < fill < 0.55
    verdict = HOLDS if all(holds) else DIFFERS if any(holds) else NOT
    return Seen(verdict, text, {"per_s": per_s, "fill": fill})


@_rules.judges("id-size", "arithmetic, which no run can contradict: it is told, and not judged")
def _id_size(results: Results) -> Seen:
    """Doubling the size of ids halves what ASYNC can hold, without any effect on BF."""
    at_s = make_traffic(DOCUMENT, 60.0).at_s
    counts = [len(cut(at_s, 135_000 // size, 2.0, 60.0)) / 60 for size in (ID_BYTES, 2 * ID_BYTES)]
    bf = results.outcome("BF", "135K", 2, 0.99999)
    text = (
        f"ASYNC holds {135_000 // ID_BYTES:,} and {135_000 // (2 * ID_BYTES):,}, and forces {listed(counts, '.2f')}"
        f" times a second; BF takes {bf.publisher.bytes_per_entry:.1f} bytes in both cases: a key is hashed, whatever"
        f" its size"
    )
    return Seen(NOT_SHOWN, text, {"forces_per_s": counts})


@_rules.judges("async-compresses", "gzip leaves less than half of each ASYNC configuration")
def _async_compresses(results: Results) -> Seen:
    """The simple structure of ASYNC logs allows for significant compression."""
    rows = [one for one in results.outcomes if one.configuration.strategy == "ASYNC"]
    shares = {
        one.configuration.name: one.gzip_per_message("together") / one.bytes_per_message("together") for one in rows
    }
    text = ", ".join(f"{name}: {share:.0%} left" for name, share in shares.items())
    return Seen(held(max(shares.values()) < 0.5), text, {"shares": shares})


@_rules.judges(
    "full-incompressible", f"gzip leaves at least {_SAME:.0%} of each configuration that stores full filters"
)
def _full_incompressible(results: Results) -> Seen:
    """Full filters have as many ones as zeros, so that compression is impossible in principle."""
    rows = [one for one in results.outcomes if one.configuration in _FULL]
    shares = {one.configuration.name: one.publisher.gzip_per_entry / one.publisher.bytes_per_entry for one in rows}
    ones = {chosen.name: -math.expm1(-chosen.hashes * chosen.capacity / chosen.bits) for chosen in _FULL}
    text = "; ".join(
        f"{name}: {share:.1%} left, {ones[name]:.0%} of the bits are ones" for name, share in shares.items()
    )
    holds = [share >= _SAME for share in shares.values()]
    return Seen(HOLDS if all(holds) else DIFFERS if any(holds) else NOT, text, {"shares": shares, "ones": ones})


@_rules.judges("partly-full", "at 135K and T_p = 1 s ASYNC takes less than each BF, plain and compressed")
def _partly_full(results: Results) -> Seen:
    """Where both store partly full buffers of the same size at the same rate, ASYNC uses the disk more efficiently."""
    log = results.outcome("ASYNC", "135K", 1)
    rows = [results.outcome("BF", "135K", 1, accuracy) for accuracy in (0.99999, 0.99, 0.95)]
    plain, packed = log.bytes_per_message("together"), log.gzip_per_message("together")
    others = [one.gzip_per_message("together") for one in rows]
    text = (
        f"plain {plain:.1f} bytes a message beside {rows[0].bytes_per_message('together'):.1f}; compressed"
        f" {packed:.1f} beside {listed(others, '.1f')} (99.999 / 99 / 95 %)"
    )
    holds = packed < min(others) and all(plain < one.bytes_per_message("together") for one in rows)
    return Seen(held(holds), text, {"async_gzip": packed, "bf_gzip": others})


@_rules.judges(
    "delayed", "at 135K BF of 99 % is below compressed ASYNC with the longest T_p that it has, and not with 2 s"
)
def _delayed(results: Results) -> Seen:
    """With larger buffers BF has no advantage unless disk forces can be delayed for several seconds."""
    log = results.outcome("ASYNC", "135K", 2).gzip_per_message("together")
    by_time = {
        persist_s: results.outcome("BF", "135K", persist_s, 0.99).gzip_per_message("together")
        for persist_s in (1, 2, 8, 18)
    }
    text = f"compressed ASYNC {log:.1f} bytes; BF of 99 % at " + ", ".join(
        f"{persist_s} s {value:.1f}" for persist_s, value in by_time.items()
    )
    best = results.outcome("BF", "135K", 8, 0.99999).gzip_per_message("together")
    text += f"; of 99.999 %, full, {best:.1f}"
    return Seen(held(by_time[2] > log > by_time[18]), text, {"async_gzip": log, "bf_gzip": by_time})


@_rules.judges(
    "each-subscriber", "with a filter for each subscriber the best of Table 2 takes more than ten times the ids"
    " themselves",
    ours=True,
)  # fmt: skip
def _each_subscriber(results: Results) -> Seen:
    """Section 3.2 has a history for each subscriber; with filters of Table 2's size, and hardly anything in them, that
    takes far more room than the ids. The document's figures must have had fewer."""
    rows = [one for one in results.outcomes if one.configuration.bits]
    best = min(rows, key=lambda one: one.bytes_per_message("each"))
    log = results.outcome("ASYNC", "10K", 1).bytes_per_message("each")
    least = best.bytes_per_message("each")
    text = (
        f"{least:,.0f} bytes a message at best ({best.configuration.name}), {best.gzip_per_message('each'):.1f}"
        f" compressed, and {best.forces_per_s('each'):.0f} forces a second; ASYNC {log:.0f}"
    )
    return Seen(held(least > 10 * log), text, {"least": least, "async": log})


@_rules.judges(
    "overwritten", "kept until they are full, filters of 99.999 % take the same at every T_p, within 5 %", ours=True
)
def _overwritten(results: Results) -> Seen:
    """What the conclusion leaves for later, keeping a partly full filter and overwriting its copy, makes room
    independent of T_p."""
    rows = [one for one in results.outcomes if one.configuration.accuracy == 0.99999]
    kept = [one.overwritten_per_message("together") for one in rows]
    stored = [one.bytes_per_message("together") for one in rows]
    text = f"{listed(kept, '.2f')} bytes a message instead of {listed(stored, '.2f')}"
    return Seen(held(max(kept) <= 1.05 * min(kept)), text, {"kept": kept, "stored": stored})


@_rules.judges(
    "ours-room", "a note of bloom takes at most 32 bits in the file, all included, at 99.999 % and a key a message",
    ours=True,
)  # fmt: skip
def _ours_room(results: Results) -> Seen:
    """Our filters are as large as their keys need, so that 500 subscribers with little each take no more than one with
    much."""
    bits = {name: 8 * room.bytes_per_entry for name, room in results.by_message.items()}
    bloom, log = results.by_message["bloom"], results.by_message["log"]
    text = (
        f"bloom {bits['bloom']:.1f} bits a note ({bloom.filters:,} filters, {bloom.exact:,} notes exact), log"
        f" {bits['log']:.1f}; before they are packed {8 * log.saved_bytes / log.notes:.1f}"
    )
    return Seen(held(bits["bloom"] <= 32), text, {"bits": bits})


@_rules.judges("bloom-below-log", "a packed note of bloom takes less than one of log, a key a message", ours=True)
def _bloom_below_log(results: Results) -> Seen:
    """Filters of 99.999 % take less room than the same notes kept exactly, ordered by stamp and compressed."""
    bloom, log = results.by_message["bloom"].bytes_per_entry, results.by_message["log"].bytes_per_entry
    text = (
        f"{bloom:.2f} and {log:.2f} bytes a note. 200 publishers at an even pace are easy to compress, and what"
        " subscribers get is what was put; filters of 99.999 % need 26 bits whatever the ids are"
    )
    return Seen(held(bloom < log), text, {"bloom": bloom, "log": log})


@_rules.judges(
    "ours-forces", "a broker's file was saved at most once in T_p, whatever the count of histories", ours=True
)
def _ours_forces(results: Results) -> Seen:
    """All histories of a broker are forced together, once in T_p."""
    rooms = [run.room for run in results.runs if run.room is not None]
    if not rooms:
        return Seen(NOT_SHOWN, "no real run", {})
    holds = all(is_saved_seldom(room, results.persist_s) for room in rooms)
    told = ", ".join(f"{room.saves} in {room.saved_over_s:.0f} s" for room in rooms)
    text = f"{max(room.histories for room in rooms)} histories, T_p = {results.persist_s:g} s; saves: {told}"
    return Seen(held(holds), text, {"saves": [room.saves for room in rooms]})


def is_saved_seldom(room: Room, persist_s: float) -> bool:
    """Return whether a file was saved at most once in T_p: a tenth early at most, and once more as its broker ended."""
    return room.saves - 1 <= room.saved_over_s / (0.9 * persist_s) + 1


def _median(results: Results, tracking: Tracking, share: str) -> float:
    return statistics.median(run.latency_ms[share] for run in results.runs if run.tracking == tracking)


class Report(msgspec.Struct, frozen=True):
    """Everything that was found, as numbers and verdicts."""

    load: dict[str, Any]
    seconds: float
    rounds: int
    configurations: list[dict[str, Any]]
    ours: dict[str, dict[str, Any]]
    runs: list[dict[str, Any]]
    claims: list[Claim]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, with verdicts counted."""
        return {**msgspec.to_builtins(self), "holds": self.counts()}

    def counts(self) -> dict[str, int]:
        """Return how many of the document's claims have each verdict."""
        return count_verdicts(self.claims, (HOLDS, DIFFERS, NOT, NOT_SHOWN))


def make_report(results: Results) -> Report:
    """Judge everything."""
    claims = _rules.judge(results)
    configurations = [
        {
            "name": one.configuration.name, **msgspec.to_builtins(one.configuration),
            **{
                layout: {
                    "bytes_per_message": one.bytes_per_message(layout),
                    "gzip_per_message": one.gzip_per_message(layout),
                    "forces_per_s": one.forces_per_s(layout), "memory_bytes": one.memory_bytes(layout),
                    "overwritten_per_message": one.overwritten_per_message(layout),
                }
                for layout in LAYOUTS
            },
        }
        for one in results.outcomes
    ]  # fmt: skip
    runs = [
        {**msgspec.to_builtins(run), "latency_ms": run.latency_ms, "keeps_up": run.keeps_up} for run in results.runs
    ]
    ours = {name: msgspec.to_builtins(room) for name, room in results.by_message.items()}
    seconds = results.runs[0].seconds if results.runs else 0.0
    rounds = len(results.runs) // len(TRACKINGS)
    return Report(msgspec.to_builtins(results.load), seconds, rounds, configurations, ours, runs, claims)


def write_report(report: Report, results: Results, folder: Path) -> None:
    """Write report.md and report.json into a folder."""
    write_parts(report.to_dict(), _parts(report, results), folder)


def _parts(report: Report, results: Results) -> Iterator[str]:
    """Return the report's headings, paragraphs and tables, between which there are empty lines."""
    yield "# Message tracking: the document's experiment, run again"
    yield (
        "The document is *Low-Overhead Message Tracking for Distributed Messaging*: one broker, 200 publishers on ten"
        " topics each, 500 subscribers of one topic each, 500 topics, 5000 messages a second. Its configurations are"
        " run on a model of the scheme as it is written, with a key for each message; ours really, with a broker and"
        " clients on this machine, where a batch is a key."
    )
    yield "## The document's claims"
    yield ", ".join(f"{verdict}: {count}" for verdict, count in report.counts().items() if count) + "."
    head = "| claim | judged by | what we see | verdict |"
    yield table(head, claim_rows(claim for claim in report.claims if not claim.ours))
    yield "## What is ours"
    yield table(head, claim_rows(claim for claim in report.claims if claim.ours))
    yield "## Ours, really run"
    yield from _real(results)
    yield "## The configurations of Table 2"
    yield _readings()
    yield table(
        "| configuration | n | m | k | full | forces/s, publisher history | with deliveries | bytes a message,"
        " publisher history | with deliveries | gzip | gzip with deliveries | overwritten until full | memory, KB"
        " | a buffer for each subscriber: bytes | gzip | forces/s | memory, KB |",
        _configuration_rows(results),
    )
    yield "## Figures"
    yield from (f"![{figure.shows}]({figure.file})" for figure in FIGURES)


def _real(results: Results) -> Iterator[str]:
    if not results.runs:
        yield "Nothing was really run (--no-real)."
    else:
        load, first = results.load, results.runs[0]
        yield (
            f"{load.publishers} publishers, {load.subscribers} subscribers, {load.topics} topics,"
            f" {load.per_s:,g} messages a second for {first.seconds:g} s, in"
            f" {len(results.runs) // len(TRACKINGS)} round(s); T_p = {results.persist_s:g} s. Broker, publishers,"
            " subscribers and the one who sends latency messages (each put when the one before has come back) are four"
            " processes on this machine; the document had five machines, and runs of half an hour."
            + ("" if load == DOCUMENT else " **This is not the document's load.**")
        )
        behind = [run.tracking for run in results.runs if not run.keeps_up]
        if behind:
            yield (
                f"**This machine did not keep up with the load in {len(behind)} of {len(results.runs)} runs**"
                f" ({', '.join(behind)}): their latencies are those of waiting lines. Give a lower --rate."
            )
        yield table(
            "| tracking | round trip, mean, ms | p50 | p99 | put | delivered | messages a batch | broker, of a core"
            " | memory, MB | written, KB/s | notes | saves | saved, bytes a note | packed, bytes a note | bytes a"
            " message |",
            _run_rows(results),
        )
    yield (
        "Bytes a message count its notes in the publisher history and in those of its subscribers. A short run has few"
        " notes for each subscriber, and those stay exact; were every message a batch, and as many notes there as are"
        " packed at once:"
    )
    yield table(
        "| tracking | notes | histories | filters | exact notes | saved, bytes a note | packed, bytes a note, all"
        " included | gzip | bytes a message |",
        (
            [
                name, f"{room.notes:,}", f"{room.histories:,}", f"{room.filters:,}", f"{room.exact:,}",
                f"{room.saved_bytes / room.notes:.2f}", f"{room.bytes_per_entry:.2f}",
                f"{room.packed_gzip_bytes / room.notes:.2f}", f"{(1 + results.delivered) * room.bytes_per_entry:.2f}",
            ]
            for name, room in results.by_message.items()
        ),
    )  # fmt: skip


def _run_rows(results: Results) -> Iterator[Sequence[str]]:
    for run in results.runs:
        latency, room = run.latency_ms, run.room
        kept = ["", "", "", "", ""]
        if room is not None and room.notes:
            kept = [
                f"{room.notes:,}", f"{room.saves}", f"{room.saved_bytes / room.notes:.2f}",
                f"{room.bytes_per_entry:.2f}", f"{room.file_bytes / max(1, run.put_in_all):.2f}",
            ]  # fmt: skip
        yield [
            run.tracking, f"{latency['mean']:.1f}", f"{latency['p50']:.1f}", f"{latency['p99']:.1f}", f"{run.put:,}",
            f"{run.delivered:,} of {run.expected:,}", f"{run.put / max(1, run.batches):.2f}", f"{run.cpu:.2f}",
            f"{run.memory_bytes / 1e6:.0f}", f"{run.written_per_s / 1e3:,.0f}", *kept,
        ]  # fmt: skip


def _readings() -> str:
    return "\n".join(
        [
            "* The model has the load of the document, whatever --rate is. A buffer is stored when it is full, or T_p"
            " after it was begun; each store is a force. Bytes are divided by the messages that are in stored buffers.",
            "* Table 2 says which configurations fill their buffers: that fits one buffer at 5000 entries a second, for"
            " the publisher history, and for all deliveries together. Section 3.2 has a history for each subscriber,"
            " which gets ten messages a second: the last columns.",
            "* A buffer of ids for all deliveries would have to say to whom, too: the document counts 16 bytes, and so"
            " do we.",
            "* The document hashes with MD5, we with a mix of 64 bits; filters of one fill have the same size either"
            " way. gzip is level 6, of each stored buffer (of eight of each kind, evenly chosen).",
            "* Subscribers are drawn at random, each for one topic: a third of the topics has none, where the document"
            " has a small portion; both have as many deliveries as messages. Publishers put at an even pace, at random"
            " within each gap.",
            "* Latency of ASYNC and BF as the document has them is not measured: its disks took what ours do not."
            " Forces a second stand for it.",
        ]
    )  # fmt: skip


def _configuration_rows(results: Results) -> Iterator[Sequence[str]]:
    for one in results.outcomes:
        chosen = one.configuration
        if chosen.strategy == "NULL":
            yield [chosen.name, *[""] * 16]
            continue
        shape = [f"{chosen.bits:,}", f"{chosen.hashes}"] if chosen.bits else ["", ""]
        yield [
            chosen.name, f"{chosen.capacity:,}", *shape, f"{one.publisher.full:.0%}",
            f"{one.forces_per_s('publisher'):.2f}", f"{one.forces_per_s('together'):.2f}",
            f"{one.bytes_per_message('publisher'):.2f}", f"{one.bytes_per_message('together'):.2f}",
            f"{one.gzip_per_message('publisher'):.2f}", f"{one.gzip_per_message('together'):.2f}",
            f"{one.overwritten_per_message('together'):.2f}", f"{one.memory_bytes('together') / 1e3:.0f}",
            f"{one.bytes_per_message('each'):,.0f}", f"{one.gzip_per_message('each'):.1f}",
            f"{one.forces_per_s('each'):.0f}", f"{one.memory_bytes('each') / 1e3:,.0f}",
        ]  # fmt: skip
