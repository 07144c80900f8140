"""`sys.exit()` and its like in user code: they name step and subtask as any other error does, and end no process."""

from __future__ import annotations

import asyncio
import sys
import threading

import cloudpickle
import pytest
from slot_rig import SCHEMA, SCRIPT, SLOT, Stage, rows

from penstock.api.connector import End, Pause, Sink, SinkWriter, Source, SourceReader, UserCodeRaised
from penstock.api.functions import KeyedFunction, ProcessFunction
from penstock.api.program import Program
from penstock.core.ids import Epoch
from penstock.core.messages import Ready, Run, TaskFailed
from penstock.runtime.task.chain import describe_failure
from penstock.runtime.task.operators.user_code import driver_cause
from penstock.settings import JobSettings
from penstock.spark.background import ThreadBackground
from penstock.spark.data_source_calls import calling

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Panic(BaseException):
    """As those have that native libraries raise."""


RAISED = [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), KeyboardInterrupt(), Panic("torn")]
NAMES = [type(error).__name__ for error in RAISED]


class Reader(SourceReader):
    def __init__(self, error, *, ends):
        self._left = [rows(1, 2, 3)]
        self._error = error
        self._rest = End() if ends else Pause(50)

    def poll(self, max_rows, now_ms):
        if self._error is not None:
            raise self._error
        return self._left.pop() if self._left else self._rest

    def snapshot(self):
        return []


class Numbers(Source):
    def __init__(self, *, polled=None, opened=None, ends=False):
        self._polled, self._opened, self._ends = polled, opened, ends

    @property
    def schema(self):
        return SCHEMA

    def splits(self, parallelism):
        return []

    def open(self, splits):
        if self._opened is not None:
            raise self._opened
        return Reader(self._polled, ends=self._ends)


class Writer(SinkWriter):
    def __init__(self, error):
        self._error = error

    def write(self, batch):
        if self._error is not None:
            raise self._error

    def prepare(self, checkpoint):
        return list


class Drain(Sink):
    def __init__(self, *, written=None, cleaned=None):
        self._written, self._cleaned = written, cleaned

    def writer(self, context):
        return Writer(self._written)

    def commit(self, committables):
        pass

    def clean(self, context, committables):
        if self._cleaned is not None:
            raise self._cleaned


class OnRow(ProcessFunction):
    def __init__(self, error, where):
        self._error, self._where = error, where

    def open(self, context):
        if self._where == "open":
            raise self._error

    def on_row(self, row, context):
        if self._where == "row":
            raise self._error

    def close(self):
        raise self._error


class OnKey(KeyedFunction):
    def __init__(self, error):
        self._error = error

    def on_row(self, row, context):
        raise self._error


class AtTheEnd(KeyedFunction):
    """Raises in `on_timer` or in `on_end`."""

    def __init__(self, error, where):
        self._error, self._where = error, where

    def on_row(self, row, context):
        context.timers.at_processing_time(0)

    def on_timer(self, timer, context):
        if self._where == "timer":
            raise self._error

    def on_end(self, context):
        raise self._error


def raising(error):
    def function(value):
        raise error

    return function


STEPS = {
    "map": lambda s, e: s.map(raising(e), schema="n long", name="step"),
    "map_batches": lambda s, e: s.map_batches(raising(e), schema="n long", name="step"),
    "process": lambda s, e: s.process(OnRow(e, "row"), schema="n long", name="step"),
    "open": lambda s, e: s.process(OnRow(e, "open"), schema="n long", name="step"),
    "keyed": lambda s, e: s.key_by("n").process(OnKey(e), schema="n long", name="step"),
}


def failure(make):
    """What a slot tells the master when it runs the program that `make` builds."""
    program = Program(JobSettings(parallelism=1))
    make(program)
    plan = program.plan()
    stage = Stage(owns_process=True)
    told = stage.order(stage.deploy(plan=cloudpickle.dumps(plan), tasks=plan.tasks, peers=stage_peers(stage)))
    if Ready(slot=SLOT, epoch=Epoch(1)) in told:
        told = stage.order(Run(epoch=Epoch(1)))
    [failed] = [message for message in told if isinstance(message, TaskFailed)]
    assert not stage.driver.left
    return failed


def stage_peers(stage):
    return stage.deploy().peers[:1]


