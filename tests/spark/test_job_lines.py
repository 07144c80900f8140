"""The last lines of a job: bounded, numbered, of one slot or of all. Needs no Spark."""

from __future__ import annotations

import json
import logging

import pytest

from penstock.core.ids import Instant, JobId, SlotId
from penstock.core.messages import LogLine, WorkerLog
from penstock.runtime import worker_logs
from penstock.spark.job_lines import JobLines

JOB = JobId("orders-1")
DRIVER = logging.getLogger("penstock.runtime.master")


class Still:
    def now(self) -> Instant:
        return Instant(1_000)


@pytest.fixture
def lines(tmp_path):
    made = JobLines(JOB, Still(), folder=tmp_path / "logs", most=5)
    yield made
    made.close()


def said(slot, *texts, level=logging.INFO, **more):
    return WorkerLog(
        slot=SlotId(slot, 1),
        lines=tuple(LogLine(level=level, logger="mine", text=text, step="score", subtask=slot) for text in texts),
        **more,
    )


def texts(answer):
    return [line["text"] for line in answer["lines"]]


def test_lines_of_slots_and_of_the_driver_are_in_the_order_in_which_they_came(lines):
    lines.hear(said(0, "a"))
    DRIVER.warning("restarting", extra={"job": JOB, "checkpoint": 4})
    lines.hear(said(1, "b", level=0, printed=("row",)))
    answer = lines.after(0, slot=None, lines=10)
    assert texts(answer) == ["a", "restarting", "b", "row"]
    assert [(line["slot"], line["level"], line["operator"]) for line in answer["lines"]] == [
        (0, "INFO", "score"),
        (None, "WARNING", None),
        (1, None, "score"),
        (1, None, None),
    ]
    assert answer["lines"][1]["checkpoint"] == 4
    assert texts(lines.after(0, slot=1, lines=10)) == ["b", "row"]
    assert texts(lines.after(0, slot=None, lines=2)) == ["b", "row"]
    assert texts(lines.after(answer["next"], slot=None, lines=10)) == []


def test_lines_of_other_jobs_and_repeated_lines_are_not_kept(lines):
    DRIVER.warning("of another", extra={"job": "other-1"})
    worker_logs.tell(said(0, "x"), JOB)
    assert texts(lines.after(0, slot=None, lines=10)) == []


def test_old_lines_are_forgotten_and_those_who_follow_learn_how_many(lines):
    lines.hear(said(0, *"abcdefg"))
    answer = lines.after(1, slot=None, lines=10)
    assert texts(answer) == list("cdefg")
    assert (answer["next"], answer["left_out"]) == (7, 1)


def test_what_a_slot_could_not_send_is_counted(lines):
    lines.hear(said(0, dropped=3, unprinted=2))
    assert texts(lines.after(0, slot=None, lines=10)) == [
        "3 more lines were logged or printed, too fast to be kept",
        "2 more rows were printed, too fast to be kept",
    ]


def test_the_file_has_every_line_as_json(lines, tmp_path):
    lines.hear(said(0, *"abcdefg"))
    written = [json.loads(line) for line in (tmp_path / "logs" / "orders-1.log").read_text().splitlines()]
    assert [line["text"] for line in written] == list("abcdefg")
    assert written[0]["job"] == JOB


def test_a_folder_that_cannot_be_made_does_not_stop_the_job(tmp_path, caplog):
    (tmp_path / "taken").touch()
    made = JobLines(JOB, Still(), folder=tmp_path / "taken")
    made.hear(said(0, "a"))
    made.close()
    assert texts(made.after(0, slot=None, lines=1)) == ["a"]
    assert "are not written to" in caplog.text


def test_after_the_end_no_record_is_taken(lines):
    lines.close()
    DRIVER.warning("late", extra={"job": JOB})
    assert texts(lines.after(0, slot=None, lines=10)) == []
