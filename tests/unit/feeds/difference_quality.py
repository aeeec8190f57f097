"""How well the difference engine tells what a person would: precision and recall over the pairs in page_pairs.yaml.

Precision is the share of the changes told that a person would tell too, recall the share of a person's changes that
were told. `python -m tests.unit.feeds.difference_quality` prints both by form, and each pair that went wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import yaml

from clarion.feeds.channels import Rules
from clarion.feeds.content import read_version
from clarion.feeds.deltas import Change
from clarion.feeds.difference import difference

URL = "https://site.example/page"


class Pair(NamedTuple):
    """Two bodies with their content types, the rules, and the changes of a person: a kind, and texts that tell it."""

    name: str
    hard: bool
    held_out: bool  # never used to change the engine
    before: tuple[bytes, str]
    after: tuple[bytes, str]
    rules: Rules
    changes: list[list[str]]


class Outcome(NamedTuple):
    """What was told of a pair: how many changes, which of them a person would not tell, and which were not told."""

    pair: Pair
    form: str
    told: int
    wrong: list[Change]
    missed: list[list[str]]


class Quality(NamedTuple):
    """Precision and recall, and what they were computed from."""

    told: int
    right: int
    expected: int
    found: int

    @property
    def precision(self) -> float:
        """The share of what was told that is right."""
        return self.right / self.told if self.told else 1.0

    @property
    def recall(self) -> float:
        """The share of what should be told that was."""
        return self.found / self.expected if self.expected else 1.0


@cache
def pairs() -> list[Pair]:
    """Return the pairs that are kept."""
    kept = yaml.safe_load((Path(__file__).parent / "page_pairs.yaml").read_text("utf-8"))
    return [
        _pair(told, kept["frames"], kept["bodies"], part == "held_out")
        for part in ("pairs", "held_out")
        for told in kept[part]
    ]


def _pair(told: dict[str, Any], frames: dict[str, str], bodies: dict[str, str], held_out: bool) -> Pair:
    page = frames[told["frame"]] if "frame" in told else "BODY"
    page = page.replace("BODY", bodies.get(told["body"], told["body"]))
    after = page
    for old, new in told["edits"].items():
        assert old in after, (told["name"], old)
        after = after.replace(old, new)
    charsets = told.get("charset", ("utf-8", "utf-8"))
    html = told.get("frame") not in (None, "rss", "atom")
    says = told.get("says", ["text/html" if html else "application/xml"] * 2)
    bodies_sent = [
        text.replace("TITLE", "A title").encode(charset) for text, charset in zip((page, after), charsets, strict=True)
    ]
    return Pair(
        told["name"],
        told.get("hard", False),
        held_out,
        (bodies_sent[0], says[0]),
        (bodies_sent[1], says[1]),
        Rules(keep=tuple(told.get("keep", ())), leave_out=tuple(told.get("leave_out", ()))),
        told["changes"],
    )


def outcome(pair: Pair) -> Outcome:
    """Return what the engine tells of a pair, held against what a person does."""
    before = read_version(*pair.before, URL, pair.rules)
    after = read_version(*pair.after, URL, pair.rules)
    changes, _ = difference(before, after)
    wrong = [change for change in changes if not any(_told(change, expected) for expected in pair.changes)]
    missed = [expected for expected in pair.changes if not any(_told(change, expected) for change in changes)]
    return Outcome(pair, after.form, len(changes), wrong, missed)


def _told(change: Change, expected: list[str]) -> bool:
    kind, *texts = expected
    shown = " ".join(f"{change.title} {change.text} {change.before if kind == 'gone' else ''}".split())
    if change.id == "" and kind != "gone":
        shown = " ".join(change.text.split())  # of a page's piece the title is the heading above
    return change.kind == kind and any(text in shown.replace(" | ", " ") for text in texts)


def quality(outcomes: Iterable[Outcome]) -> Quality:
    """Return precision and recall over outcomes."""
    told = right = expected = found = 0
    for one in outcomes:
        told += one.told
        right += one.told - len(one.wrong)
        expected += len(one.pair.changes)
        found += len(one.pair.changes) - len(one.missed)
    return Quality(told, right, expected, found)


def report() -> str:
    """Return the figures by form as a table, and below it what went wrong."""
    outcomes = [outcome(pair) for pair in pairs()]
    groups = {form: [one for one in outcomes if one.form == form] for form in ("feed", "page", "lines", "bytes")}
    groups["held out"] = [one for one in outcomes if one.pair.held_out]
    groups["all but the hard"] = [one for one in outcomes if not one.pair.hard]
    groups["all"] = outcomes
    lines = ["                   pairs  told  right  expected  found  precision  recall"]
    for name, group in groups.items():
        all_of = quality(group)
        lines.append(
            f"{name:18s} {len(group):5d} {all_of.told:5d} {all_of.right:6d} {all_of.expected:9d} {all_of.found:6d} "
            f"{all_of.precision:10.3f} {all_of.recall:7.3f}"
        )
    for one in outcomes:
        if one.wrong or one.missed:
            lines.append(f"\n{'hard: ' if one.pair.hard else ''}{one.pair.name}")
            lines += [
                f"  wrong: {change.kind} {change.text or change.before or change.title!r}" for change in one.wrong
            ]
            lines += [f"  missed: {' | '.join(expected)}" for expected in one.missed]
    return "\n".join(lines)


def speed() -> str:
    """Return how long it takes to read a page and a feed of usual sizes, and to compare them with ones that changed."""
    paragraph = "<div><p>The council voted on Monday to build a second bridge for 48 million euros.</p></div>"
    article = f"<html><body><nav>Home</nav><main><h1>A</h1>{paragraph * 700}</main><footer>2026</footer></body></html>"
    item = "<item><guid>%d</guid><title>News</title><link>/%d</link><description>&lt;p&gt;%s</description></item>"
    listed = "".join(item % (at, at, "Words of a teaser. " * 30) for at in range(30))
    feed = f'<rss version="2.0"><channel><title>T</title>{listed}</channel></rss>'
    lines = []
    for name, before, old, new in (("page", article, "<h1>A</h1>", "<h1>B</h1>"), ("feed", feed, "News", "Other news")):
        bodies = before.encode(), before.replace(old, new, 1).encode()
        versions = [read_version(body, "text/html", URL, Rules()) for body in bodies]
        began_s = process_time()
        for _ in range(20):
            read_version(bodies[1], "text/html", URL, Rules())
        read_s = process_time()
        for _ in range(20):
            difference(*versions)
        compared_s = process_time()
        lines.append(
            f"a {name} of {len(bodies[1]) / 1000:.0f} KB: read in {(read_s - began_s) * 50:.1f} ms, "
            f"compared in {(compared_s - read_s) * 50:.2f} ms"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{report()}\n\n{speed()}\n")
