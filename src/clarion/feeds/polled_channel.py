"""What a node remembers of a channel that it polls, and what follows from each answer. Pure.

A node keeps hashes and validators alone; versions live at the broker. Forgetting all of it costs one unconditional
request, and never an update.
"""

from __future__ import annotations

from collections import deque

import msgspec

from clarion.feeds.channels import Rules, channel_hash, channel_id
from clarion.feeds.politeness import LONGEST_WAIT_S, Dice, backoff_s
from clarion.feeds.poll_schedule import Slot, Watched, next_poll_s
from clarion.feeds.versions import Found, Head, Outcome

_FOUND_KEPT = 16  # versions that wait for the broker, of one channel
_AT_ONCE_S = 1.0  # for a poll that is due at once to be spread over
_NEVER_S = 0.0
_SETTLED_FORM = 3
_FIRST_AGAIN_S = 60.0  # where nobody has seen it yet, and somebody has just subscribed


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a channel cannot be had; in the state `trouble_name(topic)` while that is so."""

    kind: str
    text: str
    at_us: int
    failures: int = 0  # in a row


_troubles = msgspec.json.Decoder(Trouble)


def trouble_name(topic: str) -> str:
    """Return the name of the state that tells why a channel cannot be had."""
    return f"clarion/feeds/troubles/{channel_hash(topic)}"


def read_trouble(value: bytes | None) -> Trouble | None:
    """Return the trouble that a state tells of; None where it tells of none."""
    try:
        return None if value is None else _troubles.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class PolledChannel:
    """A channel at one node."""

    def __init__(self, topic: str, url: str, host: str, rules: Rules, subscribers: int) -> None:
        self.topic = topic
        self.name = channel_hash(topic)
        self.url = url
        self.rules = rules
        self.watched = Watched(channel_id(topic), host, subscribers)
        self.head: Head | None = None
        self.head_known = False  # whether the broker was asked for it
        self.etag = ""
        self.last_modified = ""
        self.body_hash = ""
        self.hash = ""  # of the content seen last
        self.size = 0
        self.max_age_s = 0.0  # for which the last answer is fresh, where that is respected
        self.failures = 0
        self.trouble: Trouble | None = None
        self.not_before_s = _NEVER_S  # in the broker's time: after errors
        self.polled_at_s = _NEVER_S
        self.polling = False
        self.committing = False
        self.soon = False  # poll it at once: a hub said that there is news, or what was found is in doubt
        self.found: deque[Found] = deque()
        self.dropped = 0  # of what was found, as too much waited for the broker
        self._doubted = ""  # the hash of an old version that came again
        self._late_us = 0  # until when the version was seen that something found was too late for
        self._other_form = 0  # how often running it was another kind of thing than the version before

    def on_record(self, url: str, rules: Rules, subscribers: int) -> None:
        """Take in what people want of it now; by other rules other things count, and all is looked at anew."""
        self.watched = self.watched._replace(subscribers=subscribers)
        if (url, rules) != (self.url, self.rules):
            self.url, self.rules = url, rules
            self.forget()

    def on_head(self, head: Head | None) -> None:
        """Take in the newest version at the broker. Where it is another than what was seen last, the next request is
        unconditional: whoever is behind, it comes to light."""
        first = not self.head_known
        self.head, self.head_known = head, True
        if head is None:
            self.forget()
        elif first:
            self.etag, self.last_modified = head.etag, head.last_modified
            self.hash, self.size = head.hash, head.size
        elif head.hash != self.hash and not self.found and not self._doubted:
            self.forget()

    def forget(self) -> None:
        """Have the next request be unconditional, and its answer be read."""
        self.etag = self.last_modified = self.body_hash = self.hash = ""

    def due_s(self, slot: Slot, now_s: float, spread: float, silent_s: float = 0.0) -> float:
        """Return when it is to be polled next, in the broker's time: at once where nobody has seen it yet or a hub says
        that there is news, else at the slot's next moment. `spread`, from 0 to 1, keeps many from being at once. An
        owner makes up for a moment within the last `silent_s`: the owner before it may have failed by then."""
        if self.soon or (slot.is_owner and self.head_known and self.head is None and not self.polled_at_s):
            return max(now_s + _AT_ONCE_S * spread * (not self.soon), self._not_before_s(now_s, slot))
        polled_at_s = self.polled_at_s if self.polled_at_s <= now_s + slot.interval_s else now_s  # by a wrong clock
        earliest_s = max(now_s, self._not_before_s(now_s, slot), polled_at_s + self.max_age_s)
        if slot.is_owner and earliest_s == now_s:
            missed_s = next_poll_s(slot, now_s - silent_s)
            if self.polled_at_s < missed_s <= now_s:
                return now_s + _AT_ONCE_S * spread
        return next_poll_s(slot, earliest_s)

    def _not_before_s(self, now_s: float, slot: Slot) -> float:
        """Return until when it is left alone after errors; longer than any error asks for is by a wrong clock."""
        return self.not_before_s if self.not_before_s <= now_s + max(LONGEST_WAIT_S, slot.interval_s) else now_s

    # What an answer means.

    def on_worked(self) -> bool:
        """It can be had; tell whether it could not before."""
        was, self.trouble = self.trouble, None
        return was is not None

    def on_unchanged(self) -> None:
        """The server has nothing new."""
        self.failures = 0

    def needs_reading(self, body_hash: str) -> bool:
        """Tell whether a body is another than the last."""
        return body_hash != self.body_hash

    def on_found(self, found: Found, body_hash: str) -> bool:
        """Take in what was read in a body; tell whether it is to be committed."""
        self.failures = 0
        self.etag, self.last_modified, self.size = found.etag, found.last_modified, found.size
        self.body_hash = body_hash
        if found.content.hash == self.hash:
            return False
        self.hash = found.content.hash
        if self._late_us and not self.soon:  # it was asked for after that version was known, whatever clocks say
            found = found._replace(began_us=max(found.began_us, self._late_us + 1))
        self.found.append(found)
        while len(self.found) > _FOUND_KEPT:
            self.found.popleft()
            self.dropped += 1
        return True

    def is_settled(self, found: Found, *, is_owner: bool) -> bool:
        """Tell whether an old version that comes again counts, or a page in the place of a feed: where the owner has
        seen it a few times running."""
        return is_owner and (found.content.hash == self._doubted or self._other_form >= _SETTLED_FORM)

    def on_outcome(self, found: Found, outcome: Outcome, *, is_owner: bool) -> None:
        """Take in what became of something found."""
        self.head, self.head_known = outcome.head, True
        if outcome.kind == "late":
            self._late_us = outcome.head.seen_until_us
            self.forget()
            self.soon = True
            return
        self._late_us = 0
        if outcome.kind == "old" and is_owner:
            self._doubted = found.content.hash
            self.forget()  # so that it is looked at once more
        else:
            self._doubted = ""
            self._other_form = 0

    def on_other_form(self) -> None:
        """What was found is another kind of thing than the version before: perhaps a server in trouble."""
        self._other_form += 1
        self.forget()

    def on_failure(
        self, trouble: Trouble, now_s: float, slot_s: float, retry_after_s: float | None, dice: Dice
    ) -> None:
        """The channel could not be had: leave it alone for a while."""
        self.failures += 1
        self.trouble = msgspec.structs.replace(trouble, failures=self.failures)
        wait_s = slot_s if self.head is not None else min(slot_s, _FIRST_AGAIN_S)
        self.not_before_s = now_s + backoff_s(self.failures, wait_s, retry_after_s, dice)

    def is_news(self) -> bool:
        """Tell whether that it fails is worth a line: the first time, and then ever more rarely."""
        return self.failures & (self.failures - 1) == 0

    def is_to_be_told(self) -> bool:
        """Tell whether somebody should know by now that it fails: from the second time on, as often as it is news."""
        return self.failures >= 2 and self.is_news()
