from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Takes and frees blocks of a message's size, some of them alive at a time, and counts the pages fetched for them.
CHURN = """
import ctypes, resource
from penstock.net.zeromq import keep_message_memory
if {keep}:
    assert keep_message_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
def churn():
    for _ in range(50):
        blocks = [library.malloc(1 << 20) for _ in range(4)]
        for block in blocks:
            ctypes.memset(block, 1, 1 << 20)
        for block in blocks:
            library.free(block)
churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_fetched(*, keep: bool) -> int:
    done = subprocess.run([sys.executable, "-c", CHURN.format(keep=keep)], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries offer no choice")
def test_the_memory_of_messages_is_used_again():
    assert pages_fetched(keep=True) * 10 < pages_fetched(keep=False)
