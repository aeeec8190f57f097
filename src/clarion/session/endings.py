"""How a client ends that nobody closes: forgotten, at the end of the program, or found in a forked child.

What works behind a client (its session, and whatever that serves) does not hold the client. So a client that nobody
holds any more is collected, and noticed here: it warns, and what works behind it finishes and lets go. When the program
ends, everything that is still open has `EXIT_S` to finish, all together. A child process finishes nothing of its
parent's.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol

import zmq.utils.garbage  # noqa: F401 it registers with `atexit`, too, and what is registered first ends last

from clarion.model.errors import ClarionError, Closed

log = logging.getLogger("clarion.session")
EXIT_S = 10.0  # that all clients together have to finish at the end of the program, and a forgotten one by itself


class Works:
    """What works behind a client; it does not hold the client."""

    loop: asyncio.AbstractEventLoop | None = None  # that it works on, where it is one of asyncio

    @property
    def connected(self) -> bool:
        """Whether a broker is connected right now."""
        return True

    def end(self, timeout_s: float) -> Coroutine[Any, Any, None] | None:
        """Finish what was accepted, and let go; raise ClarionError where that could not be done in time. For asyncio
        that is a coroutine, to be run on the loop it works on, or on any other once it has left that one."""
        raise NotImplementedError

    def leave_loop(self) -> None:
        """Have the loop do nothing more for it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: make one where it is used, in each process")


class ForkAware(Protocol):
    """Something that has to know when it finds itself in a child process."""

    def after_fork(self) -> None: ...


_open: dict[Works, str] = {}  # with the client's name; none where it is a part of another
_finishing: dict[Works, threading.Event] = {}  # forgotten, and not done yet: set when it is
_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_inherited: list[object] = []  # of the parent; kept, so that nothing of it is taken down in a child
_armed_in = 0  # the process of multiprocessing's whose end is seen to


def watch(client: object, works: Works, url: str) -> None:
    """See to it that what works behind a client ends with it, or with the program, until it is `closed`."""
    _open[works] = f"{type(client).__name__} at {url}"
    weakref.finalize(client, _forgotten, works).atexit = False
    _arm_for_multiprocessing()


def belongs_to_another(client: object) -> None:
    """A client that works for another one ends without a word."""
    works = getattr(client, "_works", None)
    if works in _open:
        _open[works] = ""


def closed(works: Works) -> None:
    """There is nothing to see to any more."""
    _open.pop(works, None)


def watch_forks(thing: ForkAware) -> None:
    """Have `after_fork` called in every child process forked while the thing lives."""
    _aware.add(thing)


def _in_child() -> None:
    global _open, _finishing
    _inherited.append((_open, _finishing))
    _open, _finishing = {}, {}
    for thing in list(_aware):
        thing.after_fork()


os.register_at_fork(after_in_child=_in_child)


# Forgotten.


def _forgotten(works: Works) -> None:
    # This runs in the middle of anything, with any lock held: whatever may wait is for others to do.
    name = _open.get(works)
    if name is None:
        return
    try:
        if works.loop is None or works.loop.is_closed():
            _thread.start_new_thread(_start_finishing, (works,))
        else:
            works.loop.call_soon_threadsafe(_start_finishing, works)
    except RuntimeError:  # the program ends, and finishes it
        return
    if name:
        warnings.warn(
            f"unclosed {name}: nobody holds it any more. Close it, or use `with`", ResourceWarning, stacklevel=2
        )


def _start_finishing(works: Works) -> None:
    works.leave_loop()
    done = _finishing[works] = threading.Event()
    try:
        threading.Thread(target=_finish, args=(works, done), name="clarion finishing", daemon=True).start()
    except RuntimeError:  # the program ends, and finishes it
        del _finishing[works]
        done.set()


def _finish(works: Works, done: threading.Event) -> None:
    name = _open.get(works)
    try:
        if (ended := works.end(EXIT_S)) is not None:
            asyncio.run(ended)
    except ClarionError as error:
        if name:
            log.warning("%s was not closed: %s", name, error)
    finally:
        closed(works)
        del _finishing[works]
        done.set()


# The end of the program.


def finish_all() -> None:
    """Finish what works behind every client that is open, within `EXIT_S`, and tell on standard error what could not
    be finished. Nothing can be put or got any more."""
    until_s = time.monotonic() + EXIT_S
    threading.excepthook = _without_closed(threading.excepthook)
    try:
        for done in list(_finishing.values()):
            done.wait(max(0.0, until_s - time.monotonic()))
        idle = [works for works in _open if works.loop is not None and not works.loop.is_running()]
        for works in idle:
            works.leave_loop()
        if idle:
            asyncio.run(_end_together(idle, until_s))
    except KeyboardInterrupt:  # enough is enough: what is left is told, and given up
        until_s = 0.0
    for works in sorted(_open, key=lambda works: not works.connected):  # who has no broker may wait for all there is
        try:
            _end(works, until_s)
        except KeyboardInterrupt:
            until_s = 0.0


async def _end_together(some: list[Works], until_s: float) -> None:
    async def end(works: Works) -> None:
        name = _open.get(works)
        try:
            ended = works.end(max(0.0, until_s - time.monotonic()))
            assert ended is not None
            await ended
        except ClarionError as error:
            _tell(name, error)
        finally:
            closed(works)

    await asyncio.gather(*map(end, some), return_exceptions=True)


def _end(works: Works, until_s: float) -> None:
    name = _open.get(works)
    left_s = max(0.0, until_s - time.monotonic())
    try:
        ended = works.end(left_s)
        if ended is not None:  # on a loop that runs in a daemon thread
            assert works.loop is not None
            asyncio.run_coroutine_threadsafe(ended, works.loop).result(left_s)
    except (ClarionError, TimeoutError) as error:
        _tell(name, error)
    finally:
        closed(works)


def _tell(name: str | None, error: Exception) -> None:
    if name and sys.stderr is not None:
        sys.stderr.write(f"clarion: the program ended without closing its {name}: {error}\n")


def _without_closed(hook: Callable[[threading.ExceptHookArgs], Any]) -> Callable[[threading.ExceptHookArgs], Any]:
    """A daemon thread that works to the end finds its client closed: that is no news."""

    def quiet(args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, Closed) and args.thread is not None and args.thread.daemon):
            hook(args)

    return quiet


def _arm_for_multiprocessing() -> None:
    """A process of multiprocessing's ends in a way of its own, which before Python 3.13 knows nothing of `atexit`."""
    global _armed_in
    module = sys.modules.get("multiprocessing.process")
    if _armed_in == os.getpid() or module is None or module.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    _armed_in = os.getpid()
    Finalize(None, _finish_process, exitpriority=-100)


def _finish_process() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread.ident is not None:
            thread.join()  # as Python itself does next, and it may still put something
    finish_all()


atexit.register(finish_all)
