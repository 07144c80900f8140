"""What joins of tables that change, and joins with versions, must come to: by loops over all rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
from join_rig import Record, changes_of, same_key

from penstock.api.join_steps import JoinKind

Rows = list[Record]


def joined(how: JoinKind, left: Rows, right: Rows, matches: Any) -> Counter[tuple[Any, ...]]:
    """The numbers of the left and the right row of each result, by a loop over all pairs."""
    found: Counter[tuple[Any, ...]] = Counter()
    met_left, met_right = [False] * len(left), [False] * len(right)
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            if same_key(one.key, other.key) and matches(one, other):
                met_left[i] = met_right[j] = True
                found[one.number, other.number] += 1
    if how in (JoinKind.SEMI, JoinKind.ANTI):
        return Counter((one.number,) for one, met in zip(left, met_left, strict=True) if met is (how is JoinKind.SEMI))
    if how in (JoinKind.LEFT, JoinKind.FULL):
        found.update((one.number, None) for one, met in zip(left, met_left, strict=True) if not met)
    if how in (JoinKind.RIGHT, JoinKind.FULL):
        found.update((None, other.number) for other, met in zip(right, met_right, strict=True) if not met)
    return found


def table_of(step: Any, rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The table that changes make up. No row is taken back before it came."""
    names, table = step.schema.names, Counter[tuple[Any, ...]]()
    wanted = [names.index(name) for name in ("l", "r") if name in names]
    for row in rows:
        number = tuple(row[at] for at in wanted)
        if step.has_changes and row[-1] in ("delete", "update_before"):
            assert table[number] > 0, f"{row} was not there"
            table[number] -= 1
        else:
            table[number] += 1
    return +table


class Script:
    """Draws batches of changes of tables."""

    def __init__(self, draw: random.Random, keys: list[Any], step: Any) -> None:
        self.tables: tuple[Rows, Rows] = ([], [])
        self._draw = draw
        self._keys = keys
        self._step = step

    def batch(self, side: int) -> pa.RecordBatch:
        """A batch of rows that come, some of them equal to each other, and of rows that are taken back."""
        table, draw = self.tables[side], self._draw
        records: Rows = []
        kinds: list[str] = []
        for _ in range(draw.randrange(1, 8)):
            if self._step.retracts[side] and table and draw.random() < 0.4:
                gone = table.pop(draw.randrange(len(table)))
                records.append(gone)
                kinds.append(draw.choice(("delete", "update_before")))
            else:
                # Few numbers: there are equal rows.
                record = Record(draw.choice(self._keys), None, draw.randrange(6))
                table.append(record)
                records.append(record)
                kinds.append(draw.choice(("insert", "update_after")))
        return changes_of(self._step, side, records, kinds)


def expected_versions(how: JoinKind, records: list[Record], versions: list[Record]) -> Counter[tuple[Any, ...]]:
    """The numbers of each record and of its version. No two versions of a key have the same time."""
    found: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        held = [
            version
            for version in versions
            if same_key(record.key, version.key)
            and record.time is not None
            and version.time is not None
            and version.time <= record.time
        ]
        last = max(held, key=lambda version: version.time or 0, default=None)
        match how:
            case JoinKind.SEMI:
                found.update([(record.number,)] if last else [])
            case JoinKind.ANTI:
                found.update([] if last else [(record.number,)])
            case _:
                found.update([(record.number, last.number if last else None)] if last or how is JoinKind.LEFT else [])
    return found
