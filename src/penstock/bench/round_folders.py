"""Where one round of a benchmark writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def round_folder(work: Path, name: str) -> Iterator[Path]:
    """A folder of this round's own in `work`, that is gone when the block ends. If Spark still writes there, some of it
    stays, and is in the way of no later round."""
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
