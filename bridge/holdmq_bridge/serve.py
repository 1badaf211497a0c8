"""Runs a bridge until SIGTERM or SIGINT: the event loop, the signals, the logs."""

import asyncio
import signal

import uvloop

from holdmq_bridge.bridge import Bridge
from holdmq_bridge.logs import configure
from holdmq_bridge.settings import Settings


async def serve(settings: Settings) -> None:
    """Serves until a signal comes.  Raises OSError if the address cannot be had."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    bridge = Bridge(settings)
    await bridge.start()
    waits = [asyncio.ensure_future(bridge.run()), asyncio.ensure_future(stopped.wait())]
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await bridge.stop()
    for task in done:
        task.result()


def main(settings: Settings) -> None:
    """Configures the logs and runs `serve` on uvloop."""
    configure(settings.log_level)
    uvloop.run(serve(settings))
