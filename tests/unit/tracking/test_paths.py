"""Paths: trees from claims, errors of filters that neighbours deny, brokers that are unknown, and whom to ask."""

from __future__ import annotations

import random

import pytest

from clarion.model.ids import MessageId, stamp_from_unix_s, stamp_to_unix_s
from clarion.overlay.link_graph import Announcement, LinkGraph
from clarion.tracking.path_text import draw, to_dict
from clarion.tracking.paths import NOT_FOUND, Answer, Held, to_ask, trace
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
    assert path.state == "delivered"
    assert path.summary == "1 received it, by 5 brokers; 3 brokers are unknown, so others may have received it"
    nobody = trace(_MESSAGE, {})
    assert (nobody.state, nobody.unknown) == ("unknown", {"broker-00000001": "could not be asked"})
    assert nobody.summary == "nobody that could be asked received it; 1 broker is unknown"
    assert draw(nobody).endswith("could not be asked; by the id, it was put there")
    oslo, kiel = Answer(2, "oslo", (1, 4), is_reachable=False), Answer(4, "kiel", (2,), (_from(2, 0.0),))
    behind_two = trace(_MESSAGE, _answers(Answer(1, "rome", (2,), is_reachable=False), oslo, kiel))
    assert behind_two.said_of_unknown == {"rome": "by the id, it was put there", "oslo": "kiel had it from there"}


@pytest.mark.parametrize(
    "silent",
    [
        Answer(2, "oslo", (1, 3), is_reachable=False),
        Answer(2, "oslo", (1, 3), strategy="none"),
        Answer(2, "oslo", (1, 3), begins_us=_NOW_S * 1_000_000 + 1),
        Answer(2, "oslo", (1, 3), trouble="cannot read its histories: the disk failed"),
    ],
)
def test_that_nobody_received_it_is_said_only_where_all_who_may_have_had_it_answered(silent: Answer) -> None:
    rome = Answer(1, "rome", (2,), (_PUT,))
    path = trace(_MESSAGE, _answers(rome, silent))
    assert path.state == to_dict(path)["state"] == "unknown"
    assert path.summary == "nobody that could be asked received it; 1 broker is unknown"
    path = trace(_MESSAGE, _answers(rome, Answer(2, "oslo", (1, 3))))
    assert (path.state, path.summary) == ("not delivered", "published, nobody received it")
    waiting = Held(b"news", 3, _NOW_S * 1_000_000, ((b"$link/00000002", 0),), 1)
    path = trace(_MESSAGE, _answers(rome._replace(held=(waiting,)), silent))
    assert path.state == "on its way"
    assert path.summary == ("nobody that could be asked received it yet; 1 is still to get it; 1 broker is unknown")


def test_who_may_answer_another_time_is_apart_from_who_cannot_know_and_says_what_others_do() -> None:
    waiting = Held(b"news", 3, _NOW_S * 1_000_000, ((b"$link/00000004", 0),), 1)
    answers = _answers(
        Answer(1, "rome", (2, 3, 4, 5, 6, 7), (_PUT,), held=(waiting,)),
        Answer(2, "oslo", is_reachable=False),
        Answer(3, "bern", strategy="none"),
        Answer(4, "kiel", is_reachable=False),
        Answer(5, "metz", begins_us=_NOW_S * 1_000_000 + 1),
        Answer(6, "brno", (5,), (_from(2),)),
        Answer(7, "nice", strategy="none"),
        Answer(8, "oslo", is_reachable=False),
    )
    path = trace(_MESSAGE, answers)
    assert draw(path).splitlines()[-10:] == [
        "unknown until they answer:",
        "  oslo (00000002): could not be asked; brno had it from there",
        "  kiel: could not be asked; it is still to get it from rome",
        "  oslo (00000008): could not be asked; nobody says that it had it",
        "unknown for good, as they have no histories of that time:",
        "  metz: its histories begin later",
        "unknown, as they do not track now:",
        "  bern: keeps no histories",
        "  nice: keeps no histories",
        "  Start them with tracking (--set tracking=bloom; as before where their log says that it was given up):"
        " what was tracked before is known again then, and what was not stays unknown",
    ]
    told = to_dict(path)
    assert told["unknown"]["metz"] == "its histories begin later"
    assert told["said_of_unknown"] == {
        "oslo (00000002)": "brno had it from there", "kiel": "it is still to get it from rome"
    }  # fmt: skip


