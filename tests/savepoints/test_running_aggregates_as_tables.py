"""Running aggregates in a snapshot as tables."""

from __future__ import annotations

from pathlib import Path

import golden_running as content
import pytest

from penstock.core.messages import StateFile
from penstock.savepoints.tables import RunningContent, read_files

FOLDER = Path(__file__).parents[1] / "golden" / "running-v1"


class Reader:
    def get(self, file):
        return Path(file.path).read_bytes()

    def pieces(self, file):
        yield self.get(file)


def contents(kind):
    for number in range(content.PARALLELISM):
        names = sorted((FOLDER / kind).glob(f"{number}-*"), key=lambda path: int(path.name.partition("-")[2]))
        if names:
            files = tuple(StateFile(path=str(path), size=path.stat().st_size, checksum=0) for path in names)
            yield read_files(files, Reader(), what="the state")


def rows_of(kind, groups=(0, 10_000)):
    found = []
    for each in contents(kind):
        assert isinstance(each, RunningContent)
        (table,) = each.tables
        assert (table.name, table.kind) == ("aggregates", "running")
        assert table.keys.names == ([] if kind == "over-all" else ["k"])
        rows = [row for piece in each.row_tables("aggregates", "running", groups) for row in piece.to_pylist()]
        assert all(list(row) == table.columns.names for row in rows)
        assert groups != (0, 10_000) or len(rows) == table.rows
        found += rows
        assert each.row_tables("windows", "windows") is None
    return found


@pytest.mark.parametrize("kind", content.KINDS)
def test_the_newest_row_of_each_key_is_there_and_no_row_of_a_key_that_is_gone(kind):
    given = [row for number in range(3) for row in content.given(kind, number)]
    counts = {}
    for row in given:
        key = None if kind == "over-all" else row["k"]
        counts[key] = counts.get(key, 0) + (-1 if row.get("row_kind") == "delete" else 1)
    found = rows_of(kind)
    assert {row.get("k"): row["n"] for row in found} == {key: count for key, count in counts.items() if count}
    assert next(iter(found[0])) == "key_group"
    assert list(found[0])[-1] == "written_ms"
    assert "__gone" not in found[0]


def test_rows_are_read_by_key_group():
    every = rows_of("records")
    some = rows_of("records", (3, 9))
    assert sorted(map(str, some)) == sorted(str(row) for row in every if 3 <= row["key_group"] <= 9)
    assert 0 < len(some) < len(every)
