"""Ports for servers that go away and come back."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 10_000


def own_port() -> int:
    """A port of loopback at which nobody listens, and which the system gives to nobody who asks for any: while a server
    is away no other process, and not even a client that calls it, gets its port by chance."""
    first_assigned = int(_ASSIGNED.read_text().split()[0]) if _ASSIGNED.exists() else 32_768
    ports = range(_LEAST, first_assigned) if first_assigned > _LEAST else range(1_024, _LEAST)
    for port in random.sample(ports, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port between {ports.start} and {ports.stop} is free")
