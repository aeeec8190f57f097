"""Damage in a write-ahead log that SQLite would pass over in silence.

SQLite's recovery stops at the first frame whose checksum fails and takes what precedes it for the whole log. That
is right for a torn last write, and a silent loss of acked commits when a bit flipped further up. So SQLite recovers
first (it checks 64 MB in milliseconds, a loop in Python takes seconds) and says how many frames it accepted; here
only the frames after those are looked at, for evidence that more had been committed:

* the log's index (`-shm`), left behind by a killed process, counts more frames under the same salts. SQLite writes
  that count after the fsync, so an old one, as after a power cut, is only ever too low;
* or a whole commit follows the place where recovery stopped and is not the first one there: a transaction is begun
  only when the one before it is on disk, so what is broken above it was acked;
* or the log's header is broken and frames that fit together follow it.

A log that ends in one broken transaction is a torn write that nobody acked, and no damage. Frames with other salts
are left over from before the log was last begun anew. Each frame's checksum goes on from the one stored in the
frame before, so any frame can be checked alone. `https://sqlite.org/fileformat2.html#walformat` has the layout.

Two things rest on how the store works: it begins the log anew when it opens (so no commit frame of an earlier
crash stays behind under the same salts), and it commits nothing after a failed fsync.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

_MAGIC = 0x377F0682  # the lowest bit says that checksums are over big-endian words
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_SECTOR_BYTES = 512  # a disk writes at least this much or nothing of it
_INDEX_HEADER_BYTES = 48

_TWO = struct.Struct(">II")
_Sum = tuple[int, int]


class WalDamage(NamedTuple):
    """Where a log is damaged; frame 0 is the log's header."""

    frame: int
    position: int
    reason: str


def damage_in_file(wal: Path, *, recovered: int, index: bytes, page_bytes: int) -> WalDamage | None:
    """Look for damage in a log file, if there is one; `index` is what the -shm file held before SQLite opened it."""
    try:
        with wal.open("rb") as file:
            if wal.stat().st_size < _HEADER_BYTES:
                return None
            with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                return find_damage(content, recovered=recovered, index=index, page_bytes=page_bytes)
    except FileNotFoundError:
        return None


def find_damage(wal: bytes | mmap, *, recovered: int, index: bytes, page_bytes: int) -> WalDamage | None:
    """Tell whether acked frames follow the `recovered` ones that SQLite accepted."""
    if len(wal) < _HEADER_BYTES:
        return None
    log = _Log(wal, page_bytes)
    if not log.header_is_good:
        if any(log.is_linked(frame) for frame in log.commits(above=0)):
            return WalDamage(0, 0, "its header is damaged, and frames that were written follow it")
        return None
    if _frames_in_index(index, log.salts) > recovered:
        frame = log.first_unlinked(recovered)
        return WalDamage(frame, log.position(frame), "more frames than are whole had been committed")
    last = next((frame for frame in log.commits(above=recovered, salts=log.salts) if log.is_linked(frame)), None)
    if last is None:
        return None
    earlier_commit = any(frame < last for frame in log.commits(above=recovered, salts=log.salts))
    if earlier_commit or any(map(log.has_broken_header, range(recovered + 1, last))):
        frame = log.first_unlinked(recovered)
        return WalDamage(frame, log.position(frame), f"a whole commit follows it, up to frame {last}")
    return None


class _Log:
    """The bytes of a log seen as numbered frames, from 1."""

    def __init__(self, wal: bytes | mmap, page_bytes: int) -> None:
        self._wal = wal
        self._stride = _FRAME_HEADER_BYTES + page_bytes
        self.frames = (len(wal) - _HEADER_BYTES) // self._stride
        magic, _ = _TWO.unpack_from(wal, 0)
        known = magic & ~1 == _MAGIC
        self._words = (">" if magic & 1 else "<") if known else ("<" if sys.byteorder == "little" else ">")
        self._computed = _checksum(wal[:24], (0, 0), self._words)
        self.header_is_good = known and self._computed == _TWO.unpack_from(wal, 24)
        self.salts = bytes(wal[16:24])

    def position(self, frame: int) -> int:
        return _HEADER_BYTES + (frame - 1) * self._stride

    def salts_of(self, frame: int) -> bytes:
        at = self.position(frame) + 8
        return bytes(self._wal[at : at + 8])

    def commits(self, *, above: int, salts: bytes | None = None) -> Iterator[int]:
        """Give the frames that say they end a commit, last first; with `salts` only those that carry them."""
        for frame in range(self.frames, above, -1):
            _, pages_after_commit = _TWO.unpack_from(self._wal, self.position(frame))
            if pages_after_commit and (salts is None or self.salts_of(frame) == salts):
                yield frame

    def is_linked(self, frame: int) -> bool:
        """Tell whether a frame's checksum goes on from the one stored before it."""
        if frame > 1:
            before = {_TWO.unpack_from(self._wal, self.position(frame - 1) + 16)}
        else:
            before = {_TWO.unpack_from(self._wal, 24), self._computed}
        at = self.position(frame)
        stored = _TWO.unpack_from(self._wal, at + 16)
        body = self._wal[at : at + 8] + self._wal[at + _FRAME_HEADER_BYTES : at + self._stride]
        return any(_checksum(body, seed, self._words) == stored for seed in before)

    def has_broken_header(self, frame: int) -> bool:
        """Tell whether a frame's salts are wrong although its checksum, in the same sector, is right.

        A torn write leaves a sector as it was or as it should be; only damage changes a part of one.
        """
        at = self.position(frame)
        in_one_sector = at // _SECTOR_BYTES == (at + _FRAME_HEADER_BYTES - 1) // _SECTOR_BYTES
        if not in_one_sector or self.salts_of(frame) == self.salts or self.salts_of(frame + 1) != self.salts:
            return False
        return self.is_linked(frame + 1)

    def first_unlinked(self, above: int) -> int:
        """Give the first frame that is broken or missing."""
        whole = (frame for frame in range(above + 1, self.frames + 1) if self._is_broken(frame))
        return next(islice(whole, 1), self.frames + 1)

    def _is_broken(self, frame: int) -> bool:
        return self.salts_of(frame) != self.salts or not self.is_linked(frame)


def _frames_in_index(index: bytes, salts: bytes) -> int:
    """Give the committed frames that the log's index counts, 0 if it is not whole or of another log."""
    header = index[:_INDEX_HEADER_BYTES]
    if len(header) < _INDEX_HEADER_BYTES or header != index[_INDEX_HEADER_BYTES : 2 * _INDEX_HEADER_BYTES]:
        return 0
    native = "<" if sys.byteorder == "little" else ">"
    if _checksum(header[:40], (0, 0), native) != struct.unpack_from(native + "II", header, 40):
        return 0
    frames: int = struct.unpack_from(native + "I", header, 16)[0]
    return frames if header[32:40] == salts else 0


def _checksum(data: bytes, seed: _Sum, words: str) -> _Sum:
    """Give SQLite's log checksum of data whose length is a multiple of 8, going on from `seed`."""
    first, second = seed
    pairs = struct.iter_unpack(words + "II", data)
    for even, odd in pairs:
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
