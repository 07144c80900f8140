"""How much memory processes use, as the system counts it."""

from __future__ import annotations

from pathlib import Path

_PROCESSES = Path("/proc")


def resident_bytes(pid: int, *, processes: Path = _PROCESSES) -> int | None:
    """The memory of a process that is not swapped out; None if it is gone, or the system does not tell (not Linux)."""
    try:
        status = (processes / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return int(value.split()[0]) * 1024
    return None
