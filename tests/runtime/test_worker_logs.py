"""What user code logs in a slot appears in the driver's log with slot and step, bounded, and without waiting."""

from __future__ import annotations

import logging

import pytest
from slot_rig import SLOT, Stage

from penstock.core.ids import TaskId, VertexId
from penstock.core.messages import LogLine, WorkerLog
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


def test_a_line_is_kept_with_its_logger_level_and_step(logs):
    Step().process(7)
    MINE.warning("outside")
    assert logs.take(SLOT) == WorkerLog(
        slot=SLOT,
        lines=(
            LogLine(level=logging.INFO, logger="mine", text="saw 7", step="score"),
            LogLine(level=logging.WARNING, logger="mine", text="outside"),
        ),
    )
    assert logs.take(SLOT) is None


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
