"""Runs a process with links: event loop, signals, metrics, exit status."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from holdmq_bridge.base.logs import Log, configure
from holdmq_bridge.base.target import Target
from holdmq_bridge.uplink.counters import Collector
from holdmq_bridge.uplink.link import Link
from holdmq_bridge.uplink.local import TakenOverError
from holdmq_bridge.uplink.primary import Primary
from holdmq_bridge.uplink.settings import ProcessSettings

TAKEN_OVER = 3  # exit status: another process has taken over at least one link

log = Log("uplink")


async def carry(settings: ProcessSettings) -> int:
    """Runs all links until a signal, or until none is left; returns the exit status."""
    primary = Primary(Target.parse(settings.redis))
    links = {each.name: Link(each, primary, settings.broker_id) for each in settings.connection}
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for link in links.values():
            link.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("nothing to read again at a SIGHUP"))
    primary.start()
    try:
        with _metrics(settings, links):
            statuses = await asyncio.gather(*(_run(name, link) for name, link in links.items()))
    finally:
        await primary.stop()
    return max(statuses)


async def _run(name: str, link: Link) -> int:
    try:
        await link.run()
    except TakenOverError as error:
        log.error(  # noqa: TRY400 - no defect: a traceback would not help
            "another process has taken the link over", link=name, error=error
        )
        return TAKEN_OVER
    return 0


@contextmanager
def _metrics(settings: ProcessSettings, links: dict[str, Link]) -> Iterator[None]:
    if settings.metrics_port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(Collector({name: link.counters for name, link in links.items()}))
    server, thread = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main(settings: ProcessSettings) -> int:
    """Configures the logs and runs `carry`."""
    configure(settings.log_level)
    return asyncio.run(carry(settings))
