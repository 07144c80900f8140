"""What an async step hands on, keeps in its snapshot and asks again."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.steps import AsyncMapStep
from penstock.core.errors import InvariantError, UsageError, UserCodeError
from penstock.core.ids import Instant
from penstock.core.task.requests import RequestPolicy
from penstock.ports import WorkResult
from penstock.runtime.task.operators import async_map

SCHEMA = pa.schema([("n", pa.int64())])
WITH_KEY = pa.schema([("k", pa.int64()), ("n", pa.int64())])


async def never_called(row):
    raise AssertionError(row)


class Calls:
    """Calls that end when the test says so, and how."""

    def __init__(self):
        self.asked = {}
        self.cancelled = []
        self.events = []
        self._answered = None

    def begin(self, function, answered):
        self._answered = answered
        return self

    def open(self, opening):
        self.events.append("open")

    def ask(self, calls):
        self.asked.update(calls)

    def cancel(self, calls):
        self.cancelled += calls

    def close(self, closing):
        self.events.append("close" if closing is None else "close with a last call")

    def answer(self, *calls, **how):
        """These calls end: with `value` or `error`, otherwise with their own row."""
        self._answered([(call, WorkResult(**(how or {"value": self.asked[call]}))) for call in calls])


def step(function=never_called, *, kind="rows", keys=(), skips=False, schema=SCHEMA, **policy):
    chosen = RequestPolicy(**{"concurrency": 3, "timeout_ms": 100, "pause_ms": 10, **policy})
    given = WITH_KEY if keys or schema is WITH_KEY else SCHEMA
    return AsyncMapStep(
        function=function, kind=kind, policy=chosen, skips_failed=skips, input_schema=given, keys=keys, schema=schema
    )


@pytest.fixture
def asking(rig):
    def make(*args, restored=None, subtask=0, parallelism=1, **changes):
        calls = Calls()
        made = rig(step(*args, **changes), calls=calls, restored=restored, subtask=subtask, parallelism=parallelism)
        made.calls = calls
        return made

    return make


def numbers(*values):
    return pa.record_batch({"n": list(values)}, schema=SCHEMA)


def found(rig):
    return [row["n"] for row in rig.output.rows]


# --- what leaves -----------------------------------------------------------------------------


def test_results_leave_in_the_order_of_the_rows_and_only_when_released(asking):
    rig = asking()
    rig.operator.process(numbers(1, 2, 3))
    rig.calls.answer(2, 0)
    assert rig.operator.has_results
    assert found(rig) == []
    rig.operator.release()
    assert found(rig) == [1]
    rig.calls.answer(1)
    rig.operator.release()
    assert found(rig) == [1, 2, 3]
    assert not rig.operator.has_results


def test_a_call_makes_a_row_several_rows_or_none(asking):
    rig = asking()
    rig.operator.process(numbers(1, 2, 3))
    rig.calls.answer(0, value=None)
    rig.calls.answer(1, value=[{"n": 20}, {"n": 21}])
    rig.calls.answer(2, value=({"n": n} for n in range(100)))
    rig.operator.release()
    assert found(rig) == [20, 21, *range(100)]


def test_a_watermark_leaves_behind_the_results_of_the_rows_before_it(asking):
    rig = asking(ordered=False)
    rig.operator.process(numbers(1))
    rig.operator.watermark(7)
    rig.operator.process(numbers(2))
    rig.calls.answer(1)
    assert not rig.operator.has_results
    rig.calls.answer(0)
    rig.operator.release()
    assert [item if isinstance(item, tuple) else item.to_pylist() for item in rig.output.items] == [
        [{"n": 1}],
        (7, False),
        [{"n": 2}],
    ]


def test_a_result_that_does_not_fit_the_schema_names_the_step(asking):
    rig = asking()
    rig.operator.process(numbers(1))
    rig.calls.answer(0, value={"m": 1})
    with pytest.raises(UserCodeError, match="expected a dict with n; got a dict with m"):
        rig.operator.release()


def test_a_result_that_is_no_row_names_the_step(asking):
    rig = asking()
    rig.operator.process(numbers(1))
    rig.calls.answer(0, value=17)
    with pytest.raises(UserCodeError, match="not iterable"):
        rig.operator.release()


@pytest.mark.parametrize(("kind", "make"), [("arrow", numbers), ("polars", lambda n: pl.DataFrame({"n": [n]}))])
def test_a_function_over_batches_gets_a_batch_and_gives_a_batch(asking, kind, make):
    rig = asking(kind=kind)
    rig.operator.process(numbers(1, 2))
    rig.operator.process(numbers(3))
    assert list(rig.calls.asked) == [0, 1]
    assert rig.calls.asked[0].shape == (2, 1) if kind == "polars" else rig.calls.asked[0].num_rows == 2
    rig.calls.answer(1, value=make(30))
    rig.calls.answer(0, value=None)
    rig.operator.release()
    assert found(rig) == [30]


# --- bounds ----------------------------------------------------------------------------------


def test_a_step_that_can_ask_about_no_more_rows_waits(asking):
    rig = asking()
    assert (rig.operator.is_waiting, rig.operator.room) == (False, 3)
    rig.operator.process(numbers(1, 2))
    assert (rig.operator.is_waiting, rig.operator.room) == (False, 1)
    rig.operator.process(numbers(3))
    assert rig.operator.is_waiting
    # Rows that are read all the same stand before a barrier: all of them are taken.
    assert rig.operator.room is None
    rig.operator.process(numbers(4, 5, 6, 7))
    assert len(rig.calls.asked) == 3
    rig.calls.answer(0)
    assert len(rig.calls.asked) == 3
    rig.operator.release()
    assert len(rig.calls.asked) == 4


def test_a_step_that_keeps_too_much_reads_nothing_at_all(asking, monkeypatch):
    monkeypatch.setattr(async_map, "KEPT_BYTES", 40)
    rig = asking()
    rig.operator.process(numbers(1, 2, 3))
    assert not rig.operator.is_overfull
    rig.operator.process(numbers(4, 5, 6))
    assert rig.operator.is_overfull
    rig.calls.answer(0, 1, 2)
    rig.operator.release()
    assert not rig.operator.is_overfull


# --- failures --------------------------------------------------------------------------------


def test_a_call_that_fails_fails_the_task_with_the_error_the_step_and_the_row(asking):
    rig = asking()
    rig.operator.process(numbers(41))
    rig.calls.answer(0, error=ValueError("no such item"))
    (failure,) = rig.failures
    assert isinstance(failure, UserCodeError)
    assert (failure.operator, failure.subtask) == ("the step", 0)
    assert failure.traceback_text.splitlines()[-1] == "ValueError: no such item (for row {'n': 41}, tried once)"


def test_a_long_row_is_not_shown_as_a_whole(asking):
    wide = pa.schema([("n", pa.string())])
    rig = asking(schema=wide)
    rig.operator.process(pa.record_batch({"n": ["x" * 10_000]}, schema=wide))
    rig.calls.answer(0, error=ValueError("no"))
    assert len(rig.failures[0].traceback_text) < 1_000


def test_a_failed_batch_is_told_without_its_rows(asking):
    rig = asking(kind="arrow")
    rig.operator.process(numbers(1, 2))
    rig.calls.answer(0, error=ValueError("no"))
    assert rig.failures[0].traceback_text.splitlines()[-1] == "ValueError: no (for a batch, tried once)"


def test_a_call_is_tried_again_after_a_pause_and_fails_when_no_try_is_left(asking):
    rig = asking(retries=1)
    rig.operator.process(numbers(1))
    rig.calls.answer(0, error=OSError("gone"))
    assert rig.failures == []
    assert rig.operator.next_deadline() == rig.time + 10
    rig.operator.look(Instant(rig.time + 10))
    assert list(rig.calls.asked) == [0, 1]
    assert rig.calls.asked[1] == {"n": 1}
    rig.calls.answer(1, error=OSError("gone"))
    assert "tried 2 times" in rig.failures[0].traceback_text
    assert rig.operator.metrics()["requests_tried_again"] == 1


def test_a_call_without_an_answer_is_cancelled_and_its_late_answer_is_not_taken(asking):
    rig = asking()
    rig.operator.process(numbers(1))
    rig.operator.look(Instant(rig.time + 100))
    assert rig.calls.cancelled == [0]
    assert "TimeoutError: no answer came within 100 ms" in rig.failures[0].traceback_text
    rig.calls.answer(0)
    assert not rig.operator.has_results


def test_a_failed_row_is_skipped_and_counted_if_the_program_says_so(asking):
    rig = asking(skips=True)
    rig.operator.process(numbers(1, 2))
    rig.calls.answer(0, error=ValueError("no"))
    rig.calls.answer(1)
    rig.operator.release()
    assert found(rig) == [2]
    assert rig.failures == []
    assert rig.operator.metrics()["requests_skipped"] == 1


# --- the end ---------------------------------------------------------------------------------


def test_the_end_of_the_data_waits_until_every_result_has_left(asking):
    rig = asking()
    assert rig.operator.is_empty
    rig.operator.process(numbers(1))
    rig.operator.watermark(9)
    rig.calls.answer(0)
    assert not rig.operator.is_empty
    with pytest.raises(InvariantError, match="ended before its calls"):
        rig.operator.finish()
    rig.operator.release()
    assert rig.operator.is_empty
    rig.operator.finish()
    assert rig.output.watermarks == [(9, False)]


def test_a_step_that_is_closed_asks_no_more_and_takes_no_answers(asking):
    class Session:
        async def open(self):
            pass

        async def close(self):
            pass

        async def on_row(self, row):
            pass

    rig = asking(Session())
    rig.operator.process(numbers(1))
    rig.operator.close()
    rig.operator.close()
    assert rig.calls.events == ["open", "close with a last call"]
    rig.calls.answer(0, error=ValueError("late"))
    assert rig.failures == []


def test_a_slot_that_runs_no_async_functions_says_so(rig):
    with pytest.raises(InvariantError, match="nothing runs the async function of 'the step'"):
        rig(step())


# --- snapshots -------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_a_snapshot_has_the_rows_whose_results_have_not_left_and_they_are_asked_again_first(asking, ordered):
    rig = asking(ordered=ordered)
    rig.operator.process(numbers(1, 2, 3))
    rig.operator.process(numbers(4, 5))
    rig.calls.answer(0, 1)
    rig.operator.release()
    frozen = rig.freeze()
    rig.calls.answer(2)
    rig.operator.release()
    again = asking(ordered=ordered, restored=[frozen()])
    again.operator.process(numbers(6))
    again.operator.look(again.time)
    assert [row["n"] for row in again.calls.asked.values()] == [3, 4, 5]
    for call in range(4):
        again.calls.answer(call)
        again.operator.release()
    assert found(again) == [3, 4, 5, 6]


def test_results_that_are_there_leave_before_a_barrier(asking):
    rig = asking()
    rig.operator.process(numbers(1, 2))
    rig.calls.answer(0)
    rig.operator.before_barrier()
    assert found(rig) == [1]
    again = asking(restored=[rig.snapshot()])
    again.operator.look(again.time)
    assert [row["n"] for row in again.calls.asked.values()] == [2]


def test_a_snapshot_without_requests_is_empty(asking):
    assert asking().snapshot().is_empty


def test_rows_that_came_by_key_go_to_the_subtask_of_their_key(asking):
    rig = asking(keys=("k",), schema=WITH_KEY, concurrency=50)
    batch = pa.record_batch({"k": list(range(40)), "n": [0] * 40}, schema=WITH_KEY)
    rig.operator.process(batch)
    state = rig.snapshot()
    assert not state.split_lists
    halves = [asking(keys=("k",), schema=WITH_KEY, restored=[state], subtask=i, parallelism=2) for i in range(2)]
    owned = []
    for half in halves:
        taken = half.snapshot().union_lists[async_map.REQUESTS]
        owned.append([row["k"] for part in taken for b in async_map.rows_in(part, "asks") for row in b.to_pylist()])
    assert sorted(owned[0] + owned[1]) == list(range(40))
    assert owned[0]
    assert owned[1]


def test_rows_that_came_by_key_are_dealt_out_once_if_the_rows_come_otherwise_in_the_next_program(asking):
    rig = asking(keys=("k",), schema=WITH_KEY, concurrency=50)
    rig.operator.process(pa.record_batch({"k": list(range(40)), "n": [0] * 40}, schema=WITH_KEY))
    state, taken = rig.snapshot(), []
    for subtask in range(2):
        again = asking(schema=WITH_KEY, restored=[state], subtask=subtask, parallelism=2)
        taken += again.snapshot().split_lists.get(async_map.REQUESTS, ())
    rows = [row for part in taken for batch in async_map.rows_in(part, "asks") for row in batch.to_pylist()]
    assert sorted(row["k"] for row in rows) == list(range(40))


def test_rows_that_did_not_come_by_key_can_be_dealt_out(asking):
    rig = asking(concurrency=5)
    rig.operator.process(numbers(*range(1_000)))
    parts = rig.snapshot().split_lists[async_map.REQUESTS]
    assert len(parts) == 4
    assert [row["n"] for part in parts for b in async_map.rows_in(part, "asks") for row in b.to_pylist()] == list(
        range(1_000)
    )


def test_rows_of_other_columns_are_refused_with_what_to_do(asking, rig):
    old = asking()
    old.operator.process(numbers(1))
    state = old.snapshot()
    changed = AsyncMapStep(
        function=never_called,
        kind="rows",
        policy=RequestPolicy(concurrency=1, timeout_ms=1),
        skips_failed=False,
        input_schema=pa.schema([("m", pa.string())]),
        keys=(),
        schema=SCHEMA,
    )
    with pytest.raises(
        UsageError, match=r"have the columns n: int64, and its rows have m: string in this program"
    ) as caught:
        rig(changed, calls=Calls(), restored=[state])
    assert "stop it with drain" in caught.value.hint


def test_a_step_that_is_full_of_restored_rows_waits_from_the_beginning(asking):
    old = asking(concurrency=10)
    old.operator.process(numbers(*range(5)))
    assert asking(restored=[old.snapshot()]).operator.is_waiting
