"""Writes golden snapshots with the code of today: once per version of a format, and never over what is there.

    PYTHONPATH=src:tests/support python tests/golden/make.py v2

What was written before stays, and must be readable for ever. `tests/support/golden_content.py` says what is in them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import golden_content


def main(version: str) -> None:
    target = Path(__file__).parent / version
    if target.exists():
        sys.exit(f"{target} is there: golden files are written once; give another version")
    for path, data in golden_content.files().items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
