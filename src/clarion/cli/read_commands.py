"""`clarion get`, `browse` and `state get`: print messages, and ack those that whoever reads the output took."""

from __future__ import annotations

import array
import fcntl
import functools
import os
import select
import stat
import sys
import termios
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Literal

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command, no_answer_told, waiting_told
from clarion.cli.command_errors import ExitCode, end_cleanly_on_sigterm, note
from clarion.cli.command_options import (
    Start,
    StateName,
    SubscriberName,
    Topic,
    TopicOrPattern,
    option,
    read_duration_s,
    read_number,
    read_start,
)
from clarion.cli.output import (
    console,
    counted,
    json_line,
    json_lines,
    local_time,
    payload_glance,
    print_json,
    standard_output,
    table_of,
    text_lines,
    text_lines_with_topic,
    text_or_base64,
    value_text,
    whole_payloads,
)
from clarion.model.errors import MessagesGone, MessagesUnreadable, NotSubscribed, Unreachable
from clarion.model.names import is_pattern, shell_name, to_text
from clarion.wire.batch import BadBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clarion.admin import Admin
    from clarion.cli.broker_clients import ClientNotes
    from clarion.subscriber import Message, MessageBatch, Subscriber

_MANY = 65_536
_FOLLOW_WAIT_S = 2.0  # then it looks whether anybody still reads what it prints


@broker_command
def get(
    call: BrokerCall,
    topic: TopicOrPattern,
    name: SubscriberName,
    most: int | None = option(None, "--max N", "End after so many.", show_default="all there are"),
    wait_s: float = option(
        "0s", "--wait TIME", "End when no message came for so long (60s, 5m).", parser=read_duration_s
    ),
    follow: bool = option(False, "--follow", "Go on for ever, also while the broker is away."),
    subscribe: bool = option(False, "--subscribe", "Subscribe first, if that is not done yet."),
    start: Start = "new",
    no_newline: bool = option(False, "--no-newline", "Print the bytes of the messages and nothing between them."),
    nack: str | None = option(
        None,
        "--nack REASON",
        "Of a shared subscription: print them, but give them back as failed, to be tried again or to become"
        " dead letters. Needs --max.",
    ),
) -> None:
    """Print the messages that a subscriber has not read yet, one a line.

    A message counts as read once it is in the file, on the terminal, or taken out
    of the pipe by the next program; the rest comes again next time. Where that
    program goes away, the last few that it took may come again, too, and that is
    told. One consumer reads a subscription at a time: a second `get` with the
    same name takes over from the first. A subscription made with --shared is
    read by many at a time, and each message goes to one.

    \b
    Examples:
      clarion subscribe alerts --as reader
      clarion get alerts --as reader                      # all there are now
      clarion get alerts --as reader | head -1            # acks one
      clarion get alerts --as reader --max 1 --wait 60s   # wait for the next
      clarion get alerts --as reader --follow --json | jq .payload
      clarion get photos --as reader --max 1 --no-newline > photo.jpg
      clarion get audit --as me --subscribe --start earliest
      clarion get 'alerts/*' --as night-watch --follow    # topic, tab, message
      clarion get jobs --as workers --max 1 --nack 'cannot be read'

    With --json each line has topic, offset, id, key, headers, committed_at,
    attempt and payload; a payload that is not UTF-8 is in payload_b64 instead.
    Where there are no messages nothing is printed and the exit code is 3.
    Messages that are no longer kept are told on standard error, and reading goes
    on.
    """
    first = read_start(start)
    if follow and wait_s:
        raise typer.BadParameter("--follow waits for ever; leave --wait out")
    if no_newline and call.as_json:
        raise typer.BadParameter("give --json or --no-newline, not both")
    if start != "new" and not subscribe:
        raise typer.BadParameter("--start is for a new subscription; give --subscribe too")
    if nack is not None and most is None:
        raise typer.BadParameter("what is given back comes again at once; say with --max when it is enough")
    from clarion.subscriber import Subscriber

    writer = RecordWriter(standard_output())
    end_cleanly_on_sigterm()
    lines = text_lines_with_topic if is_pattern(topic) else text_lines
    shape = json_lines if call.as_json else whole_payloads if no_newline else lines
    with (
        no_answer_told(call.url),
        Subscriber(call.url, name, ack="explicit", timeout_s=call.timeout_s, prefetch=follow or most is None) as reader,
        waiting_told(call.url, call.timeout_s) as notes,
    ):
        try:
            if subscribe:
                reader.subscribe(topic, first)
            printed = _print_all(
                reader, topic, shape, writer, notes, most=most, wait_s=wait_s, follow=follow, nack=nack
            )
        except NotSubscribed:
            raise NotSubscribed(_how_to_subscribe(topic, name)) from None
        except BrokenPipeError:
            if writer.in_doubt:
                note(
                    f"whoever read the output went away; {counted(writer.in_doubt, 'message')} taken last may not have"
                    " been used, and will come again",
                    not_acked=writer.in_doubt,
                )
            raise
    if not printed:
        raise typer.Exit(ExitCode.NOTHING_THERE)


