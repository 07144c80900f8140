"""Python's cycle collector in a slot.

A full collection looks at every container of the process. Most of them are modules, functions and classes, which stay
as long as the process does; to look at them takes tens of milliseconds, in which neither the loop nor the thread that
writes snapshots gets anywhere, and both make such collections due: they hold many small objects for a moment. So what
is there before the loop begins is taken out of sight. Whatever is made later is collected as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 1
"""The generations of what was made lately."""


@contextmanager
def out_of_sight() -> Iterator[None]:
    """While the block runs, collections leave out what was there when it began; afterwards nothing is left out. Belongs
    to the whole process."""
    # What a program left when it was imported goes. Older garbage is little, and goes when the block has ended.
    gc.collect(YOUNG)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
