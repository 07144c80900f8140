"""Whether a job has shown the rows that it must show, as the mode of its checkpoints promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.sim.changes import check_table, table_of
from penstock.sim.expected import order_of, sides_of
from penstock.sim.external import Transaction
from penstock.sim.inputs import Row, rows_of
from penstock.sim.jobs import Shape, Workload
from penstock.sim.joining import shown_early, with_settled_versions
from penstock.sim.rules import Rule
from penstock.sim.window_kinds import WindowKind
from penstock.sim.world import World

Place = tuple[int, ...]
"""Key, begin and end of a window. Windows over all records have no key."""


@dataclass(frozen=True, kw_only=True)
class Standard:
    """What the rows of a job are held to."""

    complete: bool
    """Whether no row may be missing."""
    repeats: bool = False
    """Whether records may count more than once."""
    rule: Rule = Rule.EXACTLY_ONCE
    """The rule that wrong or missing rows break."""


def shown_by(committed: Iterable[Transaction]) -> dict[str, Counter[Row]]:
    """The visible rows of each sink."""
    shown: dict[str, Counter[Row]] = {}
    for transaction in committed:
        rows = shown.setdefault(transaction.target, Counter())
        for batch in transaction.batches:
            rows.update(rows_of(batch))
    return shown


def shown_of(workload: Workload, committed: Iterable[Transaction]) -> dict[str, Counter[Row]]:
    """The visible rows of each sink; of late records and windows that show updates, the units that are left."""
    shown = shown_by(committed)
    return _net_units(shown) if workload.shape is Shape.LATE and workload.updates is not None else shown


def _net_units(shown: dict[str, Counter[Row]]) -> dict[str, Counter[Row]]:
    """The units that are left when the units that were taken back are taken from all units."""
    left: dict[str, Counter[Row]] = {}
    for target, rows in shown.items():
        found = left.setdefault(target, Counter())
        for (*place, n, top), count in rows.items():
            found[*place, abs(n), top] += count if n > 0 else -count
    return left


def check_changes(
    world: World,
    committed: Iterable[Transaction],
    expected: dict[str, Counter[Row]],
    standard: Standard,
    kind: WindowKind,
) -> None:
    """Compare the rows of every sink after all visible changes with the `expected` rows."""
    tables = table_of(world, committed)
    for target, rows in expected.items():
        actual = tables.get(target, Counter())
        check_table(world, target, actual, rows, complete=standard.complete, sessions=kind is WindowKind.SESSION)


def check_output(
    world: World,
    shown: dict[str, Counter[Row]],
    expected: dict[str, Counter[Row]],
    standard: Standard,
    *,
    windows: bool,
    possible: dict[str, Counter[Row]] | None = None,
) -> None:
    """Compare the visible rows of every sink with the `expected` rows. `possible` are all rows that may be shown where
    records may count more than once: a sink may also show rows of records behind the barriers of the savepoint that the
    job was stopped with."""
    compare = _check_windows if windows and standard.repeats else _check_rows
    allowed = expected if possible is None or not standard.repeats else possible
    for target in dict.fromkeys((*expected, *shown)):
        wanted = _Wanted(expected.get(target, Counter()), allowed.get(target, Counter()))
        compare(world, target, shown.get(target, Counter()), wanted, standard)


class _Wanted(NamedTuple):
    """The rows that one sink must show, and the rows that the sink may show."""

    rows: Counter[Row]
    possible: Counter[Row]


def _check_rows(world: World, target: str, actual: Counter[Row], expected: _Wanted, standard: Standard) -> None:
    surplus, missing = actual - expected.rows, expected.rows - actual
    wrong = Counter({row: count for row, count in surplus.items() if row not in expected.possible})
    if standard.repeats:
        surplus = wrong
    if surplus:
        world.violate(
            standard.rule,
            f"{target} shows {surplus.total()} rows too many ({len(surplus) - len(wrong)} kinds are repeated, "
            f"{len(wrong)} are wrong), such as {_first(surplus)}",
        )
    if missing and standard.complete:
        world.violate(standard.rule, f"{missing.total()} rows are missing in {target}, such as {_first(missing)}")


def _check_windows(world: World, target: str, actual: Counter[Row], expected: _Wanted, standard: Standard) -> None:
    """Compare by window: the number of records in all rows of the window, and the greatest value."""
    wanted, possible = _by_window(expected.rows), _by_window(expected.possible)
    found = _by_window(actual)
    wrong = [
        f"{place}: {found[place]} instead of {wanted.get(place, (0, 0))}"
        for place in found
        if place not in possible or found[place][1] > possible[place][1]
    ]
    if wrong:
        world.violate(standard.rule, f"{len(wrong)} windows in {target} are wrong, such as {sorted(wrong)[0]}")
    # Records that are read again may give a second, smaller row of a window. But one row must have all its records.
    fullest: dict[Place, int] = {}
    for *place, count, _ in actual:
        fullest[tuple(place)] = max(count, fullest.get(tuple(place), 0))
    early = [place for place, count in fullest.items() if place in wanted and count < wanted[place][0]]
    if early:
        world.violate(standard.rule, f"{len(early)} windows in {target} closed early, such as {sorted(early)[0]}")
    missing = [
        place
        for place, (count, top) in wanted.items()
        if found.get(place, (0, 0))[0] < count or found.get(place, (0, 0))[1] < top
    ]
    if missing and standard.complete:
        world.violate(standard.rule, f"{len(missing)} windows in {target} lack records, such as {sorted(missing)[0]}")


def check_parts(
    world: World,
    shown: dict[str, Counter[Row]],
    expected: dict[str, Counter[Row]],
    standard: Standard,
    kind: WindowKind,
) -> None:
    """Compare windows that may be shown in several rows, because a drain emits open windows early. All rows of a window
    together must have the records of the window, or fewer records if `standard` lets rows be missing. The parts of a
    session have other bounds than the session, so all sessions of a key are compared together."""
    moved = kind.is_moved
    for target in dict.fromkeys((*expected, *shown)):
        wanted = _by_window(expected.get(target, Counter()), moved=moved)
        found = _by_window(shown.get(target, Counter()), moved=moved)
        wrong = [
            place
            for place in dict.fromkeys((*wanted, *found))
            if not _is_right(wanted.get(place), found.get(place), standard)
        ]
        if wrong:
            place = min(wrong)
            text = f"{place} has {found.get(place)} instead of {wanted.get(place)}"
            world.violate(standard.rule, f"{len(wrong)} windows in {target} are wrong, their parts added up: {text}")


def without_early(
    shown: dict[str, Counter[Row]],
    workload: Workload,
    inputs: Sequence[pa.RecordBatch],
    wanted: dict[str, Counter[Row]],
) -> dict[str, Counter[Row]]:
    """The visible rows, without the rows of a join that a drain has shown early: records that had no match then."""
    if workload.shape is not Shape.JOIN:
        return shown
    if workload.joining.has_versions:
        sides = sides_of(workload, inputs)
        return {
            target: with_settled_versions(rows, wanted.get(target, Counter()), *sides) for target, rows in shown.items()
        }
    early = shown_early(workload.joining, *sides_of(workload, inputs))
    return {target: rows - ((rows - wanted.get(target, Counter())) & early) for target, rows in shown.items()}


def _is_right(wanted: tuple[int, int] | None, found: tuple[int, int] | None, standard: Standard) -> bool:
    """Whether a window meets the standard. A window is given as its number of records and its greatest value."""
    if wanted is None or found is None:
        return found is None and not standard.complete
    has_enough = found[0] >= wanted[0] and found[1] >= wanted[1]
    has_no_more = (found[0] <= wanted[0] or standard.repeats) and found[1] <= wanted[1]
    return (has_enough or not standard.complete) and has_no_more


def _by_window(rows: Counter[Row], *, moved: bool = False) -> dict[Place, tuple[int, int]]:
    found: dict[Place, tuple[int, int]] = {}
    for (*bounds, count, top), times in rows.items():
        place = tuple(bounds[:-2] if moved else bounds)
        before, greatest = found.get(place, (0, top))
        found[place] = (before + count * times, max(greatest, top))
    return found


def check_order(world: World, committed: Iterable[Transaction], workload: Workload) -> None:
    """The rows of a key must be visible in the order of the input, in all shapes of jobs that keep this order."""
    group_of = order_of(workload)
    if group_of is None or workload.shares_keys:
        return
    last: dict[tuple[str, Hashable], int] = {}
    seen: dict[tuple[str, Hashable, int], None] = {}
    for transaction in committed:
        target = transaction.target
        for row in (row for batch in transaction.batches for row in rows_of(batch)):
            group, seq = group_of(row, transaction.subtask), row[1]
            if group is None or (target, group, seq) in seen:
                # `check_output` checks repeated records.
                continue
            seen[target, group, seq] = None
            if seq < last.get((target, group), -1):
                before = last[target, group]
                text = f"record {seq} of {group} came after record {before} ({transaction.name})"
                world.violate(Rule.KEY_ORDER, text)
                return
            last[target, group] = seq


def _first(rows: Counter[Row]) -> str:
    return ", ".join(str(row) for row in sorted(rows)[:3])
