"""Running a gateway in a process of its own until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from types import FrameType

from clarion.session.descriptors import raise_descriptor_limit
from clarion.session.signals import StopSignals
from clarion.web.gateway import Gateway
from clarion.web.settings import GatewaySettings

log = logging.getLogger("clarion.web")


async def serve(settings: GatewaySettings, on_ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then finish what was accepted; TimedOut where that could not be done.

    A second signal ends it at once. Gives how many messages were then left behind: 0 after a clean end.
    """
    signals: asyncio.Queue[None] = asyncio.Queue()
    stops = StopSignals()
    loop = asyncio.get_running_loop()

    def hear(number: int, _frame: FrameType | None) -> None:
        if not (stops.is_echo(number, time.monotonic()) or loop.is_closed()):  # closed: everything is done
            loop.call_soon_threadsafe(signals.put_nowait, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)  # the loop's own handlers would end with it, before the process does
    raise_descriptor_limit()
    gateway = Gateway(settings)
    on_ready(await gateway.start())
    await signals.get()
    log.info("stopping: taking no more, finishing what was accepted", extra={"waiting": gateway.waiting})
    stopping, hurry = loop.create_task(gateway.stop()), loop.create_task(signals.get())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        left = gateway.waiting
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        log.error("stopped at once; messages that were accepted are not confirmed", extra={"waiting": left})
        return left
    hurry.cancel()
    stopping.result()
    log.info("stopped; everything that was accepted is stored or was answered")
    return 0
