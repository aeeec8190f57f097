"""Paths: trees from claims, errors of filters that neighbours deny, brokers that are unknown, and whom to ask."""

from __future__ import annotations

import random

import pytest

from clarion.model.ids import MessageId, stamp_from_unix_s
from clarion.overlay.link_graph import Announcement, LinkGraph
from clarion.tracking.paths import Answer, Asking, draw, to_ask, to_dict, trace
from clarion.tracking.tracker import Claim, HistoryName

_NOW_S = 1_750_000_000
_MESSAGE = MessageId(1, 9, stamp_from_unix_s(_NOW_S), 4)
_PUT = Claim(HistoryName("publisher", 1), 1e-5)


def _from(via: int, efpp: float = 1e-5) -> Claim:
    return Claim(HistoryName("routing", 1, via), efpp)


def _got(subscriber: bytes, efpp: float = 1e-5, parts: tuple[tuple[int, int], ...] = ()) -> Claim:
    return Claim(HistoryName("subscriber", 1, 0, subscriber), efpp, parts)


def _answers(*answers: Answer) -> dict[int, Answer]:
    return {answer.broker: answer for answer in answers}


def test_a_path_goes_from_the_publishers_broker_to_subscribers() -> None:
    path = trace(
        _MESSAGE,
        _answers(
            Answer(1, "rome", (2, 3), (_PUT, _got(b"anna"))),
            Answer(2, "oslo", (1, 4), (_from(1), _got(b"bob", 0.0, ((0, 3),)))),
            Answer(3, "bern", (1,), ()),
            Answer(4, "kiel", (2,), (_from(2, 0.0), _got(b"\xff", 0.0, ((2, 6),)))),
        ),
    )
    assert draw(path).splitlines() == [
        f"message {_MESSAGE}, stamped 2025-06-15T15:06:40.000Z: 2 received it, by 3 brokers; 1 received other messages"
        " of its batch only",
        "rome published, wrong with 1e-05",
        "├── → anna received, wrong with 1e-05",
        "└── oslo routed, wrong with 1e-05",
        "    ├── → bob did not receive (of its batch: 0-2)",
        "    └── kiel routed",
        "        └── → b64:_w== received (of its batch: 2-5)",
    ]
    told = to_dict(path)
    assert told["path"]["onward"][0]["onward"][0]["receivers"][0]["of_batch"] == [[2, 6]]
    assert (told["unsupported"], told["unknown"]) == ([], {})


def test_claims_that_the_broker_before_denies_are_unsupported() -> None:
    path = trace(
        _MESSAGE,
        _answers(
            Answer(1, "rome", (2, 3), (_PUT,)),
            Answer(2, "oslo", (1, 4), ()),
            Answer(3, "bern", (1,), (_got(b"eve"),)),
            Answer(4, "kiel", (2, 5), (_from(2), _got(b"dan"))),
            Answer(5, "metz", (4,), (_from(4),)),
        ),
    )
    assert path.tree is not None
    assert [stop.name for stop in path.tree.walk()] == ["rome"]
    assert [(stop.name, stop.state) for stop in path.unsupported] == [
        ("bern", "unsupported"), ("kiel", "unsupported"), ("metz", "unsupported")
    ]  # fmt: skip
    assert path.summary == "published, nobody received it yet"
    assert "unsupported, so most likely errors of filters:" in draw(path)


def test_when_its_broker_denies_a_message_only_what_is_exact_counts() -> None:
    rome = Answer(1, "rome", (2,), ())
    path = trace(_MESSAGE, _answers(rome, Answer(2, "oslo", (1,), (_from(1),))))
    assert path.tree is None
    assert path.summary == "no such message was published"
    assert [stop.name for stop in path.unsupported] == ["oslo"]
    path = trace(_MESSAGE, _answers(rome, Answer(2, "oslo", (1,), (_from(1, 0.0), _got(b"anna")))))
    assert path.tree is not None
    assert [(stop.name, stop.state) for stop in path.tree.walk()] == [("rome", "unknown"), ("oslo", "routed")]