def _print_all(
    reader: Subscriber,
    topic: bytes,
    shape: Callable[[MessageBatch], list[bytes]],
    writer: RecordWriter,
    notes: ClientNotes,
    *,
    most: int | None,
    wait_s: float,
    follow: bool,
    nack: str | None,
) -> int:
    """Print and ack (or nack) until there is nothing more, or enough; return how many were printed."""
    printed = 0
    answered = False
    while most is None or printed < most:
        wanted = _MANY if most is None else min(_MANY, most - printed)
        usual_wait_s = _FOLLOW_WAIT_S if follow and answered else wait_s
        parts: list[MessageBatch] | None
        try:
            parts = reader.get_batches(topic, wanted, 0.0 if writer.in_doubt else usual_wait_s)
        except Unreachable:
            if not follow or not answered:
                raise
            writer.check_reader()
            continue  # for ever: the client itself has told, once
        except MessagesGone as gap:
            _note_passed_over(f"offsets {gap.start} to {gap.stop - 1} of {to_text(gap.topic)} are no longer kept", gap)
            parts = None
        answered, notes.for_ever = True, follow
        if parts is None:
            continue
        for part in parts:
            try:
                part.batch.open()
            except BadBatch as error:
                _tell_unreadable(part, error)
                continue
            writer.write(shape(part), functools.partial(_settle, part, nack))
            printed += len(part)
        if not parts and writer.in_doubt:
            writer.finish()
        elif not parts and not follow:
            break
        elif not parts:
            writer.check_reader()
    writer.finish()
    return printed


def _note_passed_over(why: str, error: MessagesGone | MessagesUnreadable) -> None:
    """Say which offsets are passed over, and why."""
    name = to_text(error.topic)
    note(f"{why}; going on after them", code=type(error).__name__, topic=name, start=error.start, stop=error.stop)


def _tell_unreadable(part: MessageBatch, error: BadBatch) -> None:
    """Say that messages cannot be printed; they count as read, or of a shared subscription as tried."""
    from clarion.wire.messages import unreadable

    told = unreadable(part, error)
    if part.attachment.consumer.stats()["shared"]:
        part.nack(reason=str(told))
    else:
        part.ack()
    _note_passed_over(str(told), told)


def _settle(part: MessageBatch, nack: str | None, start: int, stop: int) -> None:
    """Ack those messages of a part that were taken, or give them back where there is a reason to."""
    taken = part.cut(part.start + start, part.start + stop)
    if nack is None:
        taken.ack()
    else:
        taken.nack(reason=nack)


def _how_to_subscribe(topic: bytes, name: bytes) -> str:
    command = f"{shell_name(topic)} --as {shell_name(name)}"
    return (
        f"{to_text(name)} does not subscribe to {to_text(topic)}. Run: clarion subscribe {command};"
        f" or both at once: clarion get {command} --subscribe"
    )


_MOST_BYTES = 2**16  # handed over at once
_PART = 8  # of what was taken so far is handed over at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 0.02
_GRACE_MS = 50  # in which a reader that has enough goes away
OnTaken = Callable[[int, int], None]


