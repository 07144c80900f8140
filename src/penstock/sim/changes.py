"""What the changes of a job say when they are followed in the order in which they became visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from penstock.api.steps import Updates
from penstock.sim.external import Transaction
from penstock.sim.inputs import Row, rows_of
from penstock.sim.rules import Rule
from penstock.sim.world import World

_VALUES = 2
"""How many values a row has behind the columns that identify the row, without its kind."""


def draw_updates(random: Random) -> Updates:
    """When the windows of a job show results that may still change."""
    return random.choice((Updates(), Updates(every_batch=True), Updates(every_rows=3), Updates(every_ms=20)))


def table_of(world: World, committed: Iterable[Transaction]) -> dict[str, Counter[Row]]:
    """The rows of each sink after all changes. A change that does not fit the row as it was breaks a rule."""
    tables: dict[str, dict[Row, Row]] = {}
    for transaction in committed:
        table = tables.setdefault(transaction.target, {})
        for row in (row for batch in transaction.batches for row in rows_of(batch)):
            wrong = _apply(table, row)
            if wrong is not None:
                world.violate(Rule.EXACTLY_ONCE, f"{transaction.name} has a change that does not fit: {wrong}")
                return {}
    return {
        target: Counter(place + values for place, values in table.items() if values) for target, table in tables.items()
    }


def _apply(table: dict[Row, Row], row: tuple[Any, ...]) -> str | None:
    """Change the table. Returns what is wrong; None if nothing is. An update has two halves; between them the row is
    there without values."""
    *bounds, kind = row
    place, values = tuple(bounds[:-_VALUES]), tuple(bounds[-_VALUES:])
    before = table.get(place)
    if (before == ()) != (kind == "update_after"):
        return f"{row} comes in the wrong half of an update"
    if kind == "insert" and before is not None:
        return f"{row} is there already, as {before}"
    if kind in ("update_before", "delete") and before != values:
        return f"{row} was {before}"
    if kind == "delete":
        del table[place]
    else:
        table[place] = () if kind == "update_before" else values
    return None


def check_table(
    world: World, target: str, actual: Counter[Row], expected: Counter[Row], *, complete: bool, sessions: bool
) -> None:
    """Compare the rows after all changes with the rows that the whole input gives. If the job has not come to the end,
    rows may be missing, and may lack records; but no row may have too many records."""
    if complete:
        wrong = list((actual - expected) + (expected - actual))
    elif sessions:
        # The bounds of a session tell which records have come. So nothing is known of a session that may still grow.
        return
    else:
        whole = {row[:-_VALUES]: row[-_VALUES:] for row in expected}
        nothing = (0, 0)
        wrong = [
            row
            for row in actual
            if any(found > most for found, most in zip(row[-_VALUES:], whole.get(row[:-_VALUES], nothing), strict=True))
        ]
    if wrong:
        text = f"{len(wrong)} rows of {target} are wrong after all changes, such as {min(wrong)}"
        world.violate(Rule.EXACTLY_ONCE, text)
