"""The sentence that says why a checkpoint was slow, for one checkpoint per cause."""

from __future__ import annotations

from web_rig import BEGAN, SETTINGS, make_checkpoint, make_facts, make_tasks, subtask, task, totals

from penstock.core.reasons import CheckpointFailure
from penstock.core.views import CheckpointStatus
from penstock.web.diagnosis import bottleneck, checkpoint_sentence, job_sentences
from penstock.web.picture import picture


def told(checkpoint, *, tasks=None):
    facts = make_facts(checkpoints=(checkpoint,), tasks=tasks)
    job = picture(facts, name="bids", settings=SETTINGS, past={})
    return checkpoint_sentence(job, job["checkpoint_details"][str(checkpoint.checkpoint)])


def even(**more):
    return [subtask(i, duration_ms=50, **more) for i in range(2)]


def test_a_quick_checkpoint_needs_no_explanation():
    assert told(make_checkpoint(1, even(), even(), ended=5)) == "It was quick: 50 ms."


def test_a_wait_for_a_barrier_names_whose_barrier_and_what_holds_it_back():
    slow = subtask(1, duration_ms=3_200, alignment_ms=3_100, processed_bytes=38_000_000, waited_for=task("bids", 0))
    found = told(make_checkpoint(1, even(), [subtask(0, duration_ms=40), slow], ended=5))
    assert found == (
        "window[1] waited 3.1 s for the barrier of bids -> where[0], and read 38 MB meanwhile: back-pressure from "
        "window[0]; unaligned checkpoints would have taken about 21 ms."
    )


def test_without_back_pressure_none_is_named():
    slow = subtask(1, duration_ms=3_200, alignment_ms=3_100, waited_for=task("bids", 0))
    tasks = {name: {**values, "blocked_ms": 0.0} for name, values in make_tasks().items()}
    found = told(make_checkpoint(1, even(), [subtask(0, duration_ms=40), slow], ended=5), tasks=tasks)
    assert "back-pressure" not in found


def test_a_barrier_that_came_late_is_told():
    slow = subtask(0, duration_ms=2_100, start_delay_ms=2_000)
    assert told(make_checkpoint(1, even(), [slow], ended=5)).startswith(
        "The barrier came to window[0] only after 2.0 s"
    )


def test_a_subtask_that_slows_the_job_down_is_not_said_to_wait_for_itself():
    slow = subtask(0, duration_ms=2_100, start_delay_ms=2_000)
    found = told(make_checkpoint(1, even(), [slow], ended=5))
    assert "behind records that it had not worked off: it slows the job down" in found
    assert "back-pressure from" not in found


def test_a_state_that_was_frozen_slowly_is_told():
    slow = subtask(0, duration_ms=900, sync_ms=850.0)
    assert told(make_checkpoint(1, even(), [slow], ended=5)).startswith("window[0] took 850 ms to freeze its state")


def test_a_state_that_was_written_slowly_is_told_with_its_speed():
    slow = subtask(0, duration_ms=2_100, async_ms=2_000.0, checkpointed_bytes=4_000_000)
    found = told(make_checkpoint(1, even(), [slow], ended=5))
    assert found == "window[0] took 2.0 s to write 4.0 MB, 2.0 MB per second."


def test_a_storage_that_is_slow_at_the_end_is_told():
    found = told(make_checkpoint(1, even(), even(), ended=5_000))
    assert "5.0 s to make the checkpoint durable" in found


def test_time_that_nothing_accounts_for_is_told():
    slow = subtask(0, duration_ms=5_000, async_ms=10.0)
    assert "was busy for 5.0 s before it could take its snapshot" in told(make_checkpoint(1, even(), [slow], ended=5))


def test_an_unaligned_checkpoint_is_not_told_to_be_unaligned():
    slow = subtask(0, duration_ms=3_000, start_delay_ms=2_900, unaligned=True)
    assert "unaligned checkpoints would" not in told(make_checkpoint(1, even(), [slow], ended=5))


def test_a_checkpoint_under_way_names_who_is_missing():
    silent = [subtask(i, acknowledged=None, duration_ms=0) for i in range(5)]
    found = told(make_checkpoint(1, even(), silent, status=CheckpointStatus.IN_PROGRESS))
    assert found == "It is under way. Not acknowledged: window[0], window[1], window[2] and 2 more."


def test_a_failed_checkpoint_says_why_and_who_was_missing():
    silent = [subtask(0, acknowledged=None, duration_ms=0)]
    failed = make_checkpoint(1, even(), silent, status=CheckpointStatus.FAILED, failure=CheckpointFailure.EXPIRED)
    found = told(failed)
    assert CheckpointFailure.EXPIRED.text in found
    assert "window[0]" in found


def test_a_checkpoint_without_a_subtask_is_no_error():
    assert told(make_checkpoint(1, [], [], ended=5)) == "No subtask took part."


# --- the bottleneck ----------------------------------------------------------------------


def document(tasks):
    return picture(make_facts(tasks=tasks), name="bids", settings=SETTINGS, past={})


def test_the_cause_of_back_pressure_is_busy_behind_a_vertex_that_is_blocked():
    found = bottleneck(document(make_tasks()))
    assert (found["name"], found["pressed"]) == ("window", 0.3)


def test_without_back_pressure_there_is_no_bottleneck():
    tasks = {f"bids[{i}]": totals(5, blocked=0) for i in range(2)}
    assert bottleneck(document(tasks)) is None


def test_a_job_is_told_in_sentences():
    topics = [each["topic"] for each in job_sentences(document(make_tasks()))]
    assert topics == ["bottleneck", "checkpoints", "risk"]
    assert BEGAN
