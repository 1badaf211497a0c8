"""Binds the sockets on which a bridge listens: for clients, and for metrics and health."""

import socket


def bound_socket(host: str, port: int, *, reuse_port: bool, purpose: str = "") -> socket.socket:
    """Binds a socket to the address.  It does not listen yet.

    Args:
        host: the address.
        port: 0 takes a free one.
        reuse_port: whether other processes may have it, too.
        purpose: for the text of an error, such as " for metrics".

    Raises:
        OSError: the address is not available; the text names it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}{purpose}: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}{purpose}: {error.strerror}") from error
    return bound
