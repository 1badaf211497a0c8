"""Every example in the client's docstrings runs on a real server and prints what it says; those that await, too."""

import ast
import asyncio
import contextlib
import doctest
import importlib
import io
import pkgutil
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

import holdmq
from holdmq import AsyncHoldMQ, HoldMQ
from tests.support import Server

MODULES = [
    name
    for _, name, is_package in pkgutil.walk_packages(holdmq.__path__, "holdmq.")
    if not is_package and not name.startswith(("holdmq._core", "holdmq.core."))
]


def examples() -> Iterator[doctest.DocTest]:
    """The docstrings of the client that have examples."""
    for name in MODULES:
        module = importlib.import_module(name)
        for found in doctest.DocTestFinder(exclude_empty=True).find(module, name):
            if found.examples:
                yield found


EXAMPLES = list(examples())


def outcome(source: str, namespace: dict[str, Any], loop: asyncio.AbstractEventLoop) -> str:
    """What a statement prints, the values of its expressions included; it may await."""
    code = compile(source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        value = eval(code, namespace)  # noqa: S307 - our own docstrings
        if isinstance(value, Coroutine):
            loop.run_until_complete(value)
    return printed.getvalue()


def test_the_modules_have_examples() -> None:
    named = {example.name for example in EXAMPLES}
    assert {"holdmq._async.session.AsyncSession", "holdmq._sync.session.Session"} <= named
    assert len(named) > 30


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_prints_what_it_says(server: Server, example: doctest.DocTest) -> None:
    loop = asyncio.new_event_loop()
    hold: Any = AsyncHoldMQ.from_url(server.url) if "_async" in example.name else HoldMQ.from_url(server.url)
    namespace = {**example.globs, "hold": hold, "url": server.url}
    try:
        for statement in example.examples:
            assert outcome(statement.source, namespace, loop) == statement.want, statement.source
    finally:
        if isinstance(hold, AsyncHoldMQ):
            loop.run_until_complete(hold.aclose())
        else:
            hold.close()
        loop.close()
