"""What user code logs in a slot appears in the driver's log with slot and step, bounded, and without waiting."""

from __future__ import annotations

import logging
import sys

import msgspec
import pyarrow as pa
import pytest
from slot_rig import SCRIPT, SLOT, WINDOW, Stage, plan

from penstock.api.connector import End
from penstock.core.ids import CheckpointId, Epoch, Instant, TaskId, VertexId
from penstock.core.messages import (
    LetEnd,
    LogLine,
    NotifyComplete,
    TaskFailed,
    TaskFinished,
    TriggerCheckpoint,
    WorkerLog,
)
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.worker_logs import MOST_CHARACTERS, MOST_LINES, WorkerLogs, collected, tell

MINE = logging.getLogger("mine")


@pytest.fixture
def logs():
    made = WorkerLogs("INFO")
    with collected(made):
        yield made


class Named:
    name = "score"
    task = TaskId(VertexId("v"), 0)


class Step(Operator):
    context = Named()

    def process(self, batch):
        MINE.info("saw %d", batch)


class Printing(Operator):
    context = Named()

    def process(self, batch):
        sys.stdout.write(batch)


def test_a_line_is_kept_with_its_logger_level_and_step(logs):
    Step().process(7)
    MINE.warning("outside", extra={"checkpoint": 3})
    taken = logs.take(SLOT)
    assert [msgspec.structs.replace(line, when=None) for line in taken.lines] == [
        LogLine(level=logging.INFO, logger="mine", text="saw 7", step="score", subtask=0),
        LogLine(level=logging.WARNING, logger="mine", text="outside", checkpoint=3),
    ]
    assert all(line.when is not None for line in taken.lines)
    assert logs.take(SLOT) is None


def test_what_is_printed_in_a_slot_is_kept_line_by_line_and_still_printed(capsys):
    made = WorkerLogs("WARNING")
    with collected(made):
        Printing().process("one\ntwo, and no")
        sys.stdout.write(" more\n")
        sys.stderr.write("wrong\n")
    assert [(line.logger, line.text, line.step, line.level) for line in made.take(SLOT).lines] == [
        ("stdout", "one", "score", 0),
        ("stdout", "two, and no more", None, 0),
        ("stderr", "wrong", None, 0),
    ]
    assert capsys.readouterr() == ("one\ntwo, and no more\n", "wrong\n")
    sys.stdout.write("afterwards\n")
    assert made.take(SLOT) is None


def test_a_slot_that_prints_without_end_keeps_a_bounded_number_of_lines():
    made = WorkerLogs("WARNING")
    with collected(made):
        for _ in range(MOST_LINES + 3):
            sys.stdout.write("x" * 2 * MOST_CHARACTERS + "\n")
        sys.stdout.write("y" * 3 * MOST_CHARACTERS)
    taken = made.take(SLOT)
    assert (len(taken.lines), len(taken.lines[0].text), taken.dropped) == (MOST_LINES, MOST_CHARACTERS, 3)


def test_what_was_only_printed_does_not_come_into_the_log_of_the_driver(caplog):
    caplog.set_level(logging.DEBUG)
    tell(WorkerLog(slot=SLOT, lines=(LogLine(level=0, logger="stdout", text="printed"),)))
    assert not caplog.records


def test_what_is_below_the_level_is_not_kept_and_the_level_is_set_back():
    before = logging.getLogger().level
    made = WorkerLogs("WARNING")
    with collected(made):
        MINE.info("too quiet")
    assert (made.take(SLOT), logging.getLogger().level) == (None, before)


def test_no_more_than_a_bounded_number_of_short_lines_is_kept_and_the_others_are_counted(logs):
    for _ in range(MOST_LINES + 5):
        MINE.info("x" * 3 * MOST_CHARACTERS)
    taken = logs.take(SLOT)
    assert (len(taken.lines), len(taken.lines[0].text), taken.dropped) == (MOST_LINES, MOST_CHARACTERS, 5)


def test_arguments_that_do_not_fit_the_text_lose_only_themselves(logs):
    logs.emit(logging.LogRecord("mine", logging.INFO, "", 0, "saw %d", ("seven",), None))
    assert [line.text for line in logs.take(SLOT).lines] == ["saw %d"]


def test_the_driver_logs_it_with_slot_and_step(caplog):
    caplog.set_level(logging.INFO)
    line = LogLine(level=logging.INFO, logger="mine", text="saw 7", step="score")
    tell(WorkerLog(slot=SLOT, lines=(line,), dropped=3))
    assert [record.getMessage() for record in caplog.records] == [
        "slot 0, step 'score': saw 7",
        "slot 0 logged too fast: 3 lines are not in this log",
    ]
    assert caplog.records[0].name == "penstock.runtime.worker_logs.mine"


def test_a_slot_hands_it_on_with_its_heartbeat(logs):
    stage = Stage(logs=logs)
    stage.turn()
    MINE.info("hello")
    stage.clock.time += 200
    stage.turn()
    [told] = [message for message in stage.answers() if isinstance(message, WorkerLog)]
    assert [line.text for line in told.lines] == ["hello"]


def test_a_slot_that_is_stuck_hands_it_on_beside_its_loop(logs):
    stage = Stage(logs=logs)
    stage.turn()
    MINE.info("hello")
    stage.driver.beat(stage.clock.now() + 20_000)
    [told] = [message for message in stage.answers() if isinstance(message, WorkerLog)]
    assert [line.text for line in told.lines] == ["hello"]


@pytest.fixture
def _no_script():
    SCRIPT.clear()
    yield
    SCRIPT.clear()


@pytest.mark.usefixtures("_no_script")
def test_what_a_task_that_fails_has_logged_is_told_with_its_failure(logs):
    stage = Stage(logs=logs).run()
    MINE.info("about to fail")
    SCRIPT.append(pa.record_batch({"other": ["columns"]}))
    stage.clock.time += 50
    told = [message for message in stage.order() if isinstance(message, WorkerLog | TaskFailed)]
    assert [type(message) for message in told] == [WorkerLog, TaskFailed]
    assert told[0].lines[0].text == "about to fail"


@pytest.mark.usefixtures("_no_script")
def test_what_a_task_that_ends_has_printed_is_told_with_its_end(logs):
    """A short job ends between two heartbeats."""
    SCRIPT.append(End())
    stage = Stage(logs=logs).run()
    source = plan().tasks_of_slot(0)[0]
    first = {"epoch": Epoch(1), "task": source}
    stage.credit(WINDOW)
    stage.order(TriggerCheckpoint(**first, checkpoint=CheckpointId(1), timestamp=Instant(0)))
    stage.order(NotifyComplete(**first, checkpoint=CheckpointId(1)))
    stage.credit(0, data_taken=True)
    logs.print_lines(["{n: 1}"], 7)
    told = stage.order(LetEnd(**first))
    assert [type(message) for message in told[:2]] == [WorkerLog, TaskFinished]
    assert (told[0].printed, told[0].unprinted) == (("{n: 1}",), 7)
