"""Real clients at their default options come back by themselves when the server was away.

    make storm ARGS=--away        for 120 s; the tests: 3 and 15 s

    everybody answers ──► server killed ──► more clients connect, everybody publishes ──► server started
                                                         everybody answers again within BACK_S ◄──┘

Clients: MQTT.js and paho-mqtt in both versions, gmqtt, and Mosquitto as a bridge; of each one that was connected before
and one that connects while the server is away.  A client answers on `answer/<id>` what it is asked on `ask/<id>`: so it
is connected, subscribed, and receives and publishes.  What it publishes on `kept/<id>` while the server is away is not
lost.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gmqtt
from gmqtt.mqtt.constants import MQTTv50
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.bridge import packets
from tests.bridge.talk import Talk
from tests.bridge.uplink.support import Mosquitto
from tests.support import BridgeProcess, Server, ServerKind
from tests.system.mqtt_library_processes import NODE_FOLDER, program

HOST = "127.0.0.1"
NODE_SCRIPT = Path(__file__).parent / "node" / "mqtt_comeback.cjs"
BACK_S = 10.0
PUBLISH = 3  # kind of a packet
FIRST_S = 60.0  # until everybody is there for the first time, on a busy machine
ASK_EVERY_S = 0.3
SERVER_SETTINGS = ["appendfsync always"]


class NodeFleet:
    """MQTT.js clients in one process."""

    def __init__(self, port: int, folder: Path) -> None:
        assert (NODE_FOLDER / "node_modules" / "mqtt").is_dir(), "no MQTT.js: run `make build/node/.installed`"
        self._log = (folder / "node.log").open("wb")
        self._process = subprocess.Popen(
            [program("node"), str(NODE_SCRIPT), str(port)],
            stdin=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "NODE_PATH": str(NODE_FOLDER / "node_modules")},
        )

    def join(self, *names: str, version: int) -> None:
        """Clients begin to connect."""
        self._tell({"join": names, "version": version})

    def publish(self, *names: str) -> None:
        """They publish on kept/<id>."""
        self._tell({"publish": names})

    def _tell(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._log.close()


class PahoClient:
    """paho-mqtt, with its loop in a thread."""

    def __init__(self, port: int, name: str, version: int = 4) -> None:
        self._name = name
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion(version))
        self._client.on_connect = lambda client, *_: client.subscribe(f"ask/{name}", 1)
        self._client.on_message = self._answer
        self._client.connect(HOST, port)
        self._client.loop_start()

    def _answer(self, client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        client.publish(f"answer/{self._name}", message.payload, 1)

    def publish(self) -> None:
        """Publishes on kept/<id>."""
        self._client.publish(f"kept/{self._name}", self._name, 1)

    def close(self) -> None:
        """Says goodbye."""
        self._client.disconnect()
        self._client.loop_stop()


class GmqttClient:
    """gmqtt, with an event loop in a thread."""

    def __init__(self, port: int, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._client: Any = gmqtt.Client(name)
        self._client.on_connect = lambda client, *_: client.subscribe(f"ask/{name}", qos=1)
        self._client.on_message = self._answer
        self._connecting = asyncio.run_coroutine_threadsafe(
            self._client.connect(HOST, port, version=MQTTv50), self._loop
        )

    def _answer(self, client: Any, _topic: str, payload: bytes, *_: Any) -> int:
        client.publish(f"answer/{self._name}", payload, qos=1)
        return 0

    def publish(self) -> None:
        """Publishes on kept/<id>, when it is connected for the first time."""

        async def publish() -> None:
            await asyncio.wrap_future(self._connecting)
            self._client.publish(f"kept/{self._name}", self._name, qos=1)

        asyncio.run_coroutine_threadsafe(publish(), self._loop)

    def close(self) -> None:
        """Ends it and its loop."""

        async def end() -> None:
            self._client.stop_reconnect()
            with contextlib.suppress(Exception):  # it may have no connection at this moment
                await asyncio.wait_for(self._client.disconnect(), 5)
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class MosquittoBridge:
    """A Mosquitto that is a bridge to HoldMQ, and a client of its own."""

    def __init__(self, port: int, name: str, folder: Path) -> None:
        lines = [
            f"listener {{port}} {HOST}",
            f"connection {name}",
            f"address {HOST}:{port}",
            f"topic ask/{name} in 1",
            f"topic answer/{name} out 1",
            f"topic kept/{name} out 1",
        ]
        self._broker = Mosquitto(folder / name, "\n".join(lines) + "\n")
        try:
            self._broker.start()
            self._client = PahoClient(self._broker.port, name)
        except BaseException:
            self._broker.close()
            raise

    def publish(self) -> None:
        """Publishes on kept/<id>."""
        self._client.publish()

    def close(self) -> None:
        """Ends both."""
        self._client.close()
        self._broker.close()


class Everybody:
    """All clients of a bridge; `join` more of them, and `close` them in the end."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._node = NodeFleet(port, folder)
        self._stack.callback(self._node.close)
        self._others: list[PahoClient | GmqttClient | MosquittoBridge] = []
        self._in_node: list[str] = []
        self.names: list[str] = []

    def join(self, mark: str) -> None:
        """One of each kind connects."""
        for version in (4, 5):
            name = f"mqttjs{version}-{mark}"
            self._node.join(name, version=version)
            self._in_node.append(name)
        made: dict[str, Callable[[str], PahoClient | GmqttClient | MosquittoBridge]] = {
            "paho4": lambda name: PahoClient(self._port, name),
            "paho5": lambda name: PahoClient(self._port, name, 5),
            "gmqtt": lambda name: GmqttClient(self._port, name),
            "mosquitto": lambda name: MosquittoBridge(self._port, name, self._folder),
        }
        for kind, make in made.items():
            client = make(f"{kind}-{mark}")
            self._stack.callback(client.close)
            self._others.append(client)
        self.names = [*self.names, *self._in_node[-2:], *(f"{kind}-{mark}" for kind in made)]

    def publish(self) -> None:
        """Everybody publishes on kept/<id>."""
        self._node.publish(*self._in_node)
        for client in self._others:
            client.publish()

    def close(self) -> None:
        """Ends them all."""
        self._stack.close()


