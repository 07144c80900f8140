"""Whole jobs with a processor, in a simulated cluster whose processes die."""

# Names and parameters are those of PySpark's class.
# ruff: noqa: N802, N803

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.testing import collect, pause, run, scripted

OUT = "k bigint, text string"


class CountAndForward(StatefulProcessor):
    """Counts a key's rows and tells of each of them, whatever the batches."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.n,))

    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.count.get() or (0,)
        for row in rows:
            count += 1
            yield Row(k=key[0], text=f"{count} {row.v}")
        self.count.update((count,))


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_crashes_gives_every_result_once(seed):
    script = [{"k": n % 5, "v": n} for n in range(60)]
    initial = pa.table({"k": [0, 1], "n": [100, 200]})

    def program(env):
        keyed = env.read(scripted(script, schema="k bigint, v bigint")).key_by("k")
        made = keyed.transform_with_state(CountAndForward(), output_schema=OUT, initial_state=initial, name="count")
        made.write(collect())

    found = run(program, seed=seed, crashes=3)
    want = [(n % 5, f"{n // 5 + 1 + {0: 100, 1: 200}.get(n % 5, 0)} {n}") for n in range(60)]
    assert sorted((row["k"], row["text"]) for row in found) == sorted(want)


@pytest.mark.parametrize("reads_late", [True, False])
def test_rows_that_spark_drops_as_late_are_the_late_records_of_the_step(reads_late):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    early, later = ({"k": 1, "v": n, "ts": start + timedelta(seconds=n)} for n in (1, 20))
    kept, late = collect(), collect()

    def program(env):
        source = scripted([early, later, pause(100), {**early, "v": 7}], schema="k bigint, v bigint, ts timestamp")
        keyed = env.read(source).watermark("ts").key_by("k")
        made = keyed.transform_with_state(CountAndForward(), output_schema=OUT, time_mode="EventTime", name="count")
        made.write(kept, name="kept")
        if reads_late:
            made.late().write(late, name="late")

    run(program)
    assert [row["text"] for row in kept.rows] == ["1 1", "2 20"]
    assert not reads_late or late.rows == [{**early, "v": 7}]
