"""The cost of the module for an application's own commands: `make bench-guest`.

redis-benchmark loads five servers in turn: without a module, with an empty command filter (empty_filter.c: the server's
own price of any filter), with the module asleep (an empty policy), awake (a policy for another channel), and in use
(that channel holds a message, and another one has a subscriber).  The first server changes with each alternation.  The
figures are CPU time of the server's main thread per command, that of the kernel included.  A ratio is the median of the
alternations' ratios to the server without a module.

Each server has one key that expires, as those of nearly all applications have: the first one makes each SET of a server
slower, with or without the module, and a held list is such a key.

With --instructions the servers' instructions are counted instead (needs valgrind, takes two minutes).  Those of the
kernel, most of a command that comes alone, are not included.  A further server loads a module that does nothing.
"""

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import click

from bench.instructions import counted
from bench.pair import Bench, running
from bench.wire import packed

ALTERNATIONS = 12
STARTS = 4
REQUESTS = 200_000
CLIENTS = 50
EMPTY_FILTER = Path(__file__).parents[1] / "build" / "empty_filter.so"
STOCK, FLOOR, ASLEEP, IDLE, AWAKE = "no module", "empty filter", "asleep", "idle module", "awake"
IN_USE = "in use"
CONFIG: dict[str, list[str]] = {
    STOCK: [],
    FLOOR: [f'loadmodule "{EMPTY_FILTER}"'],
    ASLEEP: ['holdmq.policies ""'],
    AWAKE: ['holdmq.policies "orders:new"'],
    IN_USE: ['holdmq.policies "orders:new"'],
    IDLE: [f'loadmodule "{EMPTY_FILTER}" none'],
}
WITH_MODULE = (ASLEEP, AWAKE, IN_USE)
TIMED = (STOCK, FLOOR, ASLEEP, AWAKE, IN_USE)
COMMANDS: dict[str, Sequence[str]] = {
    "GET": ("GET", "key:__rand_int__"),
    "SET": ("SET", "key:__rand_int__", "value-of-about-thirty-two-bytes."),
}
COUNTED: dict[str, Sequence[str]] = {
    "GET": ("GET", "key:{}"),
    "SET": ("SET", "key:{}", "value-of-about-thirty-two-bytes."),
    "HSET": ("HSET", "hash:{}", "field", "value"),
    "PUBLISH, unheard": ("PUBLISH", "channel:{}", "message"),
}
EXPIRING = ("SET", "session:1", "user", "EX", "86400")
OF_RESTRICTED = ("GET", "PUBLISH, unheard")
RESTRICTED = ("ACL", "SETUSER", "limited", "on", "nopass", "~key:*", "&channel:*", "+@all", "-@dangerous")


def cost_us(server: Bench, words: Sequence[str], pipeline: int) -> float:
    """CPU time of the server for one command, in microseconds."""
    begin = server.cpu_us()
    options = ["-n", str(REQUESTS), "-c", str(CLIENTS), "-P", str(pipeline), "-r", "10000", "-q"]
    port = str(server.admin.get_connection_kwargs()["port"])
    subprocess.run(
        ["redis-benchmark", "-p", port, *options, *words],  # noqa: S607 - Debian's redis-tools
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return (server.cpu_us() - begin) / REQUESTS


def use(server: Bench) -> None:
    """Use the module as an application does."""
    server.admin.publish("orders:new", "held")
    server.listener.run(packed([("SUBSCRIBE", "other")]))


def costs(words: Sequence[str], pipeline: int) -> dict[str, list[float]]:
    """Cost of a command with each of the servers, of each alternation."""
    found: dict[str, list[float]] = {name: [] for name in TIMED}
    for _ in range(STARTS):
        with contextlib.ExitStack() as stack:
            servers = {
                name: stack.enter_context(running(module=name in WITH_MODULE, aof=False, config=CONFIG[name]))
                for name in found
            }
            use(servers[IN_USE])
            for server in servers.values():
                server.admin.execute_command(*EXPIRING)
                cost_us(server, COMMANDS["SET"], 16)
            for number in range(ALTERNATIONS // STARTS):
                first = number % len(servers)
                for name in [*list(servers)[first:], *list(servers)[:first]]:
                    found[name].append(cost_us(servers[name], words, pipeline))
    return found


def ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """How many times as much a command costs, by alternation."""
    return [more / less for less, more in zip(before, after, strict=True)]


def count_instructions() -> None:
    """Print a table of instructions."""
    names = (STOCK, IDLE, FLOOR, ASLEEP, AWAKE, IN_USE)
    click.echo(f"{'instructions of a command':40} {'':>{len(STOCK)}} more: with an")
    click.echo(f"{'':40} {STOCK} {IDLE:>12} {FLOOR:>13} {ASLEEP:>8}  ratio  {AWAKE:>8}  ratio  {IN_USE:>8}  ratio")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(counted(module=name in WITH_MODULE, config=CONFIG[name])) for name in names]

        def compare(what: str, words: Sequence[str], pipeline: int) -> None:
            stock, idle, floor, asleep, awake, in_use = (server.cost(words, pipeline) for server in servers)
            more = f"{idle - stock:12.0f} {floor - stock:13.0f} {asleep - stock:8.0f}"
            used = f"{awake - stock:8.0f} {awake / stock:6.3f}  {in_use - stock:8.0f} {in_use / stock:6.3f}"
            click.echo(f"{what:40} {stock:9.0f} {more} {asleep / stock:6.3f}  {used}")

        servers[-1].run("PUBLISH", "orders:new", "held")
        for server in servers:
            server.run(*EXPIRING)
            server.run_each(COUNTED["SET"])  # a GET finds its key
        for name, words in COUNTED.items():
            compare(f"{name}, one at a time", words, 1)
            compare(f"{name}, pipelines of 16", words, 16)
        for server in servers:
            server.run(*RESTRICTED)
            server.run("AUTH", "limited", "any")
        for name in OF_RESTRICTED:
            compare(f"{name}, by a limited user", COUNTED[name], 1)


@click.command()
@click.option("--instructions", is_flag=True, help="Count instructions instead of CPU time.")
def main(instructions: bool) -> None:
    """Print a table of costs and ratios."""
    if instructions:
        count_instructions()
        return
    names = [name for name in TIMED if name != STOCK]
    click.echo(f"{'us of CPU time':24} {STOCK}" + "".join(f"{name:>14} ratio  quartiles     " for name in names))
    for pipeline in (1, 16):
        for command, words in COMMANDS.items():
            us = costs(words, pipeline)
            what = f"{command}, {'one at a time' if pipeline == 1 else f'pipelines of {pipeline}'}"
            line = f"{what:24} {median(us[STOCK]):9.3f}"
            for name in names:
                times = ratios(us[STOCK], us[name])
                low, _, high = quantiles(times, n=4)
                line += f"{median(us[name]):14.3f} {median(times):.3f}  {low:.3f} to {high:.3f}"
            click.echo(line)


if __name__ == "__main__":
    main()
