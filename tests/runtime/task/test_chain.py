"""The chain of a task: who is called when, and what is made of what they raise."""

from __future__ import annotations

import asyncio
import pickle

import pyarrow as pa
import pytest

from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile, StorageError, UsageError, UserCodeError
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState
from penstock.runtime.task.chain import OperatorChain, describe_failure, one_line, write_snapshot
from penstock.runtime.task.operators.base import Operator, OperatorContext
from penstock.runtime.task.outputs import TaskOutputs

TASK = TaskId(VertexId("v"), 0)
ROWS = pa.record_batch([pa.array([1])], names=["n"])


class Noting(Operator):
    """Writes down every call; emits a batch of its own when it finishes, prepares or opens."""

    def __init__(self, name, calls, *, stateful=True, tick_at=None, busy=False, raises=(), error=ValueError):
        self.name = name
        self._calls = calls
        self._stateful = stateful
        self._tick_at = tick_at
        self._busy = busy
        self._raises = raises
        self._error = error

    def _note(self, call, *details):
        self._calls.append((self.name, call, *details))
        if call in self._raises:
            raise self._error(f"{call} of {self.name}")

    def load(self, context):
        self._note("load", context.operator)

    def open(self, context, output):
        super().open(context, output)
        self._note("open", context.operator)
        self.output.watermark(0)

    def process(self, batch):
        self._note("process", batch.num_rows)
        self.output.emit(batch)

    def watermark(self, time_us, *, idle=False):
        self._note("watermark", time_us, idle)
        super().watermark(time_us, idle=idle)

    def tick(self, now):
        self._note("tick", now)
        return self._tick_at

    def finish(self):
        self._note("finish")
        self.output.emit(ROWS)

    def before_barrier(self):
        self._note("before barrier")
        self.output.emit(ROWS)

    def snapshot(self, checkpoint, options):
        self._note("snapshot", checkpoint)
        if not self._stateful:
            return None
        frozen = OperatorState(operator=OperatorId(self.name), broadcast={"n": b"1"})
        return lambda writer: frozen

    def completed(self, checkpoint):
        self._note("completed", checkpoint)

    def subsumed(self, checkpoint):
        self._note("subsumed", checkpoint)

    def aborted(self, checkpoint):
        self._note("aborted", checkpoint)

    @property
    def pending(self):
        return self._busy

    def close(self):
        self._note("close")


def context(name):
    return OperatorContext(
        job=JobId("job"),
        epoch=Epoch(1),
        task=TASK,
        operator=f"id of {name}",
        name=name,
        parallelism=1,
        max_parallelism=128,
        key_groups=(0, 127),
        now=lambda: Instant(0),
        background=None,
        restored=(),
        fresh=True,
        reader=None,
        fail=lambda error: None,
    )


def chain_of(*operators):
    return OperatorChain(list(operators), [context(operator.name) for operator in operators])


@pytest.fixture
def calls():
    return []


def three(calls, **changes):
    """head → middle → tail, open, with what happened so far forgotten."""
    chain = chain_of(*(Noting(name, calls, **changes.get(name, {})) for name in ("head", "middle", "tail")))
    outputs = TaskOutputs([], output_bytes=1)
    chain.open(outputs)
    calls.clear()
    return chain, outputs


def test_operators_are_opened_from_the_tail_so_that_none_emits_into_one_that_is_closed(calls):
    chain = chain_of(*(Noting(name, calls) for name in ("head", "middle", "tail")))
    chain.open(TaskOutputs([], output_bytes=1))
    assert [call[0] for call in calls if call[1] == "open"] == ["tail", "middle", "head"]
    opened = []
    for name, call, *_ in calls:
        assert call != "watermark" or name in opened
        opened.append(name)


def test_every_operator_gets_its_own_context(calls):
    chain = chain_of(Noting("head", calls), Noting("tail", calls))
    chain.load()
    chain.open(TaskOutputs([], output_bytes=1))
    assert [call for call in calls if call[1] != "watermark"] == [
        ("head", "load", "id of head"),
        ("tail", "load", "id of tail"),
        ("tail", "open", "id of tail"),
        ("head", "open", "id of head"),
    ]


