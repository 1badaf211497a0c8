"""What the module costs an application's own commands: `make bench-guest`.

Pairs of servers, without the module and with it (no channel is held, as after an empty policy), run redis-benchmark in
turn; who begins changes with each alternation.  What is compared is CPU time of the server's main thread for a command,
that of the kernel for it included.  A ratio is the median of the alternations' ratios.

With --instructions the instructions of both servers are counted instead (needs valgrind, takes a minute): those of the
kernel, most of a command that comes alone, are not among them.
"""

import subprocess
from collections.abc import Sequence
from statistics import median, quantiles

import click

from bench.instructions import CountedServer, counted
from bench.pair import Bench, running
from tests.module.channels_support import set_policies

ALTERNATIONS = 12
PAIRS = 4
REQUESTS = 60_000
CLIENTS = 20
LIMIT = 1.02
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


def ratios(words: Sequence[str], pipeline: int) -> tuple[list[float], list[float], list[float]]:
    """Costs without the module and with it, and the ratio, of each alternation."""
    stock_us, ours_us = [], []
    for _ in range(PAIRS):
        with running(module=False, aof=False) as stock, running(module=True, aof=False) as ours:
            set_policies(ours.admin, "")
            for server in (stock, ours):
                cost_us(server, COMMANDS["SET"], 16)
            for number in range(ALTERNATIONS // PAIRS):
                order = (stock, ours) if number % 2 == 0 else (ours, stock)
                used = {server: cost_us(server, words, pipeline) for server in order}
                stock_us.append(used[stock])
                ours_us.append(used[ours])
    return stock_us, ours_us, [after / before for before, after in zip(stock_us, ours_us, strict=True)]


def count_instructions() -> None:
    """Print a table of instructions."""
    click.echo(f"{'instructions of a command':40} {'without us':>10} {'with us':>8} {'more':>6} {'ratio':>6}")

    def compare(what: str, words: Sequence[str], pipeline: int) -> None:
        before, after = (server.cost(words, pipeline) for server in (stock, ours))
        click.echo(f"{what:40} {before:10.0f} {after:8.0f} {after - before:6.0f} {after / before:6.3f}")

    stock: CountedServer
    ours: CountedServer
    with counted(module=False) as stock, counted(module=True, config=['holdmq.policies ""']) as ours:
        for name, words in COUNTED.items():
            compare(f"{name}, one at a time", words, 1)
            compare(f"{name}, pipelines of 16", words, 16)
        for server in (stock, ours):
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
    click.echo(f"{'what':28} {'without us':>10} {'with us':>8} {'ratio':>6}  quartiles      at most {LIMIT}")
    for pipeline in (1, 16):
        for name, words in COMMANDS.items():
            stock_us, ours_us, found = ratios(words, pipeline)
            low, _, high = quantiles(found, n=4)
            reached = "yes" if median(found) <= LIMIT else "no"
            what = f"{name}, {'one at a time' if pipeline == 1 else f'pipelines of {pipeline}'}"
            costs = f"{median(stock_us):10.2f} {median(ours_us):8.2f} {median(found):6.3f}"
            click.echo(f"{what:28} {costs}  {low:.3f} to {high:.3f} {reached}")


if __name__ == "__main__":
    main()
