"""Writes golden snapshots with the code of today: once per version of a format, and never over what is there.

    PYTHONPATH=src:tests/support python tests/golden/make.py v2
    PYTHONPATH=src:tests/support python tests/golden/make.py native-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py windows-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py aggregates-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py sketches-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py updates-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py runs-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py joins-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py joinruns-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py requests-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py decimals-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py running-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py tops-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py sorts-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py updating_runs-v2
    PYTHONPATH=src:tests/support python tests/golden/make.py patterns-v2

What was written before stays, and must be readable for ever. The modules of `tests/support` whose names begin with
`golden_` say what is in them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import golden_aggregates
import golden_content
import golden_decimals
import golden_join_runs
import golden_joins
import golden_native
import golden_patterns
import golden_requests
import golden_running
import golden_runs
import golden_sketches
import golden_sorts
import golden_tops
import golden_updates
import golden_updating_runs
import golden_windows


def main(version: str) -> None:
    target = Path(__file__).parent / version
    if target.exists():
        sys.exit(f"{target} is there: golden files are written once; give another version")
    contents = {
        "native": golden_native,
        "windows": golden_windows,
        "aggregates": golden_aggregates,
        "sketches": golden_sketches,
        "updates": golden_updates,
        "runs": golden_runs,
        "joins": golden_joins,
        "joinruns": golden_join_runs,
        "requests": golden_requests,
        "decimals": golden_decimals,
        "running": golden_running,
        "tops": golden_tops,
        "sorts": golden_sorts,
        "updating_runs": golden_updating_runs,
        "patterns": golden_patterns,
    }
    content = contents.get(version.partition("-")[0], golden_content)
    for path, data in content.files().items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
