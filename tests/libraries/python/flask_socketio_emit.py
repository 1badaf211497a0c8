"""What a process without a server emits through Flask-SocketIO's message queue: flask_socketio_emit.py PORT."""

import json
import sys

import redis
from flask_socketio import SocketIO

PORT = int(sys.argv[1])

outside = SocketIO(message_queue=f"redis://127.0.0.1:{PORT}/0")
outside.emit("news", "before any server")
with redis.Redis(port=PORT) as client, client.pubsub() as listener:
    listener.subscribe("flask-socketio")
    listener.get_message(timeout=10)
    outside.emit("news", "live")
    message = listener.get_message(timeout=10)
    assert message is not None
    print(json.dumps(b"live" in message["data"]))
