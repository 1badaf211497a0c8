"""MQTT clients that are programs: MQTT.js in Node.js, and mosquitto_pub and mosquitto_sub.

MQTT.js does what it is told in JSON lines (node/mqtt_client.cjs).  mosquitto_sub prints what it receives as JSON.
"""

import json
import os
import queue
import shutil
import subprocess
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.system.mqtt_libraries import HOST, SESSION_EXPIRY_S, TIMEOUT_S, VERSION_5, Client, Message, Properties

NODE_FOLDER = Path(__file__).parents[2] / "build" / "node"  # tools/node-clients.sh
NODE_SCRIPT = Path(__file__).parent / "node" / "mqtt_client.cjs"


def program(name: str) -> str:
    """The path of a program of the system."""
    path = shutil.which(name)
    assert path is not None, f"no {name} here: `make test` installs it"
    return path


# ---- MQTT.js ---------------------------------------------------------------------------------------------------------


class MqttJs(Client):
    """MQTT.js, in a process of its own that does what it is told."""

    _process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Connects."""
        assert (NODE_FOLDER / "node_modules" / "mqtt").exists(), "MQTT.js is missing: `make test` installs it"
        self._process = subprocess.Popen(
            [program("node"), str(NODE_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(NODE_FOLDER / "node_modules")},
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        order = {"port": self.port, "clientId": self.client_id, "version": self.version, "clean": self.clean}
        order["sessionExpiry"] = 0 if self.clean else SESSION_EXPIRY_S
        order["will"] = None if self.will is None else asdict(self.will)
        return bool(self._tell("connect", **order))

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if "message" in said:
                self.received.put(self._message(said["message"]))
            else:
                self._answers.put(said)

    @staticmethod
    def _message(said: dict[str, Any]) -> Message:
        given = said.pop("properties")
        given["user"] = tuple((name, value) for name, value in given["user"])
        given["identifiers"] = tuple(given["identifiers"])
        return Message(**said, properties=Properties(**given))

    def _tell(self, what: str, **order: Any) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **order}) + "\n")
        self._process.stdin.flush()
        answer = self._answers.get(timeout=TIMEOUT_S)
        assert "done" in answer, answer
        return answer["done"]

    def subscribe(self, topic_filter: str, qos: int, identifier: int = 0) -> None:
        """Subscribes."""
        assert self._tell("subscribe", filter=topic_filter, qos=qos, identifier=identifier) == qos

    def publish(self, message: Message) -> None:
        """Publishes."""
        self._tell("publish", message=asdict(message))

    def stop(self) -> None:
        """Says goodbye."""
        if self._process is not None:
            self._tell("stop")
            self._end()

    def vanish(self) -> None:
        """Kills the process."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        process.stdout.close()


# ---- mosquitto_pub and mosquitto_sub ---------------------------------------------------------------------------------


class Mosquitto(Client):
    """The command-line tools: mosquitto_sub stays, mosquitto_pub is called for each message.

    A connection begins with the first subscription; a will is that of mosquitto_sub.
    """

    tells_session_present = False
    _process: subprocess.Popen[str] | None = None

    @property
    def asks_for_its_will(self) -> bool:
        """With 5.0 mosquitto_sub leaves with reason 0x04."""
        return self.version == VERSION_5

    def start(self) -> bool:
        """Nothing yet: mosquitto_sub connects when there is something to subscribe to.  It does not tell the rest."""
        if not self.clean:
            self.subscribe("nothing/of/interest", 0)
        return False

    def subscribe(self, topic_filter: str, qos: int, identifier: int = 0) -> None:
        """Starts mosquitto_sub, or starts it anew."""
        if self._process is not None:
            self.stop()
        command = [*self._command("sub"), "-i", self.client_id, "-t", topic_filter, "-q", str(qos), "-F", "%j", "-d"]
        if not self.clean:
            command.append("-c")
            command += ["-x", str(SESSION_EXPIRY_S)] if self.version == VERSION_5 else []
        if identifier:
            command += ["-D", "SUBSCRIBE", "subscription-identifier", str(identifier)]
        if self.will is not None:
            command += ["--will-topic", self.will.topic, "--will-payload", self.will.payload]
            command += ["--will-qos", str(self.will.qos), *(["--will-retain"] if self.will.retain else [])]
        self._subacks: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        assert self._subacks.get(timeout=TIMEOUT_S).endswith(f": {qos}")

    def _command(self, tool: str) -> list[str]:
        version = "5" if self.version == VERSION_5 else "mqttv311"
        line_by_line = [program("stdbuf"), "-oL"]  # it does not flush what it says about itself
        return [*line_by_line, program(f"mosquitto_{tool}"), "-h", HOST, "-p", str(self.port), "-V", version]

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self.received.put(self._message(json.loads(line)))
            elif line.startswith(("Subscribed", "All subscription")):
                self._subacks.put(line.rstrip())

    @staticmethod
    def _message(said: dict[str, Any]) -> Message:
        given = said.get("properties", {})
        users = given.get("user-properties", {})
        properties = Properties(
            user=tuple(users.items()) if isinstance(users, dict) else tuple(kv for u in users for kv in u.items()),
            content_type=given.get("content-type", ""),
            response_topic=given.get("response-topic", ""),
            correlation=given.get("correlation-data", ""),
            expiry_s=given.get("message-expiry-interval", 0),
            identifiers=(given["subscription-identifier"],) if "subscription-identifier" in given else (),
        )
        return Message(said["topic"], said["payload"], said["qos"], bool(said["retain"]), properties)

    def publish(self, message: Message) -> None:
        """Calls mosquitto_pub."""
        given = message.properties
        command = [*self._command("pub"), "-t", message.topic, "-m", message.payload, "-q", str(message.qos)]
        command += ["-r"] if message.retain else []
        named = {
            "content-type": given.content_type,
            "response-topic": given.response_topic,
            "correlation-data": given.correlation,
            "message-expiry-interval": given.expiry_s or "",
        }
        for name, value in named.items():
            command += ["-D", "PUBLISH", name, str(value)] if value else []
        for name, value in given.user:
            command += ["-D", "PUBLISH", "user-property", name, value]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def stop(self) -> None:
        """Ends mosquitto_sub in order."""
        if self._process is not None:
            self._process.terminate()
            self._end()

    def vanish(self) -> None:
        """Kills mosquitto_sub."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        process.stdout.close()
