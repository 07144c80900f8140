"""The closed list of reasons: each with a sentence, whether it counts, and when it can occur."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from penstock.core.reasons import CheckpointFailure


def test_reasons_that_count_are_those_of_storage_tasks_and_time():
    counting = [r.name for r in CheckpointFailure if r.counts]
    assert counting == ["IO", "ASYNC_PART_FAILED", "DECLINED", "EXPIRED", "FINALIZE_FAILED"]


def test_reasons_before_any_task_was_triggered():
    preflight = [r.name for r in CheckpointFailure if r.preflight]
    assert preflight == [
        "PERIODIC_SCHEDULER_SHUTDOWN",
        "TOO_MANY_REQUESTS",
        "MINIMUM_PAUSE",
        "NOT_ALL_REQUIRED_TASKS_RUNNING",
        "IO",
    ]


@pytest.mark.parametrize("reason", CheckpointFailure, ids=lambda reason: reason.name)
def test_a_reason_is_a_sentence_that_names_it_again(reason):
    assert reason.text == reason.value
    assert reason.text[0].islower()
    assert not reason.text.endswith(".")
    assert "\n" not in reason.text
    assert CheckpointFailure(reason.text) is reason, "no two reasons have the same sentence"


@pytest.mark.parametrize("reason", CheckpointFailure, ids=lambda reason: reason.name)
def test_a_reason_stays_itself_between_processes(reason):
    assert pickle.loads(pickle.dumps(reason)) is reason
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reason), type=CheckpointFailure) is reason