class Asker:
    """Asks all clients until they have answered; its session remembers what is published on kept/."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.kept: set[str] = set()
        with Talk.connected(port, "asker", clean=False) as talk:
            talk.subscribe(("answer/#", 1), ("kept/#", 1))

    def ask(self, names: list[str], within_s: float) -> tuple[dict[str, float], list[str]]:
        """Returns after how many seconds each has answered, and who has not."""
        begun, word = time.monotonic(), os.urandom(4).hex()
        answered: dict[str, float] = {}
        with Talk.connected(self._port, "asker", clean=False, present=True) as talk:
            while len(answered) < len(names) and time.monotonic() - begun < within_s:
                for name in set(names) - set(answered):
                    talk.send(packets.publish(f"ask/{name}", word.encode()))
                time.sleep(ASK_EVERY_S)
                for topic, payload in self._messages(talk):
                    kind, _, name = topic.partition("/")
                    if kind == "kept":
                        self.kept.add(name)
                    elif payload == word.encode():
                        answered.setdefault(name, time.monotonic() - begun)
        return answered, sorted(set(names) - set(answered))

    @staticmethod
    def _messages(talk: Talk) -> Iterator[tuple[str, bytes]]:
        for data in talk.collect():
            if data[0] >> 4 == PUBLISH:
                published = packets.read_publish(data)
                if published.qos == 1:
                    talk.send(packets.puback(published.pid))
                yield published.topic, published.payload


def run(kind: ServerKind, folder: Path, away_s: float, say: Callable[[str], None]) -> list[str]:
    """The server is away for so long; what is wrong then, nothing if all is well."""
    with contextlib.ExitStack() as stack:
        server = Server(kind, folder, aof=True, config=SERVER_SETTINGS)
        stack.callback(server.close)
        server.start()
        bridge = BridgeProcess(server.url, folder)
        stack.callback(bridge.close)
        bridge.start()
        asker = Asker(bridge.port)
        everybody = Everybody(bridge.port, folder)
        stack.callback(everybody.close)
        everybody.join("before")
        _, missing = asker.ask(everybody.names, FIRST_S)
        if missing:
            return [f"not even connected at first: {', '.join(missing)}"]
        killed = time.monotonic()
        server.kill()
        everybody.join("meanwhile")
        everybody.publish()
        time.sleep(max(0.0, killed + away_s - time.monotonic()))
        server.restart()
        answered, missing = asker.ask(everybody.names, BACK_S)
        say(f"{away_s:g} s away: " + ", ".join(f"{name} {after:.1f} s" for name, after in answered.items()))
        found = [f"{name} did not come back within {BACK_S:g} s" for name in missing]
        if not missing:
            asker.ask(everybody.names, BACK_S)  # what was published meanwhile comes before these answers
            lost = sorted(set(everybody.names) - asker.kept)
            found += [f"what {name} published while the server was away is lost" for name in lost]
        return found