def test_brokers_that_a_message_was_given_up_for_are_told_unless_it_came_there_all_the_same() -> None:
    given_up = Claim(HistoryName("skipped", 1, 0, b"$link/00000002"), 0.0, ((0, 9),))
    rome = Answer(1, "rome", (2,), (_PUT, given_up))
    path = trace(_MESSAGE, _answers(rome, Answer(2, "oslo", (1,))))
    assert path.tree is not None
    assert (path.state, path.tree.receivers, path.tree.given_up) == ("not delivered", [], ["oslo"])
    assert path.summary == "published, nobody received it; it was given up for 1 broker"
    assert draw(path).splitlines()[1:] == [
        "rome published, wrong with 1e-05",
        "└── ✗ given up for oslo: it will not come there",
    ]
    assert to_dict(path)["path"]["given_up"] == ["oslo"]
    path = trace(_MESSAGE, _answers(rome, Answer(2, "oslo", (1,), (_from(1), _got(b"dan")))))
    assert path.state == "delivered"
    assert "given up" not in draw(path)


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
        near = tuple(graph.linked_with(broker))
        answers[broker] = Answer(broker, f"b{broker}", near, claims if broker in had else ())
    return answers, had


@pytest.mark.parametrize("seed", range(20))
def test_asking_neighbours_of_who_had_it_finds_all_who_did(seed: int) -> None:
    network, had = _routed(seed)
    answers: dict[int, Answer] = {}
    while following := to_ask(_MESSAGE, answers):
        answers |= {broker: network[broker] for broker in following}
    tree = trace(_MESSAGE, answers).tree
    assert tree is not None
    assert {stop.broker for stop in tree.walk()} == had
    assert answers.keys() == had.union(*(network[broker].linked for broker in had))


def test_who_is_still_to_get_a_message_is_told_with_its_place_in_the_log() -> None:
    topic = Claim(HistoryName("topic", 1, 0, b"news"), 0.0)
    waiting = ((b"$link/00000002", 0), (b"$link/00000003", 7), (b"late", 12))
    held = Held(b"news", 17, _NOW_S * 1_000_000 + 250_000, waiting, 5, received=(b"quick",))
    answers = _answers(
        Answer(1, "rome", (2, 3), (_PUT, topic, _got(b"anna", 0.0)), held=(held,)),
        Answer(2, "oslo", (1,), (_from(1, 0.0),), held=(Held(b"news", 3, _NOW_S * 1_000_000 + 400_000),)),
        Answer(3, "bern", (1,), is_reachable=False),
    )
    path = trace(_MESSAGE, answers)
    assert draw(path).splitlines() == [
        f"message {_MESSAGE} on news, stamped 2025-06-15T15:06:40.000Z: 2 received it, by 2 brokers; 4 are still to get"
        " it; 1 broker is unknown, so others may have received it",
        "rome published, wrong with 1e-05, on disk 2025-06-15T15:06:40.250Z at offset 17",
        "├── → anna received",
        "├── → quick received",
        "├── ⋯ late is still to get it, 12 before it",
        "├── ⋯ bern is still to get it over links, 7 before it",
        "├── … and 2 more are still to get it",
        "└── oslo routed, on disk 2025-06-15T15:06:40.400Z at offset 3",
        "unknown until they answer:",
        "  bern: could not be asked; it is still to get it from rome",
    ]
    told = to_dict(path)["path"]
    assert (told["offset"], told["committed"], told["waiting_count"]) == (17, "2025-06-15T15:06:40.250Z", 4)
    assert told["waiting"] == [
        {"subscriber": "late", "messages_before": 12}, {"broker": "bern", "messages_before": 7}
    ]  # fmt: skip


def test_a_broker_that_is_still_to_get_it_is_counted_once_where_it_was_put() -> None:
    at_rome, at_oslo = (Held(b"news", offset, _NOW_S * 1_000_000, ((b"$link/00000003", 0),), 1) for offset in (17, 3))
    path = trace(
        _MESSAGE,
        _answers(
            Answer(1, "rome", (2,), (_PUT,), held=(at_rome,)),
            Answer(2, "oslo", (1,), (_from(1, 0.0),), held=(at_oslo._replace(waiting=(*at_oslo.waiting, (b"anna", 2)),
                   waiting_count=2),)),
        ),
    )  # fmt: skip
    assert path.summary == "published, nobody received it yet; 2 are still to get it"
    assert path.tree is not None
    told = {stop.name: [each.name for each in stop.waiting] for stop in path.tree.walk()}
    assert told == {"rome": ["broker-00000003"], "oslo": ["anna"]}