@pytest.mark.parametrize("error", RAISED, ids=NAMES)
@pytest.mark.parametrize("kind", STEPS)
def test_a_step_whose_function_raises_it_is_named(kind, error):
    def build(program):
        STEPS[kind](program.read(Numbers(), name="numbers"), error).write(Drain(), name="drain")

    failed = failure(build)
    assert (failed.operator, failed.task.subtask, failed.user_code) == ("step", 0, True)
    assert failed.error.startswith((type(error).__name__, f"{type(error).__module__}.{type(error).__name__}"))
    assert "raise" in failed.traceback


@pytest.mark.parametrize("error", [*RAISED, ValueError("no")], ids=[*NAMES, "ValueError"])
@pytest.mark.parametrize(("where", "line"), [("timer", "in on_timer"), ("end", "in on_end")])
def test_what_is_told_of_a_timer_or_of_the_end_begins_at_the_users_line(where, line, error):
    def build(program):
        step = AtTheEnd(error, where)
        keyed = program.read(Numbers(ends=where == "end"), name="numbers").key_by("n")
        keyed.process(step, schema="n long", name="step").write(Drain(), name="drain")

    failed = failure(build)
    assert (failed.operator, failed.task.subtask, failed.user_code) == ("step", 0, True)
    [frame] = [told for told in failed.traceback.splitlines() if told.startswith("  File ")]
    assert __file__ in frame
    assert frame.endswith(line)


@pytest.mark.parametrize("error", RAISED, ids=NAMES)
@pytest.mark.parametrize(
    ("source", "sink", "named"),
    [
        ("polled", None, "numbers"),
        ("opened", None, "numbers"),
        (None, "written", "drain"),
        (None, "cleaned", "drain"),
    ],
)
def test_a_source_or_a_sink_that_raises_it_is_named(source, sink, named, error):
    def build(program):
        stream = program.read(Numbers(**({source: error} if source else {})), name="numbers")
        stream.write(Drain(**({sink: error} if sink else {})), name="drain")

    failed = failure(build)
    assert (failed.operator, failed.task.subtask) == (named, 0)
    assert type(error).__name__ in failed.error


class Bomb:
    """Raises when it is unpickled."""

    def __init__(self, error):
        self._error = error

    def __reduce__(self):
        return raising(self._error), (0,)


@pytest.mark.parametrize("error", RAISED, ids=NAMES)
def test_a_program_that_raises_it_when_it_is_unpickled_fails_the_deployment_and_not_the_slot(error):
    stage = Stage(owns_process=True)
    told = stage.order(stage.deploy(plan=cloudpickle.dumps(Bomb(error))))
    [failed] = [message for message in told if isinstance(message, TaskFailed)]
    assert (failed.operator, stage.driver.left) == ("deployment", False)
    assert type(error).__name__ in failed.error


def test_ctrl_c_in_a_process_that_runs_other_things_than_the_slot_is_for_the_process():
    SCRIPT.clear()
    program = Program(JobSettings(parallelism=1))
    STEPS["map"](program.read(Numbers()), KeyboardInterrupt()).write(Drain())
    plan, stage = program.plan(), Stage()
    with pytest.raises(KeyboardInterrupt):
        stage.order(
            stage.deploy(plan=cloudpickle.dumps(plan), tasks=plan.tasks, peers=stage_peers(stage)), Run(epoch=Epoch(1))
        )


@pytest.mark.parametrize("error", RAISED, ids=NAMES)
def test_a_thread_for_blocking_work_outlives_it_and_hands_it_on(error):
    ended, outcomes = threading.Event(), []
    background = ThreadBackground(ended.set, name="test")
    try:
        for work in (lambda: raising(error)(0), lambda: 7):
            ended.clear()
            background.submit(work, outcomes.append)
            assert ended.wait(60)
            background.collect()
        assert (outcomes[0].error, outcomes[1].value) == (error, 7)
        cause = driver_cause("the committer", outcomes[0].error)
        assert (cause.operator, cause.user_code) == ("the committer", True)
        assert type(error).__name__ in cause.text
    finally:
        background.close()


@pytest.mark.parametrize("error", [error for error in RAISED if not isinstance(error, KeyboardInterrupt)])
def test_a_data_source_that_raises_it_is_named(error):
    with pytest.raises(UserCodeRaised, match="partitions of data source 'mine'"), calling("mine", "partitions"):
        raise error


def test_what_is_raised_in_no_step_is_told_of_the_vertex():
    assert describe_failure(SystemExit(1), vertex="v")[:2] == ("v", "SystemExit: 1")
