"""Runs a coroutine of a test within a bounded time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

WAIT_S = 30.0
"""The longest wait for one condition."""


def run(scene: Coroutine[Any, Any, None]) -> None:
    """Runs the scene; it may take as long as four waits."""

    async def bounded() -> None:
        async with asyncio.timeout(4 * WAIT_S):
            await scene

    asyncio.run(bounded())