def test_brokers_that_say_nothing_are_unknown_and_deny_nothing() -> None:
    answers = _answers(
        Answer(1, "rome", (2, 3), (_PUT,)),
        Answer(2, "oslo", (1, 4), is_reachable=False),
        Answer(3, "bern", (1, 5), strategy="none"),
        Answer(4, "kiel", (2,), (_from(2), _got(b"dan"))),
        Answer(5, "metz", (3, 6), begins_us=_NOW_S * 1_000_000 + 1),
        Answer(6, "brno", (5,), (_from(5),)),
    )
    path = trace(_MESSAGE, answers)
    assert path.tree is not None
    assert [(stop.name, stop.state) for stop in path.tree.walk()] == [
        ("rome", "published"), ("oslo", "unknown"), ("kiel", "routed"), ("metz", "unknown"), ("brno", "routed")
    ]  # fmt: skip
    assert path.unknown == {
        "oslo": "could not be asked", "bern": "keeps no histories", "metz": "its histories begin later"
    }  # fmt: skip
    assert path.summary == "1 received it, by 3 brokers; 3 brokers are unknown"
    nobody = trace(_MESSAGE, {})
    assert nobody.unknown == {"broker 1": "could not be asked"}
    assert nobody.summary == "nobody that could be asked received it yet; 1 brokers are unknown"


def test_what_is_sure_is_on_the_path_even_where_the_way_is_not_known() -> None:
    path = trace(
        _MESSAGE,
        _answers(
            Answer(1, "rome", (2,), (_PUT,)),
            Answer(2, "oslo", (1,), (_got(b"anna", 0.0), _got(b"eve"))),
            Answer(3, "bern", (4,), (_from(4, 0.0),)),
            Answer(4, "kiel", (3,), (_from(3, 0.0),)),
        ),
    )
    assert path.tree is not None
    assert [stop.name for stop in path.tree.walk()] == ["rome", "oslo", "bern", "kiel"]
    assert [[each.subscriber for each in stop.receivers] for stop in path.unsupported] == [[b"eve"]]


def _routed(seed: int) -> tuple[dict[int, Answer], set[int]]:
    """Return what brokers of a random network answer that routed a message to some, and who had it."""
    dice = random.Random(seed)
    links = {(broker, dice.randrange(1, broker)) for broker in range(2, 21)}
    links |= {(dice.randrange(1, 21), dice.randrange(1, 21)) for _ in range(15)}
    graph = LinkGraph()
    for broker in range(1, 21):
        linked = {other for pair in links for other in pair if broker in pair}
        graph.hear(Announcement(broker, f"b{broker}", b"", 1, tuple(sorted(linked))))
    had = {1}
    for broker in dice.sample(range(2, 21), 5):
        while broker not in had:
            had.add(broker)
            broker = graph.parent(1, broker) or 1
    answers = {}
    for broker in range(1, 21):
        parent = graph.parent(1, broker)
        claims = (_PUT,) if broker == 1 else (_from(parent or 0),)
        forwarded = tuple(other for other in had if graph.parent(1, other) == broker)
        answers[broker] = Answer(
            broker, f"b{broker}", tuple(graph.linked_with(broker)), claims if broker in had else (), forwarded=forwarded
        )
    return answers, had


@pytest.mark.parametrize("seed", range(20))
def test_all_ways_of_asking_find_the_same_path_with_fewer_questions(seed: int) -> None:
    network, had = _routed(seed)
    asked = {}
    ways: tuple[Asking, ...] = ("network", "neighbours", "forwarded")
    for way in ways:
        answers: dict[int, Answer] = {}
        while following := to_ask(_MESSAGE, answers, way):
            answers |= {broker: network[broker] for broker in following}
        tree = trace(_MESSAGE, answers).tree
        assert tree is not None
        assert {stop.broker for stop in tree.walk()} == had
        asked[way] = len(answers)
    assert asked["network"] == 20
    assert asked["network"] >= asked["neighbours"] >= asked["forwarded"] == len(had)
