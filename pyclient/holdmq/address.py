"""The address of a server or a Sentinel: host and port."""

from typing import TypeAlias

__all__ = ["MAX_PORT", "Address", "shown_address"]

Address: TypeAlias = tuple[str, int]

MAX_PORT = 65535


def shown_address(address: Address) -> str:
    """An address for people: one of IPv6 is in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
