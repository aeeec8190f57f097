"""Running the command line as a person does, in real processes.

What is started and goes on is a process from its first moment. What runs to its end is forked from one that has
loaded the commands, `python -m tests.integration.shell DESCRIPTOR`: most take less time than starting Python does.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.waiting import DEADLINE_S as DEADLINE_S

ANYWHERE = "tcp://127.0.0.1:*"
Done = subprocess.CompletedProcess[bytes]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    return {**clean, "COLUMNS": "200", **more}


def start(*arguments: str, within: Sequence[str] = (), **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*within, sys.executable, "-m", "clarion", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**more),
    )


@contextmanager
def running(*arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(*arguments, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line of output; fail where none comes in time."""
    assert process.stdout is not None
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return lines.get(timeout=DEADLINE_S)


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> tuple[int, bytes, bytes]:
    """Send a signal; return the exit code and the rest of the output."""
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, without_waits(err)


def without_waits(err: bytes) -> bytes:
    """Return what was said on standard error, but that a broker was waited for: where one is there, it is only slow."""
    return b"".join(line for line in err.splitlines(keepends=True) if b"no answer from " not in line)


class Shell:
    """Runs client commands against one broker."""

    def __init__(self, broker: subprocess.Popen[bytes], url: str, data: Path) -> None:
        self.broker = broker
        self.url = url
        self.data = data

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run a command to its end."""
        done = _loaded().run(arguments, stdin, environment(CLARION_URL=self.url))
        return Done(done.args, done.returncode, done.stdout, without_waits(done.stderr))

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a command that must end well; return what it printed."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Run a command with --json; return what it said."""
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))


def run(*arguments: str, **more: str) -> Done:
    return _loaded().run(arguments, b"", environment(**more))


def one_line(done: Done) -> str:
    """Return the only line on standard error; nothing may be on standard output."""
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    return line


class _Loaded:
    """The process that has loaded the commands; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(DEADLINE_S)
        self._lock = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", "tests.integration.shell", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def run(self, arguments: Sequence[str], stdin: bytes, environment: dict[str, str]) -> Done:
        """Run a command to its end, in a process of its own."""
        asked = json.dumps([arguments, environment, str(Path.cwd())]).encode()
        with self._lock, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            theirs, ours = os.pipe()
            socket.send_fds(self._socket, [asked], [theirs, out.fileno(), err.fileno()])
            os.close(theirs)
            giving = threading.Thread(target=_give, args=(ours, stdin))
            giving.start()
            try:
                code = int(self._socket.recv(16))
            except BaseException:
                _loaded.cache_clear()
                os.killpg(self._process.pid, signal.SIGKILL)
                raise
            finally:
                giving.join()
            out.seek(0)
            err.seek(0)
            return Done(arguments, code, out.read(), err.read())


@functools.cache
def _loaded() -> _Loaded:
    return _Loaded()


def _give(descriptor: int, content: bytes) -> None:
    """Write to a pipe whose other end may be gone."""
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb") as pipe:
        pipe.write(content)


def _serve(descriptor: int) -> None:
    """Fork for each command that is asked for, and tell how it ended; in the child, run it as if it had just begun."""
    import clarion.admin
    import clarion.publisher
    import clarion.subscriber  # noqa: F401 (commands import what they need when they run)
    from clarion.cli.main import app, main

    with contextlib.redirect_stdout(io.StringIO()):
        app(["put", "--help"], standalone_mode=False)  # which loads what commands need to read their arguments
    gc.freeze()
    asking = socket.socket(fileno=descriptor)
    while (received := socket.recv_fds(asking, 1 << 20, 3))[0]:
        asked, descriptors, _, _ = received
        if not (child := os.fork()):
            break
        for each in descriptors:
            os.close(each)
        asking.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        return
    asking.close()
    for place, each in enumerate(descriptors):
        os.dup2(each, place)
        os.close(each)
    arguments, variables, folder = json.loads(asked)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["clarion", *arguments]
    main()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
