"""What counts as taken is what the reader took, whatever is between: a file, a pipe, a socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.cli.read_commands import RecordWriter, count_whole, write_records

_DEADLINE_S = 60.0
_RECORDS = [b"%08d\n" % number for number in range(20_000)]


class Handing:
    """A writer at work in a thread: `told` are the records that were called taken, in order."""

    def __init__(self, descriptor: int, *batches: list[bytes]) -> None:
        self.writer = RecordWriter(descriptor)
        self.told: list[bytes] = []
        self.error: OSError | None = None
        self._batches = batches
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for records in self._batches:
                self.writer.write(records, self._noting(records))
            self.writer.finish()
        except OSError as error:
            self.error = error

    def _noting(self, records: list[bytes]) -> Callable[[int, int], None]:
        return lambda start, stop: self.told.extend(records[start:stop])

    def end(self) -> None:
        self._thread.join(_DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_records_that_lie_whole_within_what_was_written_are_counted() -> None:
    records = [b"aa", b"", b"bbb"]
    assert [count_whole(records, size) for size in range(-1, 6)] == [0, 0, 0, 2, 2, 2, 3]


def test_all_records_are_written(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    write_records(writing, [b"a\n", b"b\n"])
    assert os.read(reading, 100) == b"a\nb\n"
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        write_records(writing, [b"a\n", b"b\n"])


def test_what_is_written_to_a_file_is_taken(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        handing = Handing(file.fileno(), _RECORDS[:500], _RECORDS[500:])
        handing.end()
    assert (handing.told, handing.error, handing.writer.in_doubt) == (_RECORDS, None, 0)
    assert (tmp_path / "out").read_bytes() == b"".join(_RECORDS)


def test_a_reader_that_takes_everything_has_everything(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    handing = Handing(writing, _RECORDS[:500], _RECORDS[500:], [], [b""])
    got = b""
    while len(got) < 9 * len(_RECORDS):
        got += os.read(reading, 2**16)
    handing.end()
    assert got == b"".join(_RECORDS)
    assert (handing.told, handing.error) == ([*_RECORDS, b""], None)


def test_what_lies_in_the_pipe_when_the_reader_goes_was_not_taken(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    handing = Handing(writing, _RECORDS)
    assert os.read(reading, 2**16) == _RECORDS[0]  # as `head -1` does: it gets what is there
    os.close(reading)
    handing.end()
    assert isinstance(handing.error, BrokenPipeError)
    assert handing.told == _RECORDS[:1]
    assert handing.writer.in_doubt == 0


def test_a_reader_that_never_reads_takes_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    handing = Handing(writing, _RECORDS)
    handing.end()
    assert isinstance(handing.error, BrokenPipeError)
    assert handing.told == []


@pytest.mark.parametrize("gulp", [1, 7, 9, 100, 4096, 2**16])
@pytest.mark.parametrize("wanted", [1, 10, 100, 5000])
def test_a_reader_that_goes_away_is_credited_with_no_more_than_it_took(wanted: int, gulp: int) -> None:
    reading, writing = os.pipe()
    handing = Handing(writing, _RECORDS[:2000], _RECORDS[2000:])
    got = b""
    while got.count(b"\n") < wanted:
        got += os.read(reading, gulp)
    os.close(reading)
    handing.end()
    os.close(writing)
    taken = got.count(b"\n")
    assert handing.told == _RECORDS[: len(handing.told)]
    assert len(handing.told) + handing.writer.in_doubt == taken
    assert len(handing.told) <= max(wanted, 1)
    assert handing.writer.in_doubt <= taken / 8


def test_a_reader_that_goes_when_all_was_read_but_not_wanted_is_noticed(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer, told, records = RecordWriter(writing), list[tuple[int, int]](), _RECORDS[:100]
    taking = threading.Thread(target=writer.write, args=(records, lambda *span: told.append(span)), daemon=True)
    taking.start()
    got = b""
    while got.count(b"\n") < 100:
        got += os.read(reading, 2**16)
    taking.join(_DEADLINE_S)
    os.close(reading)
    in_doubt = writer.in_doubt
    with pytest.raises(BrokenPipeError):
        writer.finish()
    assert in_doubt > 0
    assert (told[0][0], told[-1][1], writer.in_doubt) == (0, 100 - in_doubt, in_doubt)


def test_what_others_write_to_the_same_pipe_is_not_taken_for_ours(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"other\n" * 500)  # unread when we begin
    handing = Handing(writing, _RECORDS[:5])
    assert os.read(reading, 2000) == (b"other\n" * 500)[:2000]
    assert handing.told == []
    got = b""
    while not got.endswith(_RECORDS[4]):
        got += os.read(reading, 600)
        if got.count(b"other") < 300:
            os.write(writing, b"other\n" * 50)
    handing.end()
    assert (handing.told, handing.error) == (_RECORDS[:5], None)


@given(sizes=st.lists(st.integers(0, 40_000), max_size=30), taken_bytes=st.integers(0, 400_000))
@settings(deadline=None, max_examples=50)
def test_records_of_any_size_are_credited_in_order_and_never_too_many(sizes: list[int], taken_bytes: int) -> None:
    records = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
    reading, writing = os.pipe()
    handing = Handing(writing, records)
    left = min(taken_bytes, sum(sizes))
    while left:
        left -= len(os.read(reading, left))
    os.close(reading)
    handing.end()
    os.close(writing)
    whole = count_whole(records, taken_bytes)
    assert handing.told == records[: len(handing.told)]
    assert len(handing.told) <= whole


def test_a_socket_whose_peer_takes_everything_is_credited_with_everything() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        handing = Handing(ours.fileno(), _RECORDS)
        got = b""
        while len(got) < 9 * len(_RECORDS):
            got += theirs.recv(2**16)
        handing.end()
    assert (handing.told, handing.error) == (_RECORDS, None)


def test_what_a_peer_left_in_its_socket_was_not_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        handing = Handing(ours.fileno(), _RECORDS)
        first = theirs.recv(2**16)
        second = theirs.recv(2**16)
        theirs.close()  # whether it wanted the second cannot be known, so that may come again
        handing.end()
    assert isinstance(handing.error, BrokenPipeError | ConnectionResetError)
    assert (first, second) == (_RECORDS[0], _RECORDS[1])
    assert handing.told in (_RECORDS[:1], _RECORDS[:2])
