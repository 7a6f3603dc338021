"""Ports to listen on."""

from __future__ import annotations

import socket

from eagle_core.errors import ConfigError


def free_port(host: str, wanted: int) -> int:
    """``wanted`` if it is free on ``host``, else one that the system picks.

    Raises: ConfigError when this machine has no such interface.
    """
    problem: OSError | None = None
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                problem = error
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(
        f"cannot listen on {host}",
        expected="an IPv4 address or name of this machine",
        got=str(problem),
        hint="leave --host out to serve this machine only",
    )


__all__ = ["free_port"]
