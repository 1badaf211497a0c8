"""The console with a million sessions and a queue of ten thousand: the time of each page, and of the server's steps.

    make bench-console ARGS="--sessions 1000000"

Each page is requested several times, one after the other. The server's steps come from its slow log, for the time in
which pages are requested, and from its latency monitor. On a machine with other work these include the time in which
the server does not run. So a walk over the sessions is measured in processor time, too.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import redis

from holdmq import HoldMQ, Message, SubscriptionOptions, commands
from holdmq_console.sampler import PAGE
from tests.console.support import ConsoleProcess
from tests.support import Server, embedded_kinds

BATCH = 10_000
QUEUE = 10_000
SUBSCRIBED = 200_000
TIMES = 20
WALKED_PAGES = 1000
STEPS = 5
MOST_PAGE_MS = 200.0
MOST_STEP_MS = 5.0
PAGES = (
    *("/", "/parts/overview", "/api/v1/overview/curves"),
    *("/sessions", "/sessions?prefix=dev-0099", "/sessions?user=nobody", "/sessions?state=connected"),
    *("/sessions/dev-0000042", "/sessions/full", "/sessions/full/queue", "/sessions/full/queue?cursor=9000"),
    *("/sessions/full/queue/5000", "/topics", "/topics?filter=plant/%23", "/live", "/history"),
    *("/filters?topic=fleet/1", "/filters?topic=fleet/1&cursor=99900", "/api/v1/links"),
    *("/history?filter=plant/%23&start=1h", "/channels?name=news", "/users", "/bans", "/server", "/tokens", "/audit"),
)


def furnish(hold: HoldMQ, sessions: int) -> None:
    """Makes the sessions, the long queue and some topics."""
    for start in range(0, sessions, BATCH):
        names = [f"dev-{number:07}" for number in range(start, min(start + BATCH, sessions))]
        hold.execute_all([commands.session_open(name, f"bridge-{start % 7}", expiry=86_400) for name in names])
        if start < SUBSCRIBED:
            hold.execute_all([commands.session_subscribe(name, {"fleet/#": SubscriptionOptions()}) for name in names])
    full = hold.session("full")
    full.open("bridge-1", expiry=86_400)
    for start in range(0, QUEUE, 1000):
        full.deliver(*(Message(topic="plant/1/state", payload=b"x" * 200, qos=1) for _ in range(start, start + 1000)))
    hold.history.create("plants", "plant/#", age="1h", max_bytes=50_000_000)
    for number in range(5000):
        hold.topics.publish(f"plant/{number}/state", str(number), retain=True)


def measure(http: httpx.Client, client: redis.Redis) -> tuple[dict[str, list[float]], list[tuple[float, str]]]:
    """Asks for each page, and returns the times in ms, and the server's longest steps meanwhile and what they were."""
    client.config_set("slowlog-log-slower-than", 500)
    client.config_set("slowlog-max-len", 1000)
    client.config_set("latency-monitor-threshold", 1)
    client.execute_command("LATENCY", "RESET")
    client.slowlog_reset()
    found: dict[str, list[float]] = {}
    for path in PAGES:
        for _ in range(TIMES):
            begin = time.perf_counter()
            answer = http.get(path)
            found.setdefault(path, []).append((time.perf_counter() - begin) * 1000)
            if answer.status_code != 200:
                raise SystemExit(f"{path}: status {answer.status_code}")
    steps = [
        (entry["duration"] / 1000, entry["command"].decode("utf-8", "replace")[:60])
        for entry in client.slowlog_get(1000)
    ]
    for event, _at, _last, longest, *_more in client.execute_command("LATENCY", "LATEST"):
        if event.startswith(b"holdmq"):
            steps.append((float(longest), event.decode()))
    return found, sorted(steps, reverse=True)[:STEPS] or [(0.0, "none of 0.5 ms")]


def processor_times(client: redis.Redis) -> dict[str, list[float]]:
    """The server's processor time in ms of the longest commands of the pages; a walk over sessions is the survey's."""
    pid = client.info("server")["process_id"]
    found: dict[str, list[float]] = {}

    def run(*words: str) -> Any:
        begin = processor_ms(pid)
        answer = client.execute_command(*words)
        found.setdefault(words[0], []).append(processor_ms(pid) - begin)
        return answer

    for _ in range(WALKED_PAGES):
        run("TOPIC.RETAINED", "#", "COUNT", "1001")
        run("TOPIC.MATCH", "fleet/1", "CURSOR", "99900", "COUNT", "100")
        run("SESSION.FETCH", "{full}", "COUNT", "50", "BYTES", "1048576")
        run("HISTORY.REPLAY", "plant/#", "COUNT", "200")
    cursor = b"0"
    for _ in range(WALKED_PAGES):
        cursor, _rows = run("SESSION.LIST", "CURSOR", cursor.decode(), "COUNT", str(PAGE))
    return found


def processor_ms(pid: int) -> float:
    """The processor time of the server's main thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


def main() -> int:
    """Runs it, and says whether the promises hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(embedded_kinds()[0], Path(folder) / "server")
        server.start()
        console = ConsoleProcess(server.url, Path(folder))
        try:
            client = server.client()
            begin = time.perf_counter()
            furnish(HoldMQ(client), arguments.sessions)
            print(f"{arguments.sessions} sessions made in {time.perf_counter() - begin:.0f} s")
            console.start()
            with httpx.Client(base_url=console.url, timeout=30) as http:
                for path in PAGES:
                    http.get(path)
                found, steps = measure(http, client)
            processor = processor_times(client)
        finally:
            console.close()
            server.close()
    for path, times in found.items():
        print(f"{path:45} median {statistics.median(times):7.1f} ms   longest {max(times):7.1f} ms")
    for command, times in processor.items():
        print(
            f"{command:20} {len(times)} times: processor time median {statistics.median(times):.2f} ms, "
            f"longest {max(times):.2f} ms"
        )
    slowest = max(max(times) for times in found.values())
    longest = steps[0][0]
    for step, what in steps:
        print(f"step of {step:.2f} ms: {what}")
    print(
        f"slowest page {slowest:.1f} ms (at most {MOST_PAGE_MS:g}); "
        f"longest step {longest:.2f} ms (at most {MOST_STEP_MS:g})"
    )
    return int(slowest > MOST_PAGE_MS or longest > MOST_STEP_MS)


if __name__ == "__main__":
    sys.exit(main())
