"""Python's cycle collector in a slot.

A full collection looks at every container of the process. Most containers belong to modules, functions and classes,
which stay as long as the process does. To look at them takes tens of milliseconds, in which neither the loop nor the
thread that writes snapshots makes progress. Both cause such collections, because both hold many small objects for a
moment. So the containers that exist before the loop begins are left out of all collections. Containers that are made
later are collected as usual.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 1
"""Up to this generation, the collector has the objects that were made lately."""


@contextmanager
def out_of_sight() -> Iterator[None]:
    """While the block runs, collections leave out the objects that existed when the block began. After the block
    nothing is left out. This holds for the whole process."""
    # This frees the garbage that the imports of the program have left. There is little older garbage; it is freed after
    # the block.
    gc.collect(YOUNG)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
