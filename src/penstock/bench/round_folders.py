"""The folder of one round of a benchmark."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def round_folder(work: Path, name: str) -> Iterator[Path]:
    """A new folder in `work`, which is removed when the block ends. If Spark still writes to the folder then, some
    files stay. They do not disturb later rounds, because each round has another folder."""
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
