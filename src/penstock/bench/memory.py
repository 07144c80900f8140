"""How much memory processes use, as the system counts it."""

from __future__ import annotations

from pathlib import Path

_PROCESSES = Path("/proc")


def resident_bytes(pid: int, *, processes: Path = _PROCESSES) -> int | None:
    """The resident memory of a process; None if the process has ended, or if the system is not Linux."""
    try:
        status = (processes / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return int(value.split()[0]) * 1024
    return None
