"""The log as text and as JSON: each line says which job, slot, step, subtask and checkpoint it is about."""

from __future__ import annotations

import io
import json
import logging

import pytest

from penstock.core.errors import UsageError
from penstock.core.ids import SlotId
from penstock.core.messages import LogLine, WorkerLog
from penstock.runtime import worker_logs
from penstock.runtime.keeping_handler import KeepingHandler
from penstock.runtime.log_lines import configure_logging

LINE = LogLine(level=logging.WARNING, logger="mine", text="odd\nvalue", step="score", subtask=1, checkpoint=7)


@pytest.fixture
def ours():
    """The logger of Penstock, as it was before."""
    logger = logging.getLogger("penstock")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield logger
    logger.setLevel(before[0])
    logger.propagate = before[1]
    logger.handlers[:] = before[2]


def test_json_has_a_field_for_each_fact(ours):
    written = io.StringIO()
    configure_logging("json", stream=written)
    worker_logs.tell(WorkerLog(slot=SlotId(2, 1), lines=(LINE,)), "orders-1")
    (line,) = written.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "WARNING",
        "logger": "penstock.runtime.worker_logs.mine",
        "message": "slot 2, step 'score': odd\nvalue",
        "job": "orders-1",
        "slot": 2,
        "operator": "score",
        "subtask": 1,
        "checkpoint": 7,
    }


def test_text_ends_with_the_facts_and_a_traceback_is_below(ours):
    written = io.StringIO()
    configure_logging("text", stream=written)
    try:
        int("no")
    except ValueError:
        logging.getLogger("penstock.x").exception("failed", extra={"job": "orders-1"})
    first, *rest = written.getvalue().splitlines()
    assert first.endswith(" ERROR penstock.x: failed [job=orders-1]")
    assert rest[-1].startswith("ValueError: ")


def test_a_second_call_replaces_the_first_and_the_level_counts(ours):
    first, second = io.StringIO(), io.StringIO()
    configure_logging(stream=first)
    configure_logging(stream=second, level="WARNING")
    logging.getLogger("penstock").info("quiet")
    logging.getLogger("penstock").warning("loud")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


@pytest.mark.parametrize("wrong", [{"format": "xml"}, {"level": "LOUD"}])
def test_what_is_no_format_or_level_is_refused(ours, wrong):
    with pytest.raises(UsageError, match="choose"):
        configure_logging(**wrong)


# --- handlers that only keep records ---------------------------------------------------------------------------------


class Keeping(KeepingHandler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.kept: list[str] = []

    def keep(self, record: logging.LogRecord) -> None:
        self.kept.append(record.getMessage())


@pytest.fixture
def alone(ours, monkeypatch):
    """What Python shows by itself in a program that has set up no logging."""
    # The handlers of the tests themselves are at the root.
    ours.propagate = False
    shown: list[str] = []
    last = logging.Handler(logging.WARNING)
    last.emit = lambda record: shown.append(record.getMessage())
    monkeypatch.setattr(logging, "lastResort", last)
    return shown


def test_in_a_program_without_logging_handlers_that_keep_do_not_hide_warnings_and_show_them_once(ours, alone):
    first, second = Keeping(), Keeping()
    # The handlers of the tests themselves are taken away, too.
    ours.handlers[:] = [first, second]
    logging.getLogger("penstock.x").warning("odd")
    logging.getLogger("penstock.x").info("quiet")
    assert alone == ["odd"]
    assert first.kept == second.kept == ["odd"]


def test_in_a_program_with_logging_listeners_show_nothing(ours, alone):
    written = io.StringIO()
    ours.handlers[:] = [Keeping(), logging.StreamHandler(written)]
    logging.getLogger("penstock.x").warning("odd")
    assert (alone, written.getvalue()) == ([], "odd\n")