def test_records_and_watermarks_go_from_head_to_tail_and_out(calls):
    chain, outputs = three(calls)
    chain.head.process(ROWS)
    chain.head.watermark(9, idle=True)
    assert [call[:2] for call in calls] == [
        (name, call) for call in ("process", "watermark") for name in ("head", "middle", "tail")
    ]
    assert outputs.rows_out == 1


class Sides:
    """The outputs of a task in which only the middle operator has a side output that is read."""

    def __init__(self, main_is_read=True):
        self.left = []
        self.main_is_read = main_is_read

    def sides_of(self, operator):
        return {"a": Side(self.left)} if operator == "id of middle" else {}

    def emit(self, batch):
        self.left.append(("main", "rows"))

    def watermark(self, time_us, *, idle=False):
        self.left.append(("main", time_us))


class Side:
    def __init__(self, left):
        self.left = left

    def emit(self, batch):
        self.left.append(("a", "rows"))

    def watermark(self, time_us, *, idle=False):
        self.left.append(("a", time_us))


class MakingTime(Noting):
    """Makes watermarks of its own."""

    def watermark(self, time_us, *, idle=False):
        self.output.watermark(time_us + 100, idle=idle)


def test_a_side_output_has_the_watermarks_of_its_operator_and_not_those_of_operators_behind_it(calls):
    outputs = Sides()
    chain = chain_of(Noting("head", calls), Noting("middle", calls), MakingTime("tail", calls))
    chain.open(outputs)
    head, middle, tail = chain.operators
    assert (list(head.sides), list(middle.sides), list(tail.sides)) == ([], ["a"], [])
    outputs.left.clear()
    middle.sides["a"].emit(ROWS)
    chain.watermark(5)
    tail.output.watermark(999)
    chain.process(ROWS)
    assert outputs.left == [("a", "rows"), ("a", 5), ("main", 105), ("main", 999), ("main", "rows")]


@pytest.mark.parametrize("is_read", [True, False])
def test_only_the_last_operator_may_have_a_main_output_that_nothing_reads(calls, is_read):
    chain = chain_of(Noting("head", calls), Noting("tail", calls))
    chain.open(Sides(main_is_read=is_read))
    assert [operator.main_is_read for operator in chain.operators] == [True, is_read]


def test_each_operator_finishes_before_the_one_behind_it_and_what_it_left_is_processed_there(calls):
    chain, outputs = three(calls)
    chain.finish()
    assert [call[:2] for call in calls] == [
        ("head", "finish"),
        ("middle", "process"),
        ("tail", "process"),
        ("middle", "finish"),
        ("tail", "process"),
        ("tail", "finish"),
    ]
    assert outputs.rows_out == 3


def test_operators_hand_on_what_they_hold_from_head_to_tail_so_that_it_passes_those_behind(calls):
    chain, _ = three(calls)
    chain.before_barrier()
    assert [call[0] for call in calls if call[1] == "before barrier"] == ["head", "middle", "tail"]
    assert calls[-1] == ("tail", "before barrier")


def test_snapshots_are_taken_from_tail_to_head_and_written_states_are_named_from_head_to_tail(calls):
    chain, _ = three(calls)
    work = chain.snapshot(CheckpointId(4), CheckpointOptions())
    assert calls == [("tail", "snapshot", 4), ("middle", "snapshot", 4), ("head", "snapshot", 4)]
    assert [state.operator for state in write_snapshot(work, None)] == ["head", "middle", "tail"]


def test_an_operator_without_state_puts_nothing_into_the_snapshot(calls):
    chain, _ = three(calls, middle={"stateful": False})
    work = chain.snapshot(CheckpointId(1), CheckpointOptions())
    assert len(work) == 2
    assert [state.operator for state in write_snapshot(work, None)] == ["head", "tail"]


def test_an_empty_state_is_left_out():
    work = [lambda writer: OperatorState(operator=OperatorId("empty"))]
    assert write_snapshot(work, None) == ()


