"""One bridge process from its beginning to its end, also where the beginning fails."""

import asyncio

import pytest

from holdmq_bridge.listeners import Listeners
from holdmq_bridge.serve import serve
from holdmq_bridge.settings import Settings
from tests.support.ports import reserve_port

END_S = 10.0


async def _refuse(_listeners: Listeners) -> None:
    await asyncio.sleep(0)
    raise OSError("no more descriptors")


async def _serve_and_look(settings: Settings) -> set[str]:
    """What is still going on after `serve` has failed."""
    with pytest.raises(OSError, match="no more descriptors"):
        async with asyncio.timeout(END_S):
            await serve(settings)
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


def test_a_bridge_that_cannot_begin_to_serve_leaves_nothing_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listeners, "serve", _refuse)
    nobody = reserve_port()
    try:
        settings = Settings(port=0, redis=f"redis://127.0.0.1:{nobody.number}")
        assert asyncio.run(_serve_and_look(settings)) == set()
    finally:
        nobody.release()