def test_a_message_that_was_not_found_in_the_log_may_still_wait_there() -> None:
    lost = Held(b"news", NOT_FOUND, 0, ((b"late", 3),), 1, received=(b"early",))
    topic = Claim(HistoryName("topic", 1, 0, b"news"), 1e-5)
    path = trace(_MESSAGE, _answers(Answer(1, "rome", (), (_PUT, topic), held=(lost,))))
    assert (path.state, path.topics) == ("unknown", {b"news": 1e-5})
    assert path.summary == "published, nobody is known to have received it; it may still wait in the topic"
    assert draw(path).splitlines()[1:] == [
        "rome published, wrong with 1e-05, may still be in the topic: where in the log it is was not found"
    ]
    told = to_dict(path)["path"]
    assert (told["offset"], told["committed"], told["waiting"], told["may_wait"]) == (None, None, [], True)
    path = trace(_MESSAGE, _answers(Answer(1, "rome", (), (_PUT, topic, _got(b"anna", 0.0)), held=(lost,))))
    assert path.state == "delivered"
    assert path.summary == "1 received it, by 1 broker; it may still wait in the topic"
    found = Held(b"sport", 5, _NOW_S * 1_000_000)
    path = trace(_MESSAGE, _answers(Answer(1, "rome", (), (_PUT, topic), held=(lost, found))))
    assert (path.state, path.topics) == ("not delivered", {b"sport": 0.0})


def test_those_that_wait_on_several_topics_are_all_counted() -> None:
    helds = tuple(Held(topic, 5, _NOW_S * 1_000_000, ((topic, 0),), 1) for topic in (b"a", b"b"))
    path = trace(_MESSAGE, _answers(Answer(1, "rome", (), (_PUT,), held=helds)))
    assert path.summary == "published, nobody received it yet; 2 are still to get it"


def test_what_a_subscriber_went_past_is_not_received_unless_it_read_it_after_all() -> None:
    def skipped(name: bytes) -> Claim:
        return Claim(HistoryName("skipped", 1, 0, name), 0.0, ((4, 5),))

    claims = (_PUT, _got(b"anna", 0.0, ((2, 4),)), skipped(b"anna"), _got(b"bob"), skipped(b"bob"), skipped(b"carl"))
    path = trace(_MESSAGE, _answers(Answer(1, "rome", (), claims)))
    assert draw(path).splitlines()[2:] == [
        "├── → anna went past it (of its batch: 2-3)",
        "├── → bob received, wrong with 1e-05",
        "└── → carl went past it",
    ]
    assert path.summary == "1 received it, by 1 broker; 2 went past it"
    other = trace(_MESSAGE._replace(counter=3), _answers(Answer(1, "rome", (), claims)))
    assert other.summary == "2 received it, by 1 broker"


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


def test_a_broker_that_did_not_track_then_is_unknown_and_says_when() -> None:
    stamped_us = int(stamp_to_unix_s(_MESSAGE.stamp) * 1e6)
    gap = (stamped_us - 60_000_000, stamped_us + 60_000_000)
    path = trace(_MESSAGE, {_MESSAGE.broker: Answer(_MESSAGE.broker, "here", gaps=(gap,))})
    assert (path.state, path.unknown) == ("unknown", {"here": "did not track then"})
    had_it = Claim(HistoryName("publisher", _MESSAGE.broker))
    path = trace(_MESSAGE, {_MESSAGE.broker: Answer(_MESSAGE.broker, "here", claims=(had_it,), gaps=(gap,))})
    assert (path.state, path.unknown) == ("unknown", {})
    assert path.summary == "published, nobody is known to have received it"
    assert "so who received it then is not known" in draw(path)
    path = trace(_MESSAGE, {_MESSAGE.broker: Answer(_MESSAGE.broker, "here", gaps=((0, 1),))})
    assert (path.state, path.summary) == ("never seen", "no such message was published")


def test_histories_that_cannot_be_read_are_told() -> None:
    trouble = "cannot read its histories: the disk failed"
    path = trace(_MESSAGE, {_MESSAGE.broker: Answer(_MESSAGE.broker, "here", trouble=trouble)})
    assert (path.state, path.unknown) == ("unknown", {"here": trouble})
    assert "unknown until they answer:" in draw(path)
