"""A disk that fails on demand, under SQLite and under the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import pytest

from clarion.store.index import load_checksum_vfs


class Disk(apsw.VFS):
    """A file system on which SQLite's calls can be made to fail, by the end of the file's name."""

    def __init__(self, name: str) -> None:
        self.failing: dict[tuple[str, str], type[apsw.Error]] = {}
        super().__init__(name, load_checksum_vfs())
        self.vfs_name = name

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (the base class names it)
        return _DiskFile(self, name, flags)

    def meet(self, call: str, file: str | None) -> None:
        """Fail if this call on this file is to fail."""
        for (failing_call, ending), error in self.failing.items():
            if call == failing_call and file is not None and file.endswith(ending):
                raise error(f"{call} of {file} fails for the test")


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(load_checksum_vfs(), name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.meet("write", self._name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.meet("sync", self._name)
        super().xSync(flags)


@contextmanager
def failing(call: str, number: int) -> Iterator[None]:
    """Have a call of the operating system fail."""

    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        yield
