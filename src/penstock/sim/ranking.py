"""Steps of a world that choose records: the first or the last of the records of a key that are close to each other, and
the greatest of each key.

The first records go to the sink as they are. The other steps make changelogs, and which changes they hand on differs
from run to run. So a running aggregate follows, which must take back what the changelog takes back, and the step that
makes units of its totals (`penstock.sim.running`). Each row of a changelog has a *measure*. The sum of the measures of
all rows only rises with the records that come: a later record is later, a greater record is greater, and a key never
has fewer rows than before. So the units are those from 1 to the sum at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from penstock.api.changelog import ROW_KIND, with_row_kind
from penstock.api.running_schema import running_partial_schema
from penstock.api.steps import DeduplicateStep, LateRecords, RunningCombineStep, SelectStep, TopStep
from penstock.api.streams.ranking import TopWords, checked_top, listed_rows
from penstock.sim.inputs import Row
from penstock.sim.jobs import SCHEMA, TICK_US, Choice
from penstock.sim.running import BUCKETED, BUCKETS

WITHIN_US = 9 * TICK_US
MOST = 2
_FAR = 1_000_000
"""More than there are records of a key."""
_TICKS = 8


def deduplicating(choice: Choice) -> DeduplicateStep:
    """The step that deduplicates records."""
    last = choice is Choice.LAST
    late = LateRecords(time_column="ts", schema=SCHEMA)
    schema = with_row_kind(SCHEMA) if last else SCHEMA
    return DeduplicateStep(keys=("key",), within_us=WITHIN_US, late=late, schema=schema, keeps_last=last)


def top_steps(choice: Choice) -> tuple[RunningCombineStep, TopStep]:
    """The halves of the step that shows the first records: of the records, or of the counts of keys by bucket."""
    of_counts = choice is Choice.TOP_OF_COUNTS
    keys, schema, by = (("bucket",), BUCKETED, "n") if of_counts else (("key",), SCHEMA, "value")
    words = TopWords(most=MOST, by=by, descending=True, rank=None)
    calls = (listed_rows(words, checked_top(words, schema, keys), schema, keys),)
    how: dict[str, Any] = {"keys": keys, "aggregates": calls, "retracts": of_counts}
    partial = running_partial_schema(schema, **how)
    combine = RunningCombineStep(input_schema=schema, schema=partial, **how)
    return combine, TopStep(input_schema=schema, partial=partial, schema=with_row_kind(schema), most=MOST, **how)


def measured(choice: Choice) -> SelectStep:
    """Makes rows with a measure `n` of the chosen records. Every row has a key of its own."""
    measure = pl.col("value") // 100 if choice is Choice.TOP else pl.col("ts").dt.epoch("us") // (_TICKS * TICK_US)
    columns = (
        (pl.col("key") * _FAR + pl.col("seq")).alias("key"),
        (measure + 1).cast(pl.Int64).alias("n"),
        pl.col("value").alias("top"),
        (pl.col("key") % BUCKETS).alias("bucket"),
        pl.col(ROW_KIND),
    )
    return SelectStep(columns=columns, keep=False, schema=with_row_kind(BUCKETED))


def expected_choice(choice: Choice, records: Iterable[Row]) -> Counter[Row]:
    """The rows that are shown, from the records alone. Records of a key come in the order of their numbers."""
    by_key: dict[int, list[Row]] = defaultdict(list)
    for record in sorted(records):
        by_key[record[0]].append(record)
    if choice is Choice.FIRST:
        return Counter(group[0] for rows in by_key.values() for group in _groups(rows))
    totals: Counter[int] = Counter()
    if choice is Choice.TOP_OF_COUNTS:
        for bucket in range(BUCKETS):
            counts = sorted((len(rows) for key, rows in by_key.items() if key % BUCKETS == bucket), reverse=True)
            totals[bucket] = sum(counts[:MOST])
    for key, rows in by_key.items() if choice is not Choice.TOP_OF_COUNTS else ():
        if choice is Choice.LAST:
            measures = [max(ts for *_, ts in group) // (_TICKS * TICK_US) + 1 for group in _groups(rows)]
        else:
            measures = sorted((value // 100 + 1 for _, _, value, _ in rows), reverse=True)[:MOST]
        totals[key % BUCKETS] += sum(measures)
    return Counter((bucket, number, 0, 0) for bucket, total in totals.items() for number in range(1, total + 1))


def _groups(rows: list[Row]) -> Iterator[list[Row]]:
    """The records of a key, cut where a record is not close to the first record of the group before."""
    group: list[Row] = []
    for row in rows:
        if group and row[3] >= group[0][3] + WITHIN_US:
            yield group
            group = []
        group.append(row)
    yield group
