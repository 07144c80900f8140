"""Whether an output is equal to a reference, row for row.

Rows are matched by their key. The reference has one row for every key:

    lost         keys that the output has no row of
    duplicated   rows of the output beyond the first row of their key
    different    keys whose values in the output are not the values of the reference, or that the reference does not
                 have

A repeated row is duplicated and not different; a changed row is different and not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a comparison."""

    rows: int
    """Rows of the reference."""
    lost: int
    duplicated: int
    different: int

    @property
    def exactly_once(self) -> bool:
        """Whether the output has every row of the reference exactly once, and no other row."""
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
    """Whether all rows of a key have the same value. Aggregates skip nulls, so the values that are not null are counted
    too."""
    present = sql.count(value)
    return (present == 0) | ((present == sql.count(sql.lit(1))) & (sql.min(value) == sql.max(value)))
