"""Paths: trees from claims, errors of filters that neighbours deny, brokers that are unknown, and whom to ask."""

from __future__ import annotations

import random

import pytest

from clarion.model.ids import MessageId, stamp_from_unix_s
from clarion.overlay.link_graph import Announcement, LinkGraph
from clarion.tracking.paths import Answer, Asking, Held, draw, to_ask, to_dict, trace
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
    assert path.summary == "published, nobody received it"
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
    assert nobody.summary == "nobody that could be asked received it; 1 broker is unknown"


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


def test_who_is_still_to_get_a_message_is_told_with_its_place_in_the_log() -> None:
    topic = Claim(HistoryName("topic", 1, 0, b"news"), 0.0)
    waiting = ((b"late", 12), (b"$link/00000002", 0), (b"$link/00000003", 7))
    held = Held(b"news", 17, _NOW_S * 1_000_000 + 250_000, waiting, 5, received=(b"quick",))
    answers = _answers(
        Answer(1, "rome", (2, 3), (_PUT, topic, _got(b"anna", 0.0)), held=(held,)),
        Answer(2, "oslo", (1,), (_from(1, 0.0),), held=(Held(b"news", 3, _NOW_S * 1_000_000 + 400_000),)),
        Answer(3, "bern", (1,), is_reachable=False),
    )
    path = trace(_MESSAGE, answers)
    assert draw(path).splitlines() == [
        f"message {_MESSAGE} on news, stamped 2025-06-15T15:06:40.000Z: 2 received it, by 2 brokers; 4 are still to get"
        " it; 1 broker is unknown",
        "rome published, wrong with 1e-05, on disk 2025-06-15T15:06:40.250Z at offset 17",
        "├── → anna received",
        "├── → quick received",
        "├── ⋯ late is still to get it, 12 before it",
        "├── ⋯ bern is still to get it over links, 7 before it",
        "├── … and 2 more are still to get it",
        "└── oslo routed, on disk 2025-06-15T15:06:40.400Z at offset 3",
        "unknown:",
        "  bern could not be asked",
    ]
    told = to_dict(path)["path"]
    assert (told["offset"], told["committed"], told["waiting_count"]) == (17, "2025-06-15T15:06:40.250Z", 4)
    assert told["waiting"] == [
        {"subscriber": "late", "messages_before": 12}, {"broker": "bern", "messages_before": 7}
    ]  # fmt: skip


def test_what_a_subscriber_went_past_is_not_received_unless_that_very_message_is() -> None:
    def skipped(name: bytes) -> Claim:
        return Claim(HistoryName("skipped", 1, 0, name), 0.0, ((4, 5),))

    claims = (_PUT, _got(b"anna"), skipped(b"anna"), _got(b"bob", 0.0, ((4, 6),)), skipped(b"bob"), skipped(b"carl"))
    path = trace(_MESSAGE, _answers(Answer(1, "rome", (), claims)))
    assert draw(path).splitlines()[2:] == [
        "├── → anna went past it, wrong with 1e-05",
        "├── → bob received (of its batch: 4-5)",
        "└── → carl went past it",
    ]
    assert path.summary == "1 received it, by 1 broker; 2 went past it"
    other = trace(_MESSAGE._replace(counter=3), _answers(Answer(1, "rome", (), claims)))
    assert other.summary == "1 received it, by 1 broker; 1 received other messages of its batch only"


def test_a_filter_that_names_who_never_subscribed_to_the_topic_is_set_apart() -> None:
    answer = Answer(1, "rome", (), (_PUT, _got(b"anna"), _got(b"eve")), strangers=(b"eve",))
    path = trace(_MESSAGE, _answers(answer))
    assert path.summary == "1 received it, by 1 broker"
    (stop,) = path.unsupported
    assert ([each.subscriber for each in stop.receivers], stop.note) == (
        [b"eve"], "of subscribers that never subscribed to its topic"
    )  # fmt: skip


def test_of_topics_that_seem_to_have_it_the_sure_one_counts() -> None:
    def on(topic: bytes, chance: float) -> Claim:
        return Claim(HistoryName("topic", 1, 0, topic), chance)

    doubtful = trace(_MESSAGE, _answers(Answer(1, "rome", (), (_PUT, on(b"a", 1e-5), on(b"b", 1e-5)))))
    assert draw(doubtful).startswith(f"message {_MESSAGE} on a, wrong with 1e-05 or b, wrong with 1e-05, stamped")
    sure = trace(_MESSAGE, _answers(Answer(1, "rome", (), (_PUT, on(b"a", 1e-5), on(b"b", 0.0)))))
    assert sure.topics == {b"b": 0.0}
