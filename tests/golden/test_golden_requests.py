"""Requests of async functions that were saved once must be asked again for ever, at any parallelism."""

from __future__ import annotations

import json
from pathlib import Path

import golden_requests as content
import msgspec
import pytest

from penstock.core.messages import OperatorState

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("requests-v*"))


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("kind", content.KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_request_is_asked_again_once_at_any_parallelism(version, kind, parallelism):
    folder = HERE / version / kind
    shares = content.restored(kind, (folder / "state").read_bytes(), parallelism)
    assert sorted((row for share in shares for row in share), key=lambda row: row["n"]) == json.loads(
        (folder / content.TO_COME).read_text()
    )
    if kind == "by-key":
        owners = {(row["k"], number) for number, share in enumerate(shares) for row in share}
        assert len(owners) == len({key for key, _ in owners})
    else:
        # The rows were saved in parts, which are dealt out whole.
        assert sum(map(bool, shares)) == min(parallelism, 2 if kind == "batches" else 4)


@pytest.mark.parametrize("kind", content.KINDS)
def test_today_the_same_state_is_written(kind):
    """Arrow may lay out its own bytes otherwise from one release to the next; the rows of each part are ours."""
    written = (HERE / VERSIONS[-1] / kind / "state").read_bytes()
    old, new = (
        msgspec.msgpack.decode(data, type=OperatorState) for data in (written, content.files()[f"{kind}/state"])
    )
    for name in ("split_lists", "union_lists"):
        assert [(list_name, content.rows_of(parts)) for list_name, parts in getattr(old, name).items()] == [
            (list_name, content.rows_of(parts)) for list_name, parts in getattr(new, name).items()
        ]
    assert (old.operator, old.keyed, old.broadcast) == (new.operator, new.keyed, new.broadcast)
