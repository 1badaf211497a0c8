"""A bridge over a cluster in this process, with a thread of its own: the command line refuses a cluster so far."""

import asyncio
import threading
from typing import Any

from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.monitoring.report import Reporter
from holdmq_bridge.monitoring.sys_topics import SysTopics
from holdmq_bridge.monitoring.web import Web
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.sockets.listeners import Listeners
from tests.support.ports import reserve_port

WAIT_S = 60.0


class ClusterBridge:
    """Serves a cluster on a free loopback port until `close`.

    Args:
        url: of any node.
        settings: further ones.

    Attributes:
        bridge: belongs to the thread; use `call`.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self._reserved = reserve_port()
        self._reserved_for_metrics = reserve_port()
        self.port, self.metrics_port = self._reserved.number, self._reserved_for_metrics.number
        self._settings = Settings(redis=url, host="127.0.0.1", port=self.port, **settings)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self.bridge: Bridge
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 (told by `close`)
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.bridge = Bridge(self._settings, is_cluster=True)
        web = Web(self.bridge)
        web.start("127.0.0.1", self.metrics_port)
        sys_topics = SysTopics(self.bridge, self._settings.sys_interval_s) if self._settings.sys_interval_s else None
        reporter = Reporter(self.bridge, self._settings.report_interval_s) if self._settings.report_interval_s else None
        listeners = Listeners(self.bridge.process, self.bridge.pump, self.bridge.new_client, self.bridge)
        await listeners.open(reuse_port=False)
        try:
            await self.bridge.start()
            if sys_topics is not None:
                sys_topics.start()
            if reporter is not None:
                reporter.start()
            await listeners.serve()
            self._ready.set()
            running = asyncio.create_task(self.bridge.run())
            ended = asyncio.create_task(self._ended.wait())
            await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()
        finally:
            listeners.close()
            if sys_topics is not None:
                sys_topics.stop()
            if reporter is not None:
                await reporter.stop()
            await self.bridge.stop()
            web.close()

    def call(self, work: Any) -> Any:
        """What a function of the bridge returns, or a coroutine that it makes, in its thread."""

        async def run() -> Any:
            outcome = work(self.bridge)
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_S)

    def close(self) -> None:
        """Ends it in order.  Raises what ended it before."""
        if self._loop is not None and self._thread.is_alive():
            assert self._ended is not None
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(WAIT_S)
        self._reserved.release()
        self._reserved_for_metrics.release()
        assert not self._thread.is_alive(), "the bridge does not end"
        if self._error is not None:
            raise self._error
