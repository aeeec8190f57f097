"""Records what a process does to a folder, system call by system call: `python -m … LIVES FOLDER MARKS COMMAND…`.

The command runs unchanged under ptrace, and a seccomp filter has only those calls stop that could change a file or make
one durable, so it runs about as fast as usual. Each time a file is added to LIVES, with pickled `Call`s in the order in
which the kernel did them. What the process writes to the file MARKS goes into the same order: that is how it tells what
it has promised by then.

Nothing goes unseen: a call that could change the folder and is not understood here ends the recording with an error,
and who replays it compares the outcome with the folder itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import platform
import re
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Numbers of the system calls, on x86_64 and on aarch64, which does without some.
_CALLS = {
    "write": (1, 64), "writev": (20, 66), "pwrite64": (18, 68), "pwritev": (296, 70), "pwritev2": (328, 287),
    "open": (2, -1), "creat": (85, -1), "openat": (257, 56), "openat2": (437, 437), "truncate": (76, 45),
    "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82), "fdatasync": (75, 83), "msync": (26, 227),
    "sync": (162, 81), "syncfs": (306, 267), "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, -1), "linkat": (265, 37), "symlink": (88, -1), "symlinkat": (266, 36), "unlink": (87, -1),
    "unlinkat": (263, 35), "mkdir": (83, -1), "mkdirat": (258, 34), "rmdir": (84, -1), "mmap": (9, 222),
    "copy_file_range": (326, 285), "sendfile": (40, 71), "splice": (275, 76), "io_uring_setup": (425, 425),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_TRACEME, _CONT, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 7, 24, 0x4200, 0x420E
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000  # sysgood, fork, vfork, clone, exec, seccomp, exitkill
_EVENT_SECCOMP = 7
_WALL = 0x40000000
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_RET_TRACE, _RET_ALLOW = 0x7FF00000, 0x7FFF0000
_LD, _JEQ, _JSET, _RET = 0x20, 0x15, 0x45, 0x06
_AT_FDCWD = -100
_AT_REMOVEDIR = 0x200
_CHANGES_FILES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MAP_SHARED, _PROT_WRITE = 1, 2
_KEEP_SIZE = 1  # of fallocate

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Call(NamedTuple):
    """A call that changed the folder, made something in it durable, or left a mark.

    `kind` and what `what` then holds; files are called by their inode number, paths are below the folder:
    found (path, file; None for a folder), create (path, file), mkdir (path), rename (old, new), unlink (path),
    write (file, offset, data), resize (file, size), sync (file), sync names (path), mark (data).
    """

    at_ns: int  # when it began, on the monotonic clock
    kind: str
    what: tuple[Any, ...]


class Unforeseen(Exception):
    """The process did something to the folder that cannot be recorded."""


Then = Callable[[int], list[tuple[str, tuple[Any, ...]]]]  # what a call did, by what it returned


class Recorder:
    """Understands the system calls of one process and its threads."""

    def __init__(self, folder: Path, marks: Path) -> None:
        self._folder, self._marks = str(folder), str(marks)
        self._names = {numbers[_MACHINES[platform.machine()][0]]: name for name, numbers in _CALLS.items()}
        self._memory: dict[int, int] = {}

    def found(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Return what is in the folder now."""
        for path in sorted(Path(self._folder).rglob("*")):
            yield "found", (self._below(str(path)), None if path.is_dir() else path.stat().st_ino)

    def begun(self, process: int, number: int, arguments: tuple[int, ...]) -> Then | None:
        """Look at a call before it is done; None where it has nothing to do with the folder."""
        name = self._names[number]
        if name in ("sync", "syncfs", "msync", "io_uring_setup"):
            raise Unforeseen(name)
        handler: Callable[..., Then | None] = getattr(self, f"_{_ALIKE.get(name, name)}")
        return handler(process, name, arguments)

    def _write(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        descriptor, address, count, low = arguments[:4]
        path = self._path_of(process, descriptor)
        if path is None:
            return None
        pieces = [(address, count)]
        if "v" in name:
            vector = self._read(process, address, 16 * count)
            pieces = list(struct.iter_unpack("<QQ", vector))
        data = b"".join(self._read(process, *piece) for piece in pieces)
        if path == self._marks:
            return lambda _: [("mark", (data,))]
        file, offset = self._file(process, descriptor), low
        if name in ("write", "writev"):
            told = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text()
            offset = int(re.findall(r"pos:\s*(\d+)", told)[0])
            if int(re.findall(r"flags:\s*(\d+)", told)[0], 8) & os.O_APPEND:
                offset = os.stat(f"/proc/{process}/fd/{descriptor}").st_size
        return lambda written: [("write", (file, offset, data[:written]))]

    def _open(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        folder, address, flags = arguments[:3] if name == "openat" else (_AT_FDCWD, *arguments[:2])
        if name in ("openat2", "creat"):
            raise Unforeseen(name)
        path = self._path_at(process, folder, address)
        if path is None or not flags & (os.O_CREAT | os.O_TRUNC):
            return None
        is_new, below = not os.path.exists(path), self._below(path)

        def then(_: int) -> list[tuple[str, tuple[Any, ...]]]:
            file = os.stat(path).st_ino
            if is_new:
                return [("create", (below, file))]
            return [("resize", (file, 0))] if flags & os.O_TRUNC else []

        return then

    def _resize(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        if self._path_of(process, arguments[0]) is None:
            return None
        file, size = self._file(process, arguments[0]), arguments[1]
        if name == "fallocate":
            _, mode, offset, length = arguments[:4]
            now = os.stat(f"/proc/{process}/fd/{arguments[0]}").st_size
            if mode & ~_KEEP_SIZE:
                raise Unforeseen(f"fallocate with mode {mode}")
            size = now if mode else max(now, offset + length)
        return lambda _: [("resize", (file, size))]

    def _sync(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        path = self._path_of(process, arguments[0])
        if path is None:
            return None
        if os.path.isdir(path):
            return lambda _: [("sync names", (self._below(path),))]
        file = self._file(process, arguments[0])
        return lambda _: [("sync", (file,))]

    def _rename(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        at = (_AT_FDCWD, arguments[0], _AT_FDCWD, arguments[1]) if name == "rename" else arguments[:4]
        old, new = self._path_at(process, *at[:2]), self._path_at(process, *at[2:])
        if old is None and new is None:
            return None
        if old is None or new is None or (name == "renameat2" and arguments[4]):
            raise Unforeseen(f"{name} of {old} to {new}")
        return lambda _: [("rename", (self._below(old), self._below(new)))]

    def _unlink(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        at = arguments[:2] if name == "unlinkat" else (_AT_FDCWD, arguments[0])
        path = self._path_at(process, *at)
        if path is None:
            return None
        if name == "unlinkat" and arguments[2] & _AT_REMOVEDIR:
            raise Unforeseen(f"the removal of {path}")
        return lambda _: [("unlink", (self._below(path),))]

    def _mkdir(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        at = arguments[:2] if name == "mkdirat" else (_AT_FDCWD, arguments[0])
        path = self._path_at(process, *at)
        return None if path is None else lambda _: [("mkdir", (self._below(path),))]

    def _mmap(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        path = self._path_of(process, arguments[4]) if arguments[2] & _PROT_WRITE else None
        if path is not None and not path.endswith("-shm"):  # SQLite's index of its log, which it makes anew
            raise Unforeseen(f"writing to {path} through memory")
        return None

    def _path(self, process: int, name: str, arguments: tuple[int, ...]) -> Then | None:
        """Refuse what is done by path, or between files, and cannot be told in other words."""
        places = {"truncate": (0,), "link": (1,), "symlink": (1,), "rmdir": (0,)}
        paths = [self._path_at(process, _AT_FDCWD, arguments[place]) for place in places.get(name, ())]
        if name == "linkat":
            paths.append(self._path_at(process, *arguments[2:4]))
        if name == "symlinkat":
            paths.append(self._path_at(process, *arguments[1:3]))
        to = {"copy_file_range": 2, "sendfile": 0, "splice": 2}
        paths += [self._path_of(process, arguments[to[name]])] if name in to else []
        if any(paths):
            raise Unforeseen(f"{name} of {paths}")
        return None

    def _path_of(self, process: int, descriptor: int) -> str | None:
        try:
            path = os.readlink(f"/proc/{process}/fd/{ctypes.c_int(descriptor).value}")
        except FileNotFoundError:
            return None
        return path if path == self._marks or self._is_ours(path) else None

    def _path_at(self, process: int, folder: int, address: int) -> str | None:
        """Return the absolute path that is written at an address, if it is below the folder."""
        written = os.fsdecode(self._text(process, address))
        number = ctypes.c_int(folder & 0xFFFFFFFF).value
        place = "cwd" if number == _AT_FDCWD else f"fd/{number}"
        path = os.path.normpath(os.path.join(os.readlink(f"/proc/{process}/{place}"), written))
        return path if self._is_ours(path) else None

    def _is_ours(self, path: str) -> bool:
        return path == self._folder or path.startswith(self._folder + "/")

    def _below(self, path: str) -> str:
        return os.path.relpath(path, self._folder)

    def _file(self, process: int, descriptor: int) -> int:
        return os.stat(f"/proc/{process}/fd/{descriptor}").st_ino

    def _read(self, process: int, address: int, size: int) -> bytes:
        if process not in self._memory:
            self._memory[process] = os.open(f"/proc/{process}/mem", os.O_RDONLY)
        return os.pread(self._memory[process], size, address)

    def _text(self, process: int, address: int) -> bytes:
        text = b""
        while b"\0" not in text:  # not beyond a page at once: the next may not be there
            text += self._read(process, address + len(text), 4096 - (address + len(text)) % 4096)
        return text.split(b"\0", 1)[0]


_HANDLED = {
    "write": ("writev", "pwrite64", "pwritev", "pwritev2"),
    "open": ("creat", "openat", "openat2"),
    "resize": ("ftruncate", "fallocate"),
    "sync": ("fsync", "fdatasync"),
    "rename": ("renameat", "renameat2"),
    "unlink": ("unlinkat",),
    "mkdir": ("mkdirat",),
    "path": ("truncate", "link", "linkat", "symlink", "symlinkat", "rmdir", "copy_file_range", "sendfile", "splice"),
}
_ALIKE = {name: handler for handler, names in _HANDLED.items() for name in names}


def record(out: Path, folder: Path, marks: Path, command: list[str]) -> int:
    """Run a command, write what it did to a file, and give its exit code, or the negative number of its last signal."""
    recorder = Recorder(folder, marks)
    with out.open("wb") as file:

        def note(at_ns: int, did: list[tuple[str, tuple[Any, ...]]]) -> None:
            for kind, what in did:
                pickle.dump(Call(at_ns, kind, what), file)

        note(time.monotonic_ns(), list(recorder.found()))
        child = os.fork()
        if child == 0:
            _become(command)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda caught, _: os.kill(child, caught))
        os.waitpid(child, 0)
        _ptrace(_SETOPTIONS, child, _OPTIONS)
        _ptrace(_CONT, child)
        return _follow(child, recorder, note)


def _follow(child: int, recorder: Recorder, note: Callable[[int, list[tuple[str, tuple[Any, ...]]]], None]) -> int:
    known, code = {child}, 0
    while True:
        try:
            thread, status = os.waitpid(-1, _WALL)
        except ChildProcessError:
            return code
        if not os.WIFSTOPPED(status):
            if thread == child:
                code = os.waitstatus_to_exitcode(status)
            continue
        number, event = os.WSTOPSIG(status), status >> 16
        if event == _EVENT_SECCOMP:
            begun_ns = time.monotonic_ns()
            then = recorder.begun(child, *_system_call(thread))
            if then is not None:
                _ptrace(_SYSCALL, thread)
                _, status = os.waitpid(thread, _WALL)
                if not os.WIFSTOPPED(status):  # killed
                    continue
                returned = _returned(thread)
                if returned >= 0:
                    note(begun_ns, then(returned))
            number = 0
        elif event or thread not in known:  # a thread's first stop is no signal
            known.add(thread)
            number = 0
        _ptrace(_CONT, thread, number)


def _system_call(thread: int) -> tuple[int, tuple[int, ...]]:
    number, *arguments = struct.unpack_from("<7Q", _call_info(thread), 24)
    return number, tuple(arguments)


def _returned(thread: int) -> int:
    return int(struct.unpack_from("<q", _call_info(thread), 24)[0])


def _call_info(thread: int) -> bytes:
    room = ctypes.create_string_buffer(96)
    _ptrace(_GET_SYSCALL_INFO, thread, ctypes.addressof(room), size=len(room))
    return room.raw


def _ptrace(request: int, thread: int, data: int = 0, *, size: int = 0) -> None:
    if _libc.ptrace(request, thread, size, data) < 0:
        number = ctypes.get_errno()
        if number != errno.ESRCH:  # it was killed just now
            raise OSError(number, os.strerror(number))


def _become(command: list[str]) -> None:
    """Have this process be traced, and run the command in its place."""
    try:
        program = _filter()
        room = ctypes.create_string_buffer(b"".join(program))
        prog = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program), ctypes.addressof(room)))
        for arguments in ((_NO_NEW_PRIVS, 1, 0), (_SET_SECCOMP, _FILTER, ctypes.addressof(prog))):
            if _libc.prctl(arguments[0], ctypes.c_ulong(arguments[1]), ctypes.c_void_p(arguments[2]), 0, 0) < 0:
                raise OSError(ctypes.get_errno(), "prctl")
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.execvp(command[0], command)
    finally:
        os._exit(127)


def _filter() -> list[bytes]:
    """Return a program for the kernel that has the calls of interest stop, and lets all others pass."""
    place, machine = _MACHINES[platform.machine()]
    by_name = {name: numbers[place] for name, numbers in _CALLS.items()}
    plain = [number for name, number in by_name.items() if name not in ("openat", "mmap") and number >= 0]
    lines: list[tuple[int, int, str, str]] = [(_LD, 4, "", ""), (_JEQ, machine, "", "allow"), (_LD, 0, "", "")]
    lines += [(_JEQ, number, "trace", "") for number in plain]
    lines += [
        (_JEQ, by_name["openat"], "", "skip"),
        (_LD, 16 + 8 * 2, "", ""),
        (_JSET, _CHANGES_FILES, "trace", "allow"),
    ]
    skip = len(lines)
    lines += [(_JEQ, by_name["mmap"], "", "allow"), (_LD, 16 + 8 * 3, "", ""), (_JSET, _MAP_SHARED, "trace", "allow")]
    labels = {"skip": skip, "trace": len(lines), "allow": len(lines) + 1}
    lines += [(_RET, _RET_TRACE, "", ""), (_RET, _RET_ALLOW, "", "")]

    def jump(at: int, label: str) -> int:
        return labels[label] - at - 1 if label else 0

    return [
        struct.pack("<HBBI", op, jump(at, yes), jump(at, no), value) for at, (op, value, yes, no) in enumerate(lines)
    ]


def calls_in(file: Path) -> Iterator[Call]:
    """Read what was recorded."""
    with file.open("rb") as opened:
        while True:
            try:
                yield pickle.load(opened)
            except EOFError:
                return


if __name__ == "__main__":
    # Under this name `Call` would be pickled as one of __main__.
    from tests.integration import recording

    lives, folder, marks = map(Path, sys.argv[1:4])
    code = recording.record(lives / str(len(list(lives.iterdir()))), folder, marks, sys.argv[4:])
    sys.exit(code if code >= 0 else 128 - code)
