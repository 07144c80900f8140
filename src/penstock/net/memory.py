"""How the C library handles the memory of messages.

ZeroMQ takes memory for every message it sends or receives. By default the C library gives freed blocks of that size
back to the system, and each message then pays for getting fresh pages again: about a third of the whole cost of sending
a batch of 1 MB.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_KEPT_BYTES = 64 * 1024 * 1024
_LARGEST_KEPT_BLOCK_BYTES = 32 * 1024 * 1024


def keep_message_memory() -> bool:
    """Have this process keep up to 64 MiB of freed memory for the next messages. To be called once, in a process that
    does little else than exchange batches. Returns False where the C library offers no such choice."""
    try:
        choose = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(choose(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(choose(_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK_BYTES))