def test_everyone_hears_what_became_of_a_checkpoint(calls):
    chain, _ = three(calls)
    chain.completed(CheckpointId(3))
    chain.aborted(CheckpointId(4))
    names = ("head", "middle", "tail")
    assert calls == [(n, "completed", 3) for n in names] + [(n, "aborted", 4) for n in names]


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("news", ["completed", "subsumed", "aborted"])
def test_news_of_a_checkpoint_reaches_every_operator_although_some_raise_and_the_first_error_is_raised(
    calls, news, error
):
    chain, _ = three(calls, head={"raises": (news,), "error": error}, tail={"raises": (news,)})
    with pytest.raises(error, match=f"{news} of head"):
        getattr(chain, news)(CheckpointId(4))
    assert calls == [(name, news, 4) for name in ("head", "middle", "tail")]


def test_the_next_tick_is_the_earliest_that_anyone_wants(calls):
    chain, _ = three(calls, head={"tick_at": Instant(90)}, tail={"tick_at": Instant(40)})
    assert chain.tick(Instant(5)) == 40
    assert [call[2] for call in calls] == [5, 5, 5]


def test_nobody_wants_a_tick(calls):
    assert three(calls)[0].tick(Instant(5)) is None


@pytest.mark.parametrize("busy", ["head", "tail"])
def test_the_chain_is_pending_while_one_operator_is(calls, busy):
    assert three(calls, **{busy: {"busy": True}})[0].pending
    assert not three(calls)[0].pending


def test_an_operator_that_raises_when_closed_does_not_keep_the_others_open(calls):
    chain, _ = three(calls, head={"raises": ("close",)})
    chain.close()
    assert [call[0] for call in calls] == ["head", "middle", "tail"]


# --- what is made of an error ----------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_of_user_code_names_its_operator_and_keeps_its_traceback():
    text = "Traceback\n  File x\nKeyError: 'nope'\n"
    error = UserCodeError(operator="my map", subtask=3, traceback_text=text)
    assert describe_failure(error, vertex="a → b") == ("my map", "KeyError: 'nope'", text, True)


def write_to_a_full_disk():
    raise StorageError("cannot write x", hint="make room")


def test_any_other_error_names_the_step_that_it_was_raised_in(calls):
    chain, _ = three(calls, middle={"raises": ("process",)})
    with pytest.raises(ValueError, match="process of middle") as caught:
        chain.process(ROWS)
    told = describe_failure(caught.value, vertex="head → middle → tail")
    assert (told[0], told[1], told[3]) == ("middle", "ValueError: process of middle", False)


@pytest.mark.parametrize("kind", [UsageError, CorruptFile])
def test_what_only_the_user_can_mend_is_told_with_its_hint_and_without_lines_of_the_package(kind):
    told = describe_failure(kind("it is cut", hint="take another"), vertex="v")
    assert told == ("v", f"{kind.__name__}: it is cut; take another", "", False)


def test_what_a_connector_of_the_users_refuses_keeps_its_lines():
    with pytest.raises(UsageError) as caught:
        refuse()
    assert "in refuse" in describe_failure(caught.value, vertex="v")[2]


def refuse():
    raise UsageError("no such table")


def test_an_error_that_was_raised_in_no_step_names_the_vertex():
    with pytest.raises(StorageError) as caught:
        write_to_a_full_disk()
    operator, line, text, user_code = describe_failure(caught.value, vertex="a → b")
    assert (operator, line, user_code) == ("a → b", "StorageError: cannot write x", False)
    assert "write_to_a_full_disk" in text


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(), "ValueError: "),
        (KeyError("\n"), "KeyError: '\\n'"),
        (Unspeakable(), "Unspeakable: (its text could not be made)"),
    ],
)
def test_every_error_can_be_told_in_one_line(error, line):
    assert one_line(error) == line
    assert describe_failure(error, vertex="v")[1] == line


def test_what_is_told_of_a_failure_survives_the_way_to_the_master():
    told = describe_failure(Unspeakable(), vertex="v")
    assert pickle.loads(pickle.dumps(told)) == told
