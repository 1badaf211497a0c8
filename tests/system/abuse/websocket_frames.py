"""Pours PINGREQs over a WebSocket, each in a frame of 8 bytes, and reads the answers."""

from tests.bridge import packets
from tests.system.abuse.target import BINARY, BLOCK_BYTES, Target, frame, pour, receive


def abuse(target: Target) -> None:
    """One client."""
    with target.websocket() as client:
        client.sendall(frame(BINARY, packets.connect("abuse-frames", keep_alive=0)))
        receive(client, 6)
        ping = frame(BINARY, packets.PINGREQ)
        pour(target, client, ping * (BLOCK_BYTES // len(ping)))
