"""A small file system that only a test's broker sees: a tmpfs in a mount namespace of its own.

Where the machine allows no such namespace, the bound is the broker's own, `max_store_bytes`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.broker_process import BrokerProcess

_BEGIN = 'exec unshare --user --map-root-user --mount sh -c "$0" sh "$@"'
_KEEP = 'mount -t tmpfs -o size="$1" none "$2" && echo ready && exec cat'  # it lasts as long as standard input


class SmallDisk:
    """A file system of `size` bytes at `place`, for brokers started by `broker`. `with` takes it away again."""

    def __init__(self, place: Path, size: int) -> None:
        place.mkdir()
        self._place = place
        self._size = size
        self._keeper = subprocess.Popen(
            ["sh", "-c", _BEGIN, _KEEP, str(size), str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        self.is_real = self._keeper.stdout.readline() == b"ready\n"
        self._brokers: list[BrokerProcess] = []

    def broker(self, **settings: Any) -> BrokerProcess:
        """Start a broker whose data folder is on this disk."""
        log = self._place.with_name(self._place.name + ".log")
        within: list[str] = []
        if self.is_real:
            within = ["nsenter", "--target", str(self._keeper.pid), "--user", "--mount", "--preserve-credentials", "--"]
        else:
            settings["max_store_bytes"] = self._size
        broker = BrokerProcess(self._place / "data", log=log, within=within, **settings)
        self._brokers.append(broker)
        return broker.start()

    def free_bytes(self) -> int:
        """Return what the disk still takes, or would if it were as small as the bound."""
        if self.is_real:
            found = os.statvfs(self._inside())
            return found.f_bavail * found.f_frsize
        files = [file for file in self._place.rglob("*") if file.is_file()]
        return self._size - sum(file.stat().st_blocks * 512 for file in files)

    def fill(self) -> None:
        """Have somebody else take all the room there is."""
        with (self._inside() / "ballast").open("wb", buffering=0) as ballast:
            for size in (1 << 20, 4096):
                while self.is_real and self._write(ballast.fileno(), size):
                    pass

    def _write(self, descriptor: int, size: int) -> bool:
        try:
            return os.write(descriptor, bytes(size)) == size
        except OSError:
            return False

    def relieve(self) -> None:
        """Have it give the room back."""
        (self._inside() / "ballast").unlink()

    def _inside(self) -> Path:
        return Path(f"/proc/{self._keeper.pid}/root{self._place}") if self.is_real else self._place

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self._brokers:
            broker.close()
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait(30)
        self._keeper.stdout.close()
