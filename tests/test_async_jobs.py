"""Jobs with async calls, in a simulated cluster whose processes die."""

from __future__ import annotations

import asyncio
from collections import Counter

import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import collect, run, scripted

ROWS = 120
SECOND_US = 1_000_000


def numbers(count=ROWS):
    return scripted([{"n": n, "ts": n * SECOND_US} for n in range(count)], schema="n bigint, ts timestamp")


async def squared(row):
    await asyncio.sleep(row["n"] % 7 / 1_000)
    return {"n": row["n"], "square": row["n"] ** 2}


def build(function=squared, *, schema="n bigint, square bigint", source=None, **choices):
    def program(env):
        env.read(source or numbers()).async_map(function, schema=schema, **choices).write(collect())

    return program


SQUARES = [{"n": n, "square": n * n} for n in range(ROWS)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_result_comes_out_once_whatever_dies(seed, ordered):
    rows = run(build(concurrency=6, ordered=ordered), seed=seed, crashes=3, checkpoint_interval="20ms")
    assert sorted(rows, key=lambda row: row["n"]) == SQUARES


def test_ordered_results_are_in_the_order_of_the_rows():
    assert run(build(concurrency=6), parallelism=1, crashes=2) == SQUARES


def test_unordered_results_overtake_each_other():
    rows = run(build(concurrency=6, ordered=False), parallelism=1)
    assert rows != SQUARES
    assert sorted(rows, key=lambda row: row["n"]) == SQUARES


@pytest.mark.parametrize("seed", range(5))
def test_windows_behind_async_calls_lose_no_row(seed):
    async def kept(row):
        await asyncio.sleep(row["n"] * 7 % 11 / 100)
        return row

    def program(env):
        timed = env.read(numbers()).watermark("ts")
        asked = timed.async_map(kept, ordered=False, concurrency=20, schema="n bigint, ts timestamp")
        asked.with_columns(k="0").key_by("k").window(ps.tumbling("10s")).aggregate(n=ps.count()).write(collect())

    rows = run(program, seed=seed, crashes=1)
    assert [row["n"] for row in rows] == [10] * (ROWS // 10)


def test_a_function_over_batches_gets_batches():
    async def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        await asyncio.sleep(0.01)
        return pa.record_batch({"n": [n * 2 for n in batch.column("n").to_pylist()]})

    rows = run(build(doubled, schema="n bigint"), crashes=1)
    assert sorted(row["n"] for row in rows) == [n * 2 for n in range(ROWS)]


def test_a_call_that_fails_fails_the_job_with_the_traceback_the_step_and_the_row():
    async def fails(row):
        if row["n"] == 17:
            raise ValueError("seventeen")
        return row

    with pytest.raises(ps.JobFailed, match=r"'asks', subtask 0: ValueError: seventeen \(for row \{'n': 17") as caught:
        run(build(fails, schema="n bigint, ts timestamp", name="asks"), parallelism=1)
    assert 'raise ValueError("seventeen")' in str(caught.value)
    assert "asyncio" not in str(caught.value)


class Flaky(ps.AsyncFunction):
    """Refuses every row the first time, and does not answer some rows."""

    async def open(self, context):
        self.asked = Counter()

    async def on_row(self, row):
        self.asked[row["n"]] += 1
        if self.asked[row["n"]] == 1:
            if row["n"] % 10 == 0:
                await asyncio.Event().wait()
            raise ConnectionError("try again")
        return row


def test_failed_calls_are_tried_again():
    rows = run(build(Flaky(), schema="n bigint, ts timestamp", retries=2, timeout="200ms"))
    assert sorted(row["n"] for row in rows) == list(range(ROWS))


def test_without_a_further_try_the_job_fails():
    with pytest.raises(ps.JobFailed, match=r"ConnectionError: try again .*tried once|TimeoutError: no answer came"):
        run(build(Flaky(), schema="n bigint, ts timestamp", timeout="200ms"))


def test_failed_rows_can_be_skipped():
    async def odd(row):
        if row["n"] % 2 == 0:
            raise ValueError("even")
        return row

    rows = run(build(odd, schema="n bigint, ts timestamp", on_failure="skip"), crashes=1)
    assert sorted(row["n"] for row in rows) == list(range(1, ROWS, 2))


class Session(ps.AsyncFunction):
    """Writes down its end in a file."""

    def __init__(self, file):
        self._file = file

    async def open(self, context):
        await asyncio.sleep(0.1)
        self.subtask = context.subtask
        self.background = asyncio.create_task(asyncio.sleep(3_600))

    async def on_row(self, row):
        return {"n": row["n"], "subtask": self.subtask}

    async def close(self):
        self.background.cancel()
        self._file.write_text("closed")


def test_a_function_is_opened_before_the_first_row_and_closed_at_the_end(tmp_path):
    rows = run(build(Session(tmp_path / "end"), schema="n bigint, subtask int", source=numbers(3)), parallelism=1)
    assert [row["subtask"] for row in rows] == [0, 0, 0]
    assert (tmp_path / "end").read_text() == "closed"


def test_a_function_that_opens_a_connection_is_told_to_use_none():
    async def connects(row):
        await asyncio.open_connection("127.0.0.1", 9)

    with pytest.raises(ps.JobFailed, match="the simulated cluster has no network"):
        run(build(connects, schema="n bigint"))


def test_blocking_code_in_a_thread_runs_at_once():
    async def elsewhere(row):
        return {"n": await asyncio.to_thread(lambda: row["n"] + 1)}

    rows = run(build(elsewhere, schema="n bigint"))
    assert sorted(row["n"] for row in rows) == list(range(1, ROWS + 1))


def test_one_seed_gives_one_run():
    first, second = (run(build(ordered=False, concurrency=7), seed=3, crashes=2) for _ in range(2))
    assert first == second