class RecordWriter:
    """Hands records to whoever reads a descriptor, and says which of them that reader took.

    What is written to a file or a terminal is taken. A pipe or a socket hides it: a reader may go away and leave 64 KB
    behind that were written and never read. There only a few records are handed over at a time, first one by one,
    then an eighth of what was taken so far, and they count as taken when the system says that none is unread. Even
    then the reader may have read more than it wanted, as `head` does: all but the first of what was handed over
    together is in doubt until the reader comes back for more, or stays when there is no more.

    Systems other than Linux do not say what is unread; there, what was written is taken.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        hides = sys.platform == "linux" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))
        self._is_socket = stat.S_ISSOCK(mode)
        self._ask_unread = (termios.TIOCOUTQ if self._is_socket else termios.FIONREAD) if hides else None
        self._poll = select.poll()
        self._poll.register(descriptor, 0)  # errors and hang-ups are always told
        self._written_bytes = 0  # of what is just being handed over
        self._taken = 0  # records, in all
        self._doubtful: Callable[[], None] | None = None
        self.in_doubt = 0  # records taken, of which it is not known whether the reader wanted them

    def write(self, records: Sequence[bytes], on_taken: OnTaken) -> None:
        """Write records and wait until they are taken; `on_taken(start, stop)` tells which, perhaps at a later call.

        A reader that went away is BrokenPipeError, other trouble another OSError. Whatever ends it early, what was
        taken until then is told.
        """
        ends = list(accumulate(map(len, records)))
        start = 0
        while start < len(records):
            stop = self._stop(ends, start)
            self._hand_over(records[start:stop], start, on_taken)
            start = stop

    def finish(self) -> None:
        """Tell what is in doubt as taken, for the reader is still there and there is nothing more for it. A reader
        that went away is BrokenPipeError."""
        if self._doubtful is not None:
            if self._poll.poll(_GRACE_MS):
                raise BrokenPipeError
            self._settle()

    def check_reader(self) -> None:
        """Raise BrokenPipeError where whoever reads went away."""
        if self._poll.poll(0):
            raise BrokenPipeError

    def _stop(self, ends: Sequence[int], start: int) -> int:
        if self._ask_unread is None:
            return len(ends)
        most_bytes = (ends[start - 1] if start else 0) + _MOST_BYTES
        stop = min(start + self._taken // _PART, bisect_right(ends, most_bytes, start))
        return max(stop, start + 1)

    def _hand_over(self, records: Sequence[bytes], start: int, on_taken: OnTaken) -> None:
        self._written_bytes = unread_bytes = 0
        data = memoryview(b"".join(records))
        try:
            while self._written_bytes < len(data):
                self._written_bytes += _write(self._descriptor, data[self._written_bytes :])
            self._wait_until_taken()
        except BaseException:
            unread_bytes = self._unread_bytes()
            raise
        finally:
            self._tell(start, count_whole(records, self._written_bytes - unread_bytes), on_taken)

    def _wait_until_taken(self) -> None:
        left_bytes = before_bytes = self._unread_bytes()
        pause_s = _FIRST_PAUSE_S
        while left_bytes:
            self.check_reader()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            now_bytes = self._unread_bytes()
            # Others may write to the same pipe meanwhile: what it loses was written before.
            left_bytes = min(left_bytes - max(0, before_bytes - now_bytes), now_bytes)
            before_bytes = now_bytes

    def _unread_bytes(self) -> int:
        if self._ask_unread is None:
            return 0
        answer = array.array("i", [0])
        fcntl.ioctl(self._descriptor, self._ask_unread, answer)
        if self._is_socket and self._poll.poll(0):  # what a peer that is gone left behind is not told
            return self._written_bytes
        return answer[0]

    def _tell(self, start: int, taken: int, on_taken: OnTaken) -> None:
        if not taken:
            return
        self._settle()  # the reader came back after those
        self._taken += taken
        if self._ask_unread is None or taken == 1:
            on_taken(start, start + taken)
            return
        on_taken(start, start + 1)
        self._doubtful, self.in_doubt = functools.partial(on_taken, start + 1, start + taken), taken - 1

    def _settle(self) -> None:
        if self._doubtful is not None:
            self._doubtful()
            self._doubtful, self.in_doubt = None, 0


def write_records(descriptor: int, records: Sequence[bytes]) -> None:
    """Write records in order; OSError where that fails."""
    view = memoryview(b"".join(records))
    while view:
        view = view[_write(descriptor, view) :]


def count_whole(records: Sequence[bytes], written_bytes: int) -> int:
    """Return how many records lie wholly within so many bytes."""
    return bisect_right(list(accumulate(map(len, records))), written_bytes) if written_bytes >= 0 else 0


def _write(descriptor: int, data: memoryview) -> int:
    while True:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:  # somebody made our output non-blocking
            select.select([], [descriptor], [])


_AT_ONCE = 1000
_SHOWN_CHARACTERS = 100  # characters of a payload in the table


@broker_command
def browse(
    call: BrokerCall,
    topic: Topic,
    position: str = option("earliest", "--from OFFSET|earliest", "First message to show."),
    last: int | None = option(None, "--last N", "Show the newest so many instead."),
    most: int = option(100, "--max N", "End after so many."),
) -> None:
    """Look at a topic's messages without a subscription.

    Nothing changes: whoever subscribes gets them all the same. Only what the
    topic still holds can be seen. With --json each line is as in `clarion get`.

    \b
    Examples:
      clarion browse orders
      clarion browse orders --last 10
      clarion browse orders --from 120000 --max 20
      clarion browse audit --max 1000000 --json > audit.jsonl

    Where there are no messages nothing is printed and the exit code is 3. Where
    those at the offset are no longer kept, the error says which there are.
    """
    start = read_position(position)
    if last is not None and start != "earliest":
        raise typer.BadParameter("give --from or --last, not both")
    end_cleanly_on_sigterm()
    with call.admin() as admin:
        if last is not None:
            told = admin.describe_topic(topic)
            start = max(told.first_offset, told.next_offset - last)
            most = last
        messages = islice(_readable(admin, topic, start), most)
        printed = 0
        while some := list(islice(messages, _AT_ONCE)):
            _print_messages(some, as_json=call.as_json, with_header=not printed)
            printed += len(some)
    if not printed:
        raise typer.Exit(ExitCode.NOTHING_THERE)


def _readable(admin: Admin, topic: bytes, start: int | Literal["earliest"]) -> Iterator[Message]:
    """Yield the messages from there on; what nobody can open is told, and passed over."""
    while True:
        try:
            yield from admin.browse(topic, start)
            return
        except MessagesUnreadable as told:
            start = told.stop
            _note_passed_over(str(told), told)


def read_position(text: str) -> int | Literal["earliest"]:
    """Read where to begin."""
    if text == "earliest":
        return "earliest"
    try:
        return read_number(text)
    except typer.BadParameter:
        raise typer.BadParameter(f"it is an offset like 1200, or earliest, not {text!r}", param_hint="--from") from None


def _print_messages(messages: list[Message], *, as_json: bool, with_header: bool) -> None:
    if as_json:
        write_records(standard_output(), [json_line(message) for message in messages])
        return
    rows = (
        (
            str(message.offset), local_time(message.committed_at), value_text(message.key) or "",
            payload_glance(message.payload, _SHOWN_CHARACTERS),
        )
        for message in messages
    )  # fmt: skip
    columns = ["offset", "committed", "key", "message"]
    console().print(table_of(columns, rows, ("offset",), show_header=with_header))


_STATE_HELP = """Look at named state: the small values that transactions set.

\b
Examples:
  clarion state get joined/order-17
  clarion state get leader --json
"""

state_app = typer.Typer(help=_STATE_HELP, no_args_is_help=True)


@state_app.callback()
def _state() -> None:
    pass


@state_app.command("get")
@broker_command
def get_state(call: BrokerCall, name: StateName) -> None:
    """Print a named state's value, as transaction.set() gave it.

    With --json there are name, version and value (or value_b64). Where it is not
    set the exit code is 3, and with --json the version is 0.

    \b
    Examples:
      clarion state get leader
      clarion state get leader --json | jq .version
    """
    with call.admin() as admin:
        told = admin.state(name)
    if call.as_json:
        value = {"value": None} if told.value is None else text_or_base64("value", told.value)
        print_json({"name": to_text(name), "version": told.version, **value})
    elif told.value is not None:
        sys.stdout.buffer.write(told.value + b"\n")
        sys.stdout.buffer.flush()
    if told.value is None:
        raise typer.Exit(ExitCode.NOTHING_THERE)
