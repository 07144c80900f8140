"""Memory and processor time of this process, as the system counts them."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4_096


def process_numbers() -> dict[str, float]:
    """`rss_bytes`, `peak_rss_bytes`, `cpu_s` and `threads` of this process. A number that the system does not tell is
    left out."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
    found = {
        "peak_rss_bytes": float(peak),
        "cpu_s": used.ru_utime + used.ru_stime,
        "threads": float(threading.active_count()),
    }
    with contextlib.suppress(OSError, ValueError, IndexError):
        found["rss_bytes"] = float(int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE)
    return found
