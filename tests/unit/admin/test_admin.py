"""An Admin asks for what it was told to, and tells what the broker answered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.admin.answering import Answers, batch, subscription_values, topic_values

from clarion.admin import Admin, PublisherReport, Replayed, TopicUsage
from clarion.admin import admin as admin_module
from clarion.admin.admin import as_ranges, browse
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, NotSubscribed, PermanentError, StoredDataCorrupt
from clarion.model.ids import MessageId
from clarion.model.options import SubscriptionOptions, TopicSettings
from clarion.session.exchange import Reply
from clarion.subscriber import Message
from clarion.wire import bodies, link_bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def admin(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setattr(admin_module, "ThreadSession", lambda _url, _core: answers)
    with Admin() as admin:
        yield admin


def _row(topic: bytes, stored_bytes: int, *names: bytes) -> bodies.TopicRow:
    return bodies.TopicRow(topic, "keep", 0, 5, stored_bytes, tuple((name, 0, 0) for name in names))


def test_configuring_sends_only_what_was_named(admin: Admin, answers: Answers) -> None:
    for _ in range(3):
        answers.add(bodies.Done())
    admin.configure_topic("audit", retention="keep")
    admin.configure_topic("audit", max_age_s=60, at_bound="trim", ttl_s=None)
    admin.configure_topic("audit", retention="until-read", max_bytes=0)
    assert answers.asked_for(Kind.CONFIGURE) == [
        bodies.Configure(b"audit", "keep", {}),
        bodies.Configure(b"audit", "", {"max_age_s": 60, "at_bound": "trim"}),
        bodies.Configure(b"audit", "until-read", {"max_bytes": 0}),
    ]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_agee_s": 5}, TypeError),
        ({"max_bytes": "10GB"}, TypeError),
        ({"max_bytes": 1.5}, TypeError),
        ({"max_bytes": -1}, InvalidRequest),
        ({"at_bound": "drop"}, InvalidRequest),
        ({"retention": "forever"}, InvalidRequest),
    ],
)
def test_what_no_topic_can_be_set_to_is_told_before_anybody_is_asked(
    admin: Admin, answers: Answers, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.configure_topic("audit", **settings)
    assert answers.asked == []


def test_topics_come_page_after_page(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.TopicRows((_row(b"a", 1), _row(b"b", 1)), True))
    answers.add(bodies.TopicRows((_row(b"c", 1),), False))
    assert [row.topic for row in admin.topics()] == [b"a", b"b", b"c"]
    assert [body.after for body in answers.asked_for(Kind.TOPICS)] == [b"", b"b"]


def test_a_description_has_times_settings_and_options(admin: Admin, answers: Answers) -> None:
    one = subscription_values(lag=3, oldest_unacked_at_us=2_000_000, options={"shared": True, "new_here": 1})
    values = topic_values(
        first_offset=5,
        next_offset=8,
        oldest_at_us=1_000_000,
        settings={"max_bytes": 7, "of_a_newer_broker": True},
        subscriptions=[one],
        more="ignored",
    )
    answers.add(bodies.Description(values))
    told = admin.describe_topic("orders")
    assert (told.topic, told.messages) == (b"orders", 3)
    assert told.settings == TopicSettings(max_bytes=7)
    assert told.oldest_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    (subscription,) = told.subscriptions
    assert (subscription.topic, subscription.name, subscription.lag) == (b"orders", b"billing", 3)
    assert subscription.options == SubscriptionOptions(shared=True)
    assert subscription.oldest_unacked_at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert subscription.seen_at is None


def test_a_description_that_makes_no_sense_is_a_typed_error(admin: Admin, answers: Answers) -> None:
    for values in ({}, topic_values(next_offset="many"), topic_values(subscriptions=[{}])):
        answers.add(bodies.Description(values))
        with pytest.raises(InvalidRequest, match="cannot be read"):
            admin.describe_topic("orders")


def test_a_subscription_is_described_or_not_there(admin: Admin, answers: Answers) -> None:
    for _ in range(2):
        answers.add(bodies.Description(topic_values(subscriptions=[subscription_values(cursor=4)])))
    assert admin.describe_subscription("orders", "billing").cursor == 4
    with pytest.raises(NotSubscribed, match="audit does not subscribe to orders"):
        admin.describe_subscription("orders", "audit")


def test_all_subscriptions_leave_out_topics_without_and_those_deleted_meanwhile(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.TopicRows((_row(b"a", 1, b"x"), _row(b"b", 1), _row(b"c", 1, b"y"), _row(b"d", 1, b"z")), False))
    there = [
        topic_values(topic, subscriptions=[subscription_values(name)]) for topic, name in ((b"a", b"x"), (b"d", b"z"))
    ]
    answers.add(bodies.Descriptions(tuple(there)))
    assert [(one.topic, one.name) for one in admin.subscriptions()] == [(b"a", b"x"), (b"d", b"z")]


def test_subscriptions_of_one_topic_and_of_a_pattern(admin: Admin, answers: Answers) -> None:
    answers.refuse(Code.NO_TOPIC)
    with pytest.raises(NoTopic):
        list(admin.subscriptions("alerts"))
    answers.add(bodies.TopicRows((_row(b"alerts/a", 1, b"x"), _row(b"orders", 1, b"x")), False))
    answers.add(bodies.Descriptions((topic_values(b"alerts/a", subscriptions=[subscription_values(b"x")]),)))
    assert [one.topic for one in admin.subscriptions("alerts/*")] == [b"alerts/a"]


def test_usage_is_what_is_stored_and_staged_largest_first(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.TopicRows((_row(b"a", 10), _row(b"b", 5)), False))
    answers.add(bodies.Descriptions((topic_values(b"a"), topic_values(b"b", staged_bytes=20))))
    assert admin.usage() == [TopicUsage(b"b", 5, 20), TopicUsage(b"a", 10, 0)]


def test_a_broker_that_describes_one_topic_at_a_time_is_asked_for_each(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.Refused(Code.MALFORMED, "request kind 48 is not known here"), kind=Kind.INVALID)
    answers.add(bodies.Description(topic_values(b"a")))
    answers.add(bodies.Refused(Code.NO_TOPIC, "there is no topic b here"), kind=Kind.REFUSED)
    assert [told.topic for told in admin.describe_topics(iter(["a", "b", "a"]))] == [b"a"]
    with pytest.raises(TypeError, match="topics is a list"):
        list(admin.describe_topics("orders"))


@pytest.mark.parametrize(
    ("start", "wire"),
    [
        ("new", ("new", 0)),
        ("end", ("new", 0)),
        ("earliest", ("earliest", 0)),
        (120, ("offset", 120)),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), ("time", 1_000_000)),
    ],
)
def test_seeking_and_subscribing_take_the_same_starts(
    admin: Admin, answers: Answers, start: Any, wire: tuple[str, int]
) -> None:
    answers.add(bodies.Done())
    answers.add(bodies.Subscribed(0))
    admin.seek("orders", "billing", start)
    assert admin.subscribe("orders", "billing", start)
    (seek,), (subscribe,) = answers.asked_for(Kind.SEEK), answers.asked_for(Kind.SUBSCRIBE)
    assert (seek.start, seek.at) == (subscribe.start, subscribe.at) == wire


def test_subscribing_carries_the_options_and_says_what_was_there(admin: Admin, answers: Answers) -> None:
    there = SubscriptionOptions(shared=True, order="key")
    for _ in range(2):
        answers.add(bodies.Subscribed(0, there), kind=Kind.ALREADY_SUBSCRIBED)
    assert not admin.subscribe("orders", "billing", shared=True, order="key", lease_s=30, expires_s=60)
    (body,) = answers.asked_for(Kind.SUBSCRIBE)
    assert body.options == SubscriptionOptions(shared=True, order="key", lease_s=30, expires_s=60)
    with pytest.raises(InvalidRequest, match="already"):
        admin.subscribe("orders", "billing")
    with pytest.raises(InvalidRequest, match="shared"):
        admin.subscribe("orders", "billing", order="key")


def test_unsubscribing_says_whether_there_was_something_to_end(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.Done())
    answers.refuse(Code.NOT_SUBSCRIBED)
    assert admin.unsubscribe("orders", "billing")
    assert not admin.unsubscribe("orders", "billing")


def test_an_offset_is_asked_for_by_time(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.OffsetIs(7))
    assert admin.offset_at("orders", datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 7
    assert answers.asked_for(Kind.FIND_OFFSET) == [bodies.FindOffset(b"orders", 1_000_005)]


def test_purging_all_or_below_an_offset(admin: Admin, answers: Answers) -> None:
    for messages in (7, 0):
        answers.add(bodies.Description(topic_values(b"orders", next_offset=7, number=5)))
        answers.add(bodies.Purged(messages))
    assert admin.purge("orders") == 7
    assert admin.purge("orders", below=0) == 0
    assert [(body.below, body.number) for body in answers.asked_for(Kind.PURGE)] == [(7, 5), (0, 5)]


@pytest.mark.parametrize(("told", "number"), [({"number": 5}, 5), ({}, 0)])
def test_a_deletion_names_the_very_topic_where_the_broker_tells_which_it_is(
    admin: Admin, answers: Answers, told: dict[str, int], number: int
) -> None:
    answers.add(bodies.Description(topic_values(b"orders", **told)))
    answers.add(bodies.Done())
    admin.delete_topic("orders")
    assert answers.asked_for(Kind.DELETE) == [bodies.Delete(b"orders", number)]


def test_dead_letters_have_what_their_headers_say(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.Description(topic_values(b"$dead/jobs", first_offset=4)))
    headers = {
        "color": b"red",
        "clarion-dead-topic": b"jobs",
        "clarion-dead-offset": b"17",
        "clarion-dead-subscription": b"workers",
        "clarion-dead-attempts": b"5",
        "clarion-dead-reason": "kapütt".encode(),
        "clarion-dead-id": b"00000001000000020000000000030004",
        "clarion-dead-at": b"1000000",
    }
    packed = batch([b"one", b"two", b"three"], b"k", headers)
    answers.add(bodies.Delivery(((4, 9_000_000),), 7, ((5, 6),)), packed, kind=Kind.MESSAGES)
    first, last = admin.dead_letters("jobs")
    assert answers.asked_for(Kind.READ)[0].name == b"$dead"
    assert (first.offset, last.offset, last.payload) == (4, 6, b"three")
    assert (first.topic, first.original_offset, first.subscription) == (b"jobs", 17, b"workers")
    assert (first.attempts, first.reason, first.id.counter) == (5, "kapütt", 4)
    assert first.at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert (first.key, first.headers, first.payload) == (b"k", {"color": b"red"}, b"one")


def test_a_dead_letter_without_headers_is_told_all_the_same(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.Description(topic_values(b"$dead/jobs")))
    odd = {"clarion-dead-attempts": b"many", "clarion-dead-id": b"short"}
    answers.add(bodies.Delivery(((0, 9_000_000),), 1), batch([b"one"], None, odd), kind=Kind.MESSAGES)
    (letter,) = admin.dead_letters("jobs")
    assert (letter.topic, letter.attempts, letter.original_offset) == (b"jobs", 0, -1)
    assert (letter.id.stamp, letter.at) == (3, datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC))


def test_no_dead_letters_and_no_topic_are_told_apart(admin: Admin, answers: Answers) -> None:
    answers.refuse(Code.NO_TOPIC)
    answers.add(bodies.Description(topic_values(b"jobs")))
    assert admin.dead_letters("jobs") == []
    answers.refuse(Code.NO_TOPIC)
    answers.refuse(Code.NO_TOPIC, "there is no topic jobs")
    with pytest.raises(NoTopic, match="no topic jobs"):
        admin.dead_letters("jobs")


def test_replaying_and_dropping_name_ranges_and_no_offsets_are_none(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.DeadDone(2, 1))
    answers.add(bodies.Description(topic_values(b"$dead/jobs", next_offset=12)))
    answers.add(bodies.DeadDone(2, 1))
    answers.add(bodies.DeadDone(2, 1))
    assert admin.replay_dead("jobs", [5, 3, 4, 9, 9]) == Replayed(2, 1)
    assert admin.replay_dead("jobs") == Replayed(2, 1)
    assert admin.drop_dead("jobs", [0]) == 2
    answers.refuse(Code.NO_TOPIC)
    answers.add(bodies.Description(topic_values(b"jobs")))
    assert admin.replay_dead("jobs", []) == Replayed(0, 0)
    answers.add(bodies.Description(topic_values(b"$dead/jobs")))
    answers.add(bodies.NoMessages(0), kind=Kind.NO_MESSAGES)
    assert admin.drop_dead("jobs", iter(())) == 0
    answers.refuse(Code.NO_TOPIC)
    answers.refuse(Code.NO_TOPIC)
    with pytest.raises(NoTopic):
        admin.drop_dead("jobs", [])
    named, everything, one = answers.asked_for(Kind.DEAD)
    assert named == bodies.Dead(b"jobs", "replay", ((3, 6), (9, 10)))
    assert (everything.action, everything.offsets) == ("replay", ((0, 12),)), "as they are when it is asked"
    assert one == bodies.Dead(b"jobs", "drop", ((0, 1),))


def test_many_dead_letters_are_done_in_several_requests(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.DeadDone(2, 1, 5))
    answers.add(bodies.DeadDone(1, 0))
    assert admin.replay_dead("jobs", [1, 2, 3, 4, 5, 6, 9]) == Replayed(3, 1)
    assert [body.offsets for body in answers.asked_for(Kind.DEAD)] == [((1, 7), (9, 10)), ((5, 7), (9, 10))]
    answers.add(bodies.Description(topic_values(b"$dead/jobs", next_offset=1500)))
    answers.add(bodies.DeadDone(1000, 0, 1000))
    answers.add(bodies.DeadDone(500, 0))
    assert admin.drop_dead("jobs") == 1500
    assert answers.asked_for(Kind.DEAD)[-1].offsets[0][0] == 1000


def test_state_and_staged_messages(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.StateIs(b"me", 3))
    answers.add(bodies.StagedCommitted(4, 100, False))
    answers.add(bodies.StagedCommitted(4, 0, False))
    state = admin.state("leader")
    assert (state.value, state.version) == (b"me", 3)
    assert admin.commit_staged("sink", 4, ["a", b"b"]) == (100, False)
    admin.drop_staged("sink", 4)
    assert answers.asked_for(Kind.COMMIT_STAGED) == [
        bodies.CommitStaged(b"sink", 4, (b"a", b"b")),
        bodies.CommitStaged(b"sink", 4, None, True),
    ]


def test_a_broker_to_forget_is_named_in_text_or_its_bytes(admin: Admin, answers: Answers) -> None:
    told = link_bodies.LinksAre({"name": "a", "broker": "00000001", "links": [], "brokers": [], "counters": {}})
    names: tuple[Any, ...] = ("röme", "röme".encode(), bytearray(b"rome"))
    for name in names:
        answers.add(told)
        assert admin.forget_broker(name).name == "a"
    assert [asked.forget for asked in answers.asked_for(Kind.LINKS)] == ["röme", "röme", "rome"]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        (5, TypeError, "the name of a broker is bytes or str, not int"),
        (None, TypeError, "the name of a broker is bytes or str, not NoneType"),
        (b"\xff", InvalidRequest, "the name of a broker is a text, not b'\\\\xff'"),
        ("", InvalidRequest, "say which broker to forget"),
    ],
)
def test_what_names_no_broker_is_told_before_anybody_is_asked(
    admin: Admin, answers: Answers, name: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        admin.forget_broker(name)
    assert not answers.asked


def test_stats_have_the_publishers_that_told_of_themselves(admin: Admin, answers: Answers) -> None:
    report = bodies.Report(b"orders", b"i" * 16, "recheck", 7, 0.05, 35.0, 140.5, -1, 3, 14, 2, 900)
    one = {**msgspec.structs.asdict(report), "age_s": 0.5, "new_here": 1}
    answers.add(bodies.Stats({"commits": 5, "publishers": [one]}))
    told = admin.stats()
    assert told["commits"] == 5
    (found,) = told["publishers"]
    assert isinstance(found, PublisherReport)
    assert (found.topic, found.batch_size, found.credit, found.age_s) == (b"orders", 7, -1, 0.5)


def test_a_broker_that_knows_of_no_reports_has_no_publishers(admin: Admin, answers: Answers) -> None:
    answers.add(bodies.Stats({"commits": 5}))
    assert admin.stats() == {"commits": 5, "publishers": []}


@pytest.mark.parametrize("publishers", [[{"topic": b"orders"}], [5], 5, [{"topic": 1}]])
def test_publishers_that_cannot_be_read_are_an_error(admin: Admin, answers: Answers, publishers: Any) -> None:
    answers.add(bodies.Stats({"publishers": publishers}))
    with pytest.raises(InvalidRequest, match="publishers"):
        admin.stats()


# Reading without a subscription goes from page to page and leaves out what is not to be seen.


_TIMES = 1_000_000


def _browse(answers: Answers, position: int = 0) -> list[Message]:
    def ask(body: bodies.Read) -> Reply:
        return answers.call(Kind.READ, body, timeout_s=1.0)

    return list(browse(ask, b"orders", position))


def _offsets(answers: Answers, position: int = 0) -> list[int]:
    return [message.offset for message in _browse(answers, position)]


def test_pages_follow_each_other_to_the_end() -> None:
    answers = Answers()
    answers.add(
        bodies.Delivery(((0, _TIMES), (3, _TIMES)), 7), batch([b"a"] * 3), batch([b"b"] * 2), kind=Kind.MESSAGES
    )
    answers.add(bodies.Delivery(((5, _TIMES),), 7), batch([b"c"] * 2), kind=Kind.MESSAGES)
    assert _offsets(answers) == list(range(7))
    assert [body.position for body in answers.asked_for(Kind.READ)] == [0, 5]
    answers.close()


def test_what_lies_before_the_position_is_left_out() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 3), batch([b"a", b"b", b"c"]), kind=Kind.MESSAGES)
    assert [message.payload for message in _browse(answers, 1)] == [b"b", b"c"]


def test_what_is_skipped_is_left_out_also_where_no_batch_comes() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 20, ((1, 3), (4, 10), (15, 16))), batch([b"a"] * 5), kind=Kind.MESSAGES)
    answers.add(bodies.Delivery((), 20, ((10, 20),)), kind=Kind.MESSAGES)
    assert _offsets(answers) == [0, 3]
    assert [body.position for body in answers.asked_for(Kind.READ)] == [0, 10]
    answers.close()


def test_a_skip_further_on_does_not_hide_what_comes_before_it() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 4, ((3, 4),)), batch([b"a"]), kind=Kind.MESSAGES)
    answers.add(bodies.Delivery(((1, _TIMES),), 4, ((3, 4),)), batch([b"a"] * 3), kind=Kind.MESSAGES)
    assert _offsets(answers) == [0, 1, 2]


def test_of_a_batch_only_what_was_asked_for_is_taken() -> None:
    answers = Answers()
    large = batch([b"a"] * 1500)
    answers.add(bodies.Delivery(((0, _TIMES),), 1500), large, kind=Kind.MESSAGES)
    answers.add(bodies.Delivery(((0, _TIMES),), 1500, ((1100, 1500),)), large, kind=Kind.MESSAGES)
    assert _offsets(answers) == list(range(1100))
    assert [body.position for body in answers.asked_for(Kind.READ)] == [0, 1000]


def test_an_answer_that_leads_nowhere_ends_it() -> None:
    answers = Answers()
    answers.add(bodies.Delivery((), 20), kind=Kind.MESSAGES)
    assert _offsets(answers, 10) == []
    answers.add(bodies.NoMessages(10), kind=Kind.NO_MESSAGES)
    assert _offsets(answers, 10) == []


def test_a_gap_is_named() -> None:
    answers = Answers()
    answers.refuse(Code.GONE, "offsets 0 to 9 of orders are no longer kept", (0, 10))
    with pytest.raises(MessagesGone, match="no longer kept") as gap:
        _browse(answers)
    assert (gap.value.topic, gap.value.start, gap.value.stop) == (b"orders", 0, 10)


def test_a_damaged_batch_is_not_shown() -> None:
    answers = Answers()
    damaged = bytearray(batch([b"a"]))
    damaged[-1] ^= 1
    answers.add(bodies.Delivery(((7, _TIMES),), 8), bytes(damaged), kind=Kind.MESSAGES)
    with pytest.raises(StoredDataCorrupt, match="orders at offset 7"):
        _browse(answers, 7)


def test_what_was_only_looked_at_cannot_be_acked() -> None:
    answers = Answers()
    answers.add(bodies.Delivery(((0, _TIMES),), 1), batch([b"a"]), kind=Kind.MESSAGES)
    (message,) = _browse(answers)
    with pytest.raises(PermanentError, match="nothing to ack"):
        message.ack()


@given(st.sets(st.integers(0, 50)))
def test_ranges_name_just_the_offsets(offsets: set[int]) -> None:
    ranges = as_ranges(list(offsets))
    assert {offset for start, stop in ranges for offset in range(start, stop)} == offsets
    assert all(one[1] < other[0] for one, other in pairwise(ranges))


_ID = MessageId(0xA04EB7AD, 1, 0x0CA3DFDC6850, 7)


class _Stored(NamedTuple):
    id: Any
    offset: int = 3


@pytest.mark.parametrize(
    "message",
    [_ID, str(_ID), str(_ID).upper(), str(_ID).encode(), str(UUID(str(_ID))), str(UUID(str(_ID))).encode(),
     _ID.to_bytes(), bytearray(_ID.to_bytes()), _Stored(_ID)],
)  # fmt: skip
def test_a_message_is_traced_by_its_id_in_any_form(admin: Admin, answers: Answers, message: Any) -> None:
    answers.add(link_bodies.Traced({"summary": "s"}, "text"))
    assert admin.trace(message).text == "text"
    assert answers.asked_for(Kind.TRACE) == [link_bodies.Trace(_ID.to_bytes())]


def test_what_became_of_a_message_is_told_without_looking_into_values(admin: Admin, answers: Answers) -> None:
    answers.add(link_bodies.Traced({"state": "unknown", "summary": "s", "unknown": {"oslo": "could not be asked"}}, ""))
    path = admin.trace(_ID)
    assert (path.state, path.summary, path.unknown) == ("unknown", "s", {"oslo": "could not be asked"})
    answers.add(link_bodies.Traced({}, ""))  # of another version
    path = admin.trace(_ID)
    assert (path.state, path.summary, path.unknown) == ("", "", {})


@pytest.mark.parametrize(
    "message",
    ["abc", "", str(_ID)[:-1] + "g", str(_ID) + "00", b"abc", b"\xff" * 32, "-" * 32, None, 5, tuple(_ID), _Stored(5),
     _Stored(None), _ID._replace(broker=-1), _ID._replace(stamp=1 << 48), MessageId(1, 1, 1, None)],  # type: ignore[arg-type]
)  # fmt: skip
def test_what_is_no_message_id_is_told_before_anybody_is_asked(admin: Admin, answers: Answers, message: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^a message id has 32 hexadecimal digits, not "):
        admin.trace(message)
    assert answers.asked == []
