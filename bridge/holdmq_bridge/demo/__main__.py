"""`make demo`: shows and checks the main job on real data; exit status 0 only if every step succeeded."""

import sys
import time
from dataclasses import dataclass

import click
import redis

from holdmq import HoldMQ
from holdmq.server import ServerError, check_module
from holdmq_bridge.demo.channels import forget, python_client, stock_client
from holdmq_bridge.demo.fleet import CLIENT_IDS, SUBSCRIBER, Fleet, device_id
from holdmq_bridge.demo.parts import HOST, Parts, cpu_seconds, parts
from holdmq_bridge.demo.transcript import StepFailedError, Transcript
from holdmq_bridge.demo.weather import DataMissingError, Observation, observations

MAX_PER_STATION = 3000  # three stations have to fit into one queue of 10000 messages
BUSIEST_COMMANDS = 6


@dataclass
class Figures:
    """What the run did.

    Attributes:
        held: messages that waited, in channels and in the session.
        delivered: messages that MQTT clients and subscribers got.
        mqtt_acknowledged: PUBACKs.
        bridge_cpu_s: CPU time of the bridge.
        server_us: CPU time of the server by command, in microseconds.
    """

    held: int = 0
    delivered: int = 0
    mqtt_acknowledged: int = 0
    bridge_cpu_s: float = 0.0
    server_us: dict[str, tuple[int, float]] | None = None


def _channels(t: Transcript, run: Parts, data: dict[str, list[Observation]], figures: Figures) -> None:
    with t.step("1. A stock Redis client: PUBLISH without a subscriber"):
        held, delivered = stock_client(t, run.url, data)
        figures.held += held
        figures.delivered += delivered
    with t.step("2. The Python client: the same in a few lines"):
        both_ways = python_client(t, run.url, next(iter(data.values()))[0])
        figures.held += both_ways
        figures.delivered += both_ways


def _mqtt(t: Transcript, run: Parts, data: dict[str, list[Observation]], figures: Figures) -> None:
    fleet = Fleet(t, HOST, run.bridge_port, data)
    with t.step("3a. MQTT: a persistent session subscribes with a wildcard and goes away"):
        fleet.subscribe_and_go_away()
    with t.step(f"3b. {len(data)} stations publish {fleet.count} observations at QoS 1"):
        if run.server is not None:
            before, after = fleet.publish_to_a_stopped_server(run.server.pause, run.server.resume)
            t.check("while the server does not answer, no PUBACK is sent", before, 0)
            t.check("... it comes once the server holds the message", after, 1)
        acknowledged = fleet.publish_all()
        with redis.Redis.from_url(run.url) as client:
            stored = client.zcard(f"{{{SUBSCRIBER}}}_messages")
            _take_server_times(client, figures)
        t.check(
            f"{fleet.count} PUBACKs, as many messages in the session's queue",
            (acknowledged, stored),
            (fleet.count,) * 2,
        )
        figures.held += stored
        figures.mqtt_acknowledged = acknowledged
    if run.server is not None:
        with t.step("3c. The server is killed with SIGKILL and started again"):
            t.say(f"kill -9 {run.server.pid}")
            run.server.kill()
            run.server.start()
            with redis.Redis.from_url(run.url) as client:
                t.check("the queue is there", client.zcard(f"{{{SUBSCRIBER}}}_messages"), fleet.count)
    with t.step("3d. The client comes back"):
        fleet.come_back()
        figures.delivered += fleet.count
    with redis.Redis.from_url(run.url) as client:
        _take_server_times(client, figures)
    figures.bridge_cpu_s = cpu_seconds(run.bridge.pid)


def _clean_up(url: str, data: dict[str, list[Observation]]) -> None:
    """A server that is not ours is left as it was."""
    with HoldMQ.from_url(url) as hold:
        for client_id in CLIENT_IDS | {device_id(station) for station in data}:
            hold.session(client_id).drop()
        forget(hold.client, data)


def _take_server_times(client: redis.Redis, figures: Figures) -> None:
    """Adds what the server counted; a restarted server counts from zero."""
    seen = figures.server_us or {}
    for name, numbers in client.info("commandstats").items():
        calls, us = seen.get(name, (0, 0.0))
        seen[name] = (calls + numbers["calls"], us + numbers["usec"])
    figures.server_us = seen


def _tell_figures(t: Transcript, figures: Figures, seconds: float) -> None:
    click.echo()
    click.secho("4. The figures of the run", bold=True)
    t.say(f"messages held {figures.held}, delivered {figures.delivered}, PUBACKs {figures.mqtt_acknowledged}")
    t.say(f"{seconds:.1f} s in all")
    t.say("wall time by step:")
    for title, taken in t.seconds.items():
        t.say(f"  {taken:6.2f} s  {title}")
    t.say(f"CPU time of the bridge: {figures.bridge_cpu_s:.2f} s")
    t.say("CPU time of the server by command:")
    busiest = sorted((figures.server_us or {}).items(), key=lambda item: -item[1][1])[:BUSIEST_COMMANDS]
    for name, (calls, us) in busiest:
        t.say(
            f"  {us / 1e6:6.3f} s  {name.removeprefix('cmdstat_'):<24} {calls} calls, {us / max(calls, 1):.1f} us each"
        )


@click.command()
@click.option(
    "--redis", "redis_url", metavar="URL", help="Use a server that is already running (the crash is left out then)."
)
@click.option(
    "--rows",
    default=2000,
    show_default=True,
    type=click.IntRange(30, MAX_PER_STATION),
    help="Observations of each station.",
)
def main(redis_url: str | None, rows: int) -> None:
    """The tour of HoldMQ on real weather observations."""
    t = Transcript()
    figures = Figures()
    begun = time.perf_counter()
    try:
        if redis_url is not None:
            with redis.Redis.from_url(redis_url) as client:
                check_module(client)
            click.echo(f"Using the server at {redis_url}: it is not ours to kill, so the crash is left out.")
        with parts(redis_url) as run:
            # The bridge starts while the first steps run.
            data = observations(rows)
            _channels(t, run, data, figures)
            run.wait_for_the_bridge()
            _mqtt(t, run, data, figures)
            _clean_up(run.url, data)
    except (StepFailedError, DataMissingError, ServerError, redis.RedisError, OSError) as error:
        click.secho(f"\nThe demo failed: {error}", fg="red", err=True)
        sys.exit(1)
    _tell_figures(t, figures, time.perf_counter() - begun)
    click.secho("\nEvery step came out right.", fg="green", bold=True)


if __name__ == "__main__":
    main()
