"""Servers of python-socketio with a Redis manager, a client at each, an emitter: python_socketio.py PORT [CHANNEL]."""

import asyncio
import json
import sys

import aiohttp.web
import socketio

URL = f"redis://127.0.0.1:{sys.argv[1]}/0"
CHANNEL = sys.argv[2] if len(sys.argv) > 2 else "socketio"
READY_S = 20.0
PAUSE_S = 0.05


async def serve(manager: socketio.AsyncRedisManager) -> tuple[socketio.AsyncServer, aiohttp.web.AppRunner, int]:
    """A server on a free port."""
    server = socketio.AsyncServer(client_manager=manager, async_mode="aiohttp")
    application = aiohttp.web.Application()
    server.attach(application)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return server, runner, runner.addresses[0][1]


async def main() -> list[str]:
    """What the clients heard."""
    heard: list[str] = []
    outside = socketio.AsyncRedisManager(URL, channel=CHANNEL, write_only=True)
    await outside.emit("news", "before any server")
    servers, clients = [], []
    for name in ("a", "b"):
        server, runner, port = await serve(socketio.AsyncRedisManager(URL, channel=CHANNEL))
        client = socketio.AsyncClient()
        client.on("news", lambda text, name=name: heard.append(f"{name}: {text}"))
        await client.connect(f"http://127.0.0.1:{port}")
        servers.append((server, runner))
        clients.append(client)
    async with asyncio.timeout(READY_S):
        while not {"a: ready", "b: ready"} <= set(heard):  # until both servers have subscribed
            await outside.emit("news", "ready")
            await asyncio.sleep(PAUSE_S)
        await servers[0][0].emit("news", "to all")
        await outside.emit("news", "from outside")
        while sum(not text.endswith("ready") for text in heard) < 4:  # noqa: ASYNC110 - a script, not a service
            await asyncio.sleep(PAUSE_S)
    for client in clients:
        await client.disconnect()
    for _server, runner in servers:
        await runner.cleanup()
    return sorted(set(heard))


print(json.dumps(asyncio.run(main())))
