"""gmqtt behind the interface of mqtt_libraries: an asyncio client with a codec of its own, in a loop of its own."""

import asyncio
import queue
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import gmqtt
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from gmqtt.storage import PersistentStorage

from tests.system.mqtt_libraries import HOST, SESSION_EXPIRY_S, TIMEOUT_S, VERSION_5, Client, Message, Properties

T = TypeVar("T")


class Gmqtt(Client):
    """gmqtt."""

    _client: Any = None

    def start(self) -> bool:
        """Connects."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"gmqtt {self.client_id}", daemon=True)
        self._thread.start()
        self._present: queue.Queue[bool] = queue.Queue()
        self._subacks: queue.Queue[tuple[int, ...]] = queue.Queue()
        self._do(self._connect())
        return self._present.get(timeout=TIMEOUT_S)

    async def _connect(self) -> None:
        will = self.will
        options: dict[str, Any] = {}
        if will is not None:
            options["will_message"] = gmqtt.Message(will.topic, will.payload, will.qos, will.retain)
        if self.version == VERSION_5 and not self.clean:
            options["session_expiry_interval"] = SESSION_EXPIRY_S
        self._storage = PersistentStorage()
        client = gmqtt.Client(self.client_id, clean_session=self.clean, persistent_storage=self._storage, **options)
        client.set_config({"reconnect_retries": 0})
        client.on_connect = lambda _client, flags, _code, _properties: self._present.put(bool(flags & 1))
        client.on_subscribe = lambda _client, _mid, codes, _properties: self._subacks.put(codes)
        client.on_message = self._on_message
        self._client = client
        async with asyncio.timeout(TIMEOUT_S):
            await client.connect(HOST, self.port, version=MQTTv50 if self.version == VERSION_5 else MQTTv311)

    def _on_message(self, _client: Any, topic: str, payload: bytes, qos: int, given: dict[str, Any]) -> int:
        properties = Properties(
            user=tuple((name, value) for name, value in given.get("user_property", ())),
            content_type=_only(given, "content_type", ""),
            response_topic=_only(given, "response_topic", ""),
            correlation=_text(_only(given, "correlation_data", "")),
            expiry_s=_only(given, "message_expiry_interval", 0),
            identifiers=tuple(given.get("subscription_identifier", ())),
        )
        self.received.put(Message(topic, payload.decode(), qos, bool(given["retain"]), properties))
        return 0

    def subscribe(self, topic_filter: str, qos: int, identifier: int = 0) -> None:
        """Subscribes."""
        options = {"subscription_identifier": identifier} if identifier else {}

        async def subscribe() -> None:
            self._client.subscribe(topic_filter, qos=qos, **options)

        self._do(subscribe())
        assert self._subacks.get(timeout=TIMEOUT_S) == (qos,)

    def publish(self, message: Message) -> None:
        """Publishes."""
        given = message.properties
        options: dict[str, Any] = {
            "user_property": list(given.user),
            "content_type": given.content_type,
            "response_topic": given.response_topic,
            "correlation_data": given.correlation.encode(),
            "message_expiry_interval": given.expiry_s,
        }

        async def publish() -> None:
            present = {name: value for name, value in options.items() if value}
            self._client.publish(message.topic, message.payload, message.qos, message.retain, **present)
            async with asyncio.timeout(TIMEOUT_S):
                await self._storage.wait_empty()

        self._do(publish())

    def stop(self) -> None:
        """Says goodbye."""
        client, self._client = self._client, None
        if client is not None:
            try:
                self._do(client.disconnect())
            finally:
                self._end()

    def vanish(self) -> None:
        """Closes the socket."""
        client, self._client = self._client, None

        async def close() -> None:
            client._is_active = False  # it has no way to close without DISCONNECT
            await client._connection.close()

        self._do(close())
        self._end()

    def _end(self) -> None:
        async def cancel_the_rest() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self._do(cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)


def _only(given: dict[str, Any], name: str, otherwise: Any) -> Any:
    return given.get(name, [otherwise])[0]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
