"""`holdmq-bridge drain`: makes running bridges disconnect their clients at a bounded rate, and exit.

Exit status 0: they have exited (or, with --no-wait, they have begun); 1: one did not answer, or did not exit in time;
2: no bridge has such a name.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase

import click
import redis

from holdmq import HoldMQ
from holdmq.errors import HoldMQError
from holdmq.password import with_password
from holdmq_bridge.admin.servers import client_of, is_node_of_cluster
from holdmq_bridge.process.settings import Settings

LOOK_S = 0.5


@click.command("drain")
@click.argument("name")
@click.option("--redis", "url", help="URL of the server of the bridges.  [default: that of `holdmq-bridge --redis`]")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the bridges have exited.")
@click.option("--timeout", type=click.FloatRange(min=0), default=600.0, show_default=True, help="Seconds to wait.")
@click.pass_context
def drain(context: click.Context, name: str, url: str | None, wait: bool, timeout: float) -> None:
    """Drain the bridges whose name matches NAME (a glob): `holdmq bridges` lists the names.

    They accept no further connections, disconnect their clients (drain_rate) and exit. Sessions stay.
    """
    given = url or (context.parent.params.get("redis") if context.parent is not None else None)
    try:
        address = given or Settings().redis
        with _opened(address) as (hold, unmoved):
            with unmoved:
                names = _named(hold, name)
                for one in names:
                    click.echo(f"{one}: draining, {hold.drain(one)} clients")
            if wait:
                _wait(hold, set(names), timeout)
    except (HoldMQError, redis.RedisError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _opened(url: str) -> Iterator[tuple[HoldMQ[bytes], AbstractContextManager[None]]]:
    """The server, and a context that fails if with Sentinels the primary moves meanwhile."""
    client, primary = client_of(url)
    with client:
        is_cluster = primary is None and is_node_of_cluster(client)
        unmoved = nullcontext() if primary is None else primary.unmoved(client)
        with HoldMQ.from_url(with_password(url), cluster=True) if is_cluster else HoldMQ(client) as hold:
            yield hold, unmoved


def _named(hold: HoldMQ, name: str) -> list[str]:
    running = [one.name for one in hold.bridges()]
    found = [one for one in running if fnmatchcase(one, name)]
    if not found:
        names = ", ".join(running) or "none"
        raise click.UsageError(f"no bridge has the name {name!r}; expected a glob that matches one of: {names}")
    return found


def _wait(hold: HoldMQ, names: set[str], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while left := {one.name for one in hold.bridges()} & names:
        if time.monotonic() >= deadline:
            raise click.ClickException(f"not drained within {timeout_s:g} s: {', '.join(sorted(left))}")
        time.sleep(LOOK_S)
    for name in sorted(names):
        click.echo(f"{name}: drained")
