"""The fuzzer of the core: records, TBMQ's JSON, MQTT packets and properties, topics, globs, policies, keys, the trie.

And the index of history, whole conversations with the engine, and the frames of WebSockets.  core_driver.c mutates and
watches the coverage, core_targets.c, core_history.c, core_engine.c and core_websocket.c know the laws; they are
compiled with the core under the address and undefined-behaviour sanitizers.  An input that breaks a law goes into the
corpus, where the tests replay it.

    python -m tests.fuzz.core --seconds 600        fuzz
    python -m tests.fuzz.core --target 16          the same, mostly of one target: its inputs alone are mutated
    python -m tests.fuzz.core --replay FILE        every input of the file, once
"""

import argparse
import os
import random
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CORPUS = HERE / "corpus" / "core.txt"
BUILD = REPOSITORY / "build" / "fuzz"
SANITIZE = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
PLAIN = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-g", "-DHMQ_ASSERT", f"-I{REPOSITORY / 'src'}")
TARGETS = 18  # of core_targets.c: the first byte of an input names one
SECONDS_BEYOND = 60.0  # for the end of a run, beyond the time that was asked for
# The smallest input of each target's kind, for a corpus that is lost.
FIRST = (
    b"\x00\xfa\x11\x00\x00\x00\x00\x00\x00\x00\x01\x00a",
    b"\x01\xfb\x01\x00\x00\x01" + bytes(16),
    b"\x01\x05" + bytes(7) + b"\x05\x00\x01\x02\x00\x00\x00ab\x06" + bytes(7) + b"\x06\x00\x00\x00\x00\x00\x00",
    b'\x02\x00\x01{"packetType":"PUBLISH","packetId":1,"payload":""}',
    (
        b'\x02\x00\x01{"packetType":"PUBLISH","topicName":"a\\/b","qos":2,"time":1,"msgExpiryInterval":9,"payload":"AA==",'
        b'"subscriptionIds":[1,200],"userProperties":{"props":[{"k":"a","v":"\\u00fc"}]},"correlationData":"AAA="}'
    ),
    b"\x03\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
    b"\x03\x82\x06\x00\x01\x00\x01a\x01",
    b"\x04\x80a/+/#a/b/c",
    b"\x05\x80a*[b-c]?abc",
    b"\x06a* hold=all last=on maxlen=5 ttl=0 deliver=held; * hold=none",
    b"\x07p{a%7B}_messages_65535",
    b"\x08\x10\x03a/+\x02\x03a/b\x11\x03a/+",
    b"\x08" + b"".join(bytes((n % 16 << 4, 1 + 40 * (n // 16))) + b"a" for n in range(40)) + b"\x02\x01a",
    b"\x09" + bytes(10),
    b"\x0a\x10\x12\x00\x04MQTT\x05\x02\x00\x3c\x05\x11\x00\x00\x00\x0a\x00\x00",
    b"\x0a\x32\x0e\x00\x01a\x00\x01\x08\x02\x00\x00\x00\x09\x23\x00\x01x",
    b"\x0a\x82\x09\x00\x01\x02\x0b\x07\x00\x01a\x2d\x40\x03\x00\x01\x10\xe0\x01\x04",
    b"\x0b\x03\x01\x01\x03\x00\x01t\x26\x00\x01k\x00\x01v",
    b"\x0choldmq-patterns 1 levels=2\n#\na/+3/#\nb/+\n$s\xfea/b/c/d\xfea/+/c/#\xfeb/1\xfe+/1",
    b"\x0d\x07\x03\x05\x83\x02\x85\x04\xfe\x03\xfe\x83\x02",
    b"\x0eh1-1-7-3-3e8-1-0-0-0-62c7",
    b"\x0e" + bytes(40),
    # Connects and opens, publishes with each QoS, gets answers, pushes and pages, acknowledges.
    b"\x10\xff\x00\x00\xf0\x00\x0b\x32\x05\x00\x01a\x00\x01\x34\x05\x00\x01b\x00\xfb\x00",
    b"\x10\xff\x04\x1f\xf0\x00\x09\x30\x06\x00\x01a\x03\x23\x00\x01\xfb\x00",
    b"\x10\xff\x00\x00\xfc\x04\x01\x03abc\xf0\x00\x04\x40\x02\x00\x02\xfb\x00",
    b"\x10\xff\x08\x00\xfd\x05\x00\x01\x02xy\xf0\x00\x04\x40\x02\x00\x02\xf5\x01\xf5\x00\xfb\x00",
    b"\x10\xff\x00\x02\xfc\x04\x02\x01x\xf0\x00\x04\x50\x02\x00\x02\xfb\x00\xf0\x00\x04\x70\x02\x00\x02\xfb\x00",
    b"\x10\xff\x00\x00\xf0\x00\x08\x32\x06\x00\x01a\x00\x01x\xfb\x04\xf4\x05\xf4\xff\xfb\x00",
    # Publishes that go as one: answered; not known; lost in the middle.
    b"\x10\xff\x00\x00\xf0\x00\x0e\x32\x05\x00\x01a\x00\x01\x32\x05\x00\x01b\x00\x02\xfb\x30",
    b"\x10\xff\x00\x00\xf0\x00\x0c\x30\x03\x00\x01a\x34\x05\x00\x01b\x00\x02\xfb\x08\xfb\x20",
    b"\x10\xff\x00\x00\x00\x00\x0e\x32\x05\x00\x01a\x00\x01\x32\x05\x00\x01b\x00\x02\xf5\x83\xf5\x00\xfb\x30",
    # Frames of a client: whole, in fragments with a ping between, close, text, length of 16 and 64 bits; a request.
    b"\x11\x80\x82\x83\x01\x02\x03\x04abc\x89\x81\x01\x02\x03\x04p\x88\x82\x01\x02\x03\x04\x02\xea",
    b"\x11\x82\x02\x81\x01\x02\x03\x04a\x89\x80\x01\x02\x03\x04\x80\x81\x01\x02\x03\x04b\x8a\x80abcd",
    b"\x11\x81\x82\xfe\x00\x7e\x01\x02\x03\x04" + bytes(126) + b"\x81\x80",
    b"\x11\x84\x82\xff\x80\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04",
    b"\x11\x84\x88\x84\x00\x00\x00\x00\x03\xe8\xc0\x80",
    b"\x11\x03GET /mqtt HTTP/1.1\r\nHost: h\r\n\r\n",
    b"\x0f\x01\x02\x64\x05a/1/t\xfea/2/t\xfea/3/p\xfe$s/1\xfeb\xfeb/c/d/e/f",
)


def build(folder: Path) -> Path:
    """Compile the fuzzer and return its path.

    Raises:
        subprocess.CalledProcessError: the compiler failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "gcc")
    sources = sorted(map(str, (REPOSITORY / "src").rglob("*.c")))
    targets = [str(HERE / "core_targets.c"), str(HERE / "core_history.c"), str(HERE / "core_engine.c")]
    targets.append(str(HERE / "core_websocket.c"))
    driver = str(HERE / "core_driver.c")
    steps = (
        (*PLAIN, "-O1", *SANITIZE, "-fsanitize-coverage=trace-pc", "-c", *sources),
        (*PLAIN, "-O1", *SANITIZE, "-c", *targets),
        (*PLAIN, "-O2", "-c", driver),
        (*SANITIZE, "-o", "core_driver", *(f"{Path(source).stem}.o" for source in (*sources, *targets, driver))),
    )
    for step in steps:
        subprocess.run([compiler, *step], cwd=folder, check=True)
    return folder / "core_driver"


def run(driver: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer with the sanitizers' settings."""
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    environment.pop("LD_PRELOAD", None)
    return subprocess.run(
        [str(driver), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=timeout_s
    )


def replay(driver: Path, file: Path) -> subprocess.CompletedProcess[str]:
    """Run every input of a corpus file once."""
    return run(driver, "--replay", str(file), timeout_s=SECONDS_BEYOND)


def of_target(lines: list[str], target: int) -> list[str]:
    """The inputs that begin with a byte for this target."""
    return [line for line in lines if line and line[0] != "#" and int(line[:2], 16) % TARGETS == target]


def fuzz(driver: Path, seed: int, seconds: int, target: int | None) -> int:
    """Fuzz for so long; 1 after a finding, which is then in the corpus."""
    current, fresh, start = BUILD / "current", BUILD / "core.txt", BUILD / "start.txt"
    known = CORPUS.read_text().splitlines() if CORPUS.exists() else []
    lines = [data.hex() for data in FIRST] + known
    start.write_text("\n".join(lines if target is None else of_target(lines, target)) + "\n")
    sys.stdout.write(f"core: seed {seed}, {seconds} s\n")
    sys.stdout.flush()
    arguments = ("--seed", str(seed), "--seconds", str(seconds), str(start), str(current), str(fresh))
    done = run(driver, *arguments, timeout_s=seconds + SECONDS_BEYOND)
    sys.stdout.write(done.stdout)
    if done.returncode == 0:
        found = fresh.read_text().splitlines()
        CORPUS.write_text("\n".join(found if target is None else dict.fromkeys(known + found)) + "\n")
        return 0
    data = current.read_bytes()
    bytes_of_input = data[4 : 4 + int.from_bytes(data[:4], sys.byteorder)]
    finding = CORPUS.with_name(f"core-{sha256(bytes_of_input).hexdigest()[:12]}.txt")
    finding.write_text(f"{bytes_of_input.hex()}\n")
    sys.stdout.write(f"{done.stderr}\nfinding: {finding}\n")
    return 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fuzz the core.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--replay", type=Path, help="a file of the corpus")
    parser.add_argument("--target", type=int, choices=range(TARGETS), help="the number of one, as in core_targets.c")
    options = parser.parse_args()
    driver = build(BUILD)
    if options.replay is None:
        return fuzz(driver, options.seed, options.seconds, options.target)
    done = replay(driver, options.replay)
    sys.stdout.write(done.stdout + done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
