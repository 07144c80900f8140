"""Whether an output is exactly what it must be, row for row.

Rows are matched by their key. For every key the reference has one row:

    lost         the output has no row of this key
    duplicated   the output has more than one; each row beyond the first counts
    different    the output's values are not the reference's, or the reference has no such key at all

Each kind of damage is counted once per key and by itself: a repeated row is duplicated and not different, a changed row
is different and not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a comparison found."""

    rows: int
    """Rows of the reference."""
    lost: int
    duplicated: int
    different: int

    @property
    def exactly_once(self) -> bool:
        """Whether every row is there, once, as it must be."""
        return self.lost == self.duplicated == self.different == 0


def compare(reference: Any, output: Any, *, keys: Sequence[str], values: Sequence[str]) -> Comparison:
    """Compare two DataFrames that have the columns `keys` and `values`; other columns are left out."""
    from pyspark.sql import functions as sql

    columns = [*keys, *values]
    both = reference.select(*columns, sql.lit(1).alias("_expected")).unionByName(
        output.select(*columns, sql.lit(0).alias("_expected"))
    )
    by_key = both.groupBy(*keys).agg(
        sql.sum("_expected").alias("_expected"),
        sql.sum(sql.lit(1) - sql.col("_expected")).alias("_found"),
        reduce(and_, (_equal(sql, value) for value in values)).alias("_equal"),
    )
    expected, found = sql.col("_expected") > 0, sql.col("_found") > 0
    damage = by_key.agg(
        sql.coalesce(sql.sum("_expected"), sql.lit(0)).alias("rows"),
        sql.count_if(expected & ~found).alias("lost"),
        sql.coalesce(sql.sum(sql.greatest(sql.col("_found") - 1, sql.lit(0))), sql.lit(0)).alias("duplicated"),
        sql.count_if(found & (~expected | ~sql.col("_equal"))).alias("different"),
    )
    row = damage.first()
    return Comparison(rows=row.rows, lost=row.lost, duplicated=row.duplicated, different=row.different)


def _equal(sql: Any, value: str) -> Any:
    """Whether all rows of a key have the same value. Aggregates skip nulls, so these are counted too."""
    present = sql.count(value)
    return (present == 0) | ((present == sql.count(sql.lit(1))) & (sql.min(value) == sql.max(value)))
