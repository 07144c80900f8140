"""What people see: counts, sizes, durations, history; and the story that a broken rule prints."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.core.coordinator.events import AttemptStarted, CheckpointForm, FailedOver, RequestKind, TaskEnded
from penstock.core.coordinator.stats import SUMMARY_WINDOW, RunningSpread, quantile
from penstock.core.coordinator.story import MAX_CHECKPOINTS, MAX_LINES, Stories
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Epoch, Instant
from penstock.core.messages import ChannelState, SnapshotMetrics, StateFile, SubtaskState
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.views import CheckpointCounts, CheckpointStatus, RestoredView, Spread, SubtaskView

METRICS = SnapshotMetrics(
    start_delay_ms=1,
    alignment_ms=2,
    sync_ms=0.5,
    async_ms=4.0,
    bytes_processed=30,
    bytes_persisted=40,
    checkpointed_bytes=50,
    unaligned=True,
)


def test_counts_and_latest(rig, pick):
    r = rig(tolerable_failures=None).start()
    for checkpoint, ending in ((1, r.ack_all), (2, lambda c: r.decline("t1", c))):
        r.request()
        ending(checkpoint)
    r.request(RequestKind.SAVEPOINT, canonical=True)
    r.ack_all(3)
    r.request()
    view = r.coordinator.view()
    assert view.counts == CheckpointCounts(total=4, in_progress=1, completed=2, failed=1)
    assert [c.checkpoint for c in view.history] == [4, 3, 2, 1]
    assert (view.latest_completed.checkpoint, view.latest_savepoint.checkpoint) == (1, 3)
    failed = view.latest_failed
    assert (failed.status, failed.failure) == (CheckpointStatus.FAILED, CheckpointFailure.DECLINED_TASK_NOT_READY)
    assert failed.failure_text == "task t1[0]: because"
    assert view.latest_savepoint.canonical
    assert (view.latest_savepoint.metadata_bytes, view.latest_savepoint.ended, failed.ended) == (100, r.now, r.now)
    assert view.latest_savepoint.path == "savepoints/chk-3/_metadata"
    assert view.history[0].status is CheckpointStatus.IN_PROGRESS


def test_nothing_has_happened_yet(rig):
    view = rig().coordinator.view()
    assert view.counts == CheckpointCounts()
    assert view.summary.duration_ms == Spread()
    assert (view.history, view.latest_completed, view.latest_restored) == ((), None, None)


def test_a_checkpoint_adds_up_its_vertices_and_they_their_subtasks(rig, make):
    graph = make.graph(make.vertex("s", 2, is_source=True), make.vertex("t", 1), edges=(("s", "t", True),))
    r = rig(graph).start()
    r.request()
    r.now = 1_010
    r.ack("s", 1, make.state("s", make.file("x")), subtask=1, metrics=METRICS)
    r.now = 1_030
    r.ack("t", 1)
    view = r.details(1)
    assert (view.duration_ms, view.ended) == (30, None)
    assert (view.totals.num_subtasks, view.totals.num_acknowledged, view.totals.latest_ack) == (3, 2, 1_030)
    assert (view.totals.checkpointed_bytes, view.totals.state_bytes) == (50, 10)
    assert (view.totals.processed_bytes, view.totals.persisted_bytes, view.totals.unaligned) == (30, 40, True)
    source, target = view.vertices
    assert (source.vertex, source.status, source.duration_ms) == ("s", CheckpointStatus.IN_PROGRESS, 10)
    assert (target.vertex, target.status, target.totals.unaligned) == ("t", CheckpointStatus.COMPLETED, False)


def test_subtasks_show_their_own_numbers_and_how_these_are_spread(rig, make):
    r = rig(make.graph(make.vertex("s", 2, is_source=True))).start()
    r.request()
    r.now = 1_010
    r.ack("s", 1, make.state("s", make.file("x")), subtask=1, metrics=METRICS)
    view = r.subtasks(1, "s")
    assert view.subtasks == (
        SubtaskView(subtask=0, acknowledged=None),
        SubtaskView(
            subtask=1,
            acknowledged=Instant(1_010),
            duration_ms=10,
            checkpointed_bytes=50,
            state_bytes=10,
            processed_bytes=30,
            persisted_bytes=40,
            sync_ms=0.5,
            async_ms=4.0,
            alignment_ms=2,
            start_delay_ms=1,
            unaligned=True,
            operators={"op-s": 10},
        ),
    )
    assert (view.async_ms.min, view.async_ms.avg, view.sync_ms.max, view.start_delay_ms.p99) == (4.0, 4.0, 0.5, 1)
    assert view.totals.num_acknowledged == 1


def test_only_subtasks_that_take_part_are_shown(rig, make):
    r = rig(make.graph(make.vertex("s", 3, is_source=True))).start()
    r.feed(TaskEnded(task=make.task("s", 0), epoch=Epoch(1)))
    r.request()
    assert [s.subtask for s in r.subtasks(1, "s").subtasks] == [1, 2]


def test_a_late_answer_is_shown_as_aborted_and_not_added_up(rig, make):
    r = rig(tolerable_failures=None).start()
    r.request()
    r.decline("t1", 1)
    r.ack("t2", 1, metrics=METRICS)
    r.ack("nobody", 1)
    before = r.coordinator.details()[0]
    assert [s.acknowledged for v in before.vertices for s in v.subtasks].count(None) == 1
    r.ack("t1", 1, metrics=METRICS)
    # What was told once is told anew when it has changed, and only then.
    told = r.coordinator.details()
    assert [s.acknowledged for v in told[0].vertices for s in v.subtasks].count(None) == 0
    assert r.coordinator.details()[0] is told[0]
    (late,) = r.subtasks(1, "t2").subtasks
    assert (late.aborted, late.checkpointed_bytes) == (True, 50)
    assert r.details(1).totals.num_acknowledged == 0


def test_in_flight_data_counts_as_state(rig, make):
    r = rig(make.sources(1)).start()
    r.request()
    channel = ChannelState(edge=0, upstream=0, downstream=0, file=make.file("c"), ranges=((0, 6), (6, 7)))
    small = StateFile(path=None, size=0, checksum=1, inline=b"")
    inline = ChannelState(edge=0, upstream=0, downstream=0, file=small, ranges=())
    r.ack("t1", 1, SubtaskState(input_channels=(inline,), output_channels=(channel,)))
    assert r.coordinator.latest.size == 13
    assert r.coordinator.latest.private_files == ("c",)


def test_history_keeps_the_last_ones_that_ended_and_the_latest_of_each_kind(rig):
    r = rig(tolerable_failures=None, history=2).start()
    r.request()
    r.ack_all(1)
    for checkpoint in (2, 3, 4):
        r.request()
        r.decline("t1", checkpoint)
    view = r.coordinator.view()
    assert [c.checkpoint for c in view.history] == [4, 3]
    assert view.latest_completed.checkpoint == 1
    assert r.details(1).status is CheckpointStatus.COMPLETED
    assert r.details(2) is None


def test_a_subsumed_checkpoint_is_shown_as_discarded(rig):
    r = rig(history=1).start()
    r.request()
    r.ack_all(1)
    assert not r.details(1).discarded
    latest = r.coordinator.view().latest_completed
    r.request(form=CheckpointForm.FULL)
    r.ack_all(2)
    assert not latest.discarded
    assert not r.coordinator.view().latest_completed.discarded
    assert r.coordinator.view().latest_completed.kind is SnapshotKind.FULL_CHECKPOINT


def test_a_subsumed_checkpoint_in_the_history_is_marked(rig):
    r = rig().start()
    for checkpoint in (1, 2):
        r.request()
        r.ack_all(checkpoint)
    assert r.details(1).discarded
    assert not r.details(2).discarded


def test_a_retained_checkpoint_is_not_marked_when_an_older_one_goes(rig):
    r = rig(num_retained=2).start()
    for checkpoint in (1, 2, 3):
        r.request()
        r.ack_all(checkpoint)
    discarded = [r.details(c).discarded for c in (1, 2, 3)]
    assert discarded == [True, False, False]


def test_restores_are_counted(rig):
    r = rig().start()
    r.request()
    r.ack_all(1)
    r.feed(FailedOver())
    r.now = 2_000
    r.feed(AttemptStarted(epoch=Epoch(2), restored=r.coordinator.latest))
    view = r.coordinator.view()
    assert view.counts.restored == 1
    assert view.latest_restored == RestoredView(
        checkpoint=CheckpointId(1), kind=SnapshotKind.CHECKPOINT, restored=Instant(2_000), path="ckpt/chk-1/_metadata"
    )


def test_the_summary_is_over_completed_checkpoints(rig):
    r = rig(tolerable_failures=None).start()
    for checkpoint, took_ms in ((1, 10), (2, 30)):
        r.request()
        r.now += took_ms
        r.ack_all(checkpoint)
    r.request()
    r.now += 500
    r.decline("t1", 3)
    spread = r.coordinator.view().summary.duration_ms
    assert (spread.min, spread.max, spread.avg, spread.p50) == (10, 30, 20, 20)


def test_the_summary_covers_sizes_too(rig, make):
    r = rig(make.sources(1)).start()
    r.request()
    r.ack("t1", 1, make.state("t1", make.file("x")), metrics=METRICS)
    summary = r.coordinator.view().summary
    sizes = (summary.checkpointed_bytes, summary.state_bytes, summary.processed_bytes, summary.persisted_bytes)
    assert [s.max for s in sizes] == [50, 10, 30, 40]


def test_one_unaligned_subtask_makes_its_vertex_unaligned(rig, make):
    r = rig(make.graph(make.vertex("s", 3, is_source=True))).start()
    r.request()
    r.ack("s", 1, subtask=0, metrics=METRICS)
    r.ack("s", 1, subtask=1)
    assert r.details(1).vertices[0].totals.unaligned


# --- spreads ---------------------------------------------------------------------------------------------------------


def test_a_quantile_lies_between_its_neighbours():
    values = [float(v) for v in range(1, 100)]
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.95) == 95
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([7.0], 0.5) == 7
    assert quantile([1.0, 2.0], 0.1) == 1


def test_percentiles_forget_what_the_extremes_remember():
    running = RunningSpread()
    running.add(1_000_000)
    for _ in range(SUMMARY_WINDOW):
        running.add(1)
    view = running.view()
    assert (view.min, view.max, view.p999) == (1, 1_000_000, 1)


# --- stories ---------------------------------------------------------------------------------------------------------


def test_the_story_of_a_checkpoint_tells_how_it_went(rig):
    r = rig(tolerable_failures=None).start()
    r.request()
    r.decline("t1", 1)
    assert r.coordinator._under_way.stories.of(CheckpointId(1)) == (
        "1000: Checkpoint begins after 0 ms, 2 tasks",
        "1000: located at ckpt/chk-1",
        "1000: 2 tasks triggered",
        "1000: aborted: a task was not ready for a checkpoint: task t1[0]: because",
    )
    assert r.coordinator._under_way.stories.of(CheckpointId(2)) == ()


def test_the_story_of_a_completed_checkpoint_ends_well(rig):
    r = rig().start()
    r.request()
    r.ack_all(1)
    assert r.coordinator._under_way.stories.of(CheckpointId(1))[-2:] == (
        "1000: all tasks acknowledged",
        "1000: completed",
    )


def test_stories_are_bounded():
    stories = Stories()
    for checkpoint in range(MAX_CHECKPOINTS + 1):
        stories.tell(CheckpointId(checkpoint), Instant(0), "begins")
    assert stories.of(CheckpointId(0)) == ()
    for line in range(MAX_LINES + 1):
        stories.tell(CheckpointId(1), Instant(0), str(line))
    assert len(stories.of(CheckpointId(1))) == MAX_LINES
    assert stories.of(CheckpointId(1))[-1] == f"0: {MAX_LINES}"


def test_a_broken_rule_prints_the_story():
    stories = Stories()
    stories.tell(CheckpointId(1), Instant(5), "begins")
    error = stories.broken(CheckpointId(1), "is not right")
    assert isinstance(error, InvariantError)
    assert str(error) == "checkpoint 1: is not right (story: 5: begins)"
    assert str(stories.broken(CheckpointId(2), "is not there")).endswith("(story: nothing is known)")


# --- rules that protect us from ourselves ----------------------------------------------------------------------------


def tampered(rig, change):
    r = rig(max_concurrent=9).start()
    r.request()
    r.ack_all(1)
    r.request()
    change(r.coordinator)
    return r.coordinator


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: setattr(c._under_way, "next_id", CheckpointId(2)), "not given away yet"),
        (
            lambda c: setattr(c._under_way._triggering, "current", c._under_way._pending[2]),
            "does not fit the checkpoint that is being triggered",
        ),
        (lambda c: setattr(c._under_way.archive, "_storing", "x"), "0 checkpoints are being stored"),
        (lambda c: setattr(c._under_way.archive._retained, "_list", [c.latest, c.latest]), "not in order"),
        (lambda c: c._under_way.outcomes.append("x"), "left lying"),
        (lambda c: c._effects.append("x"), "left lying"),
        (lambda c: setattr(c._board, "_num_running", 7), "counts"),
        (lambda c: c.__dict__.update(_is_up=False, _schedule=SimpleNamespace(next_trigger=1)), "schedule is on"),
    ],
)
def test_validate_notices_what_cannot_be(rig, change, text):
    with pytest.raises(InvariantError, match=text):
        tampered(rig, change).validate()


def test_validate_notices_a_checkpoint_that_should_have_been_subsumed(rig):
    r = rig(max_concurrent=9).start()
    r.request()
    pending = r.coordinator._under_way._pending[1]
    r.request()
    r.ack_all(2)
    r.coordinator._under_way._pending[1] = pending
    with pytest.raises(InvariantError, match="under way although 2 is complete"):
        r.coordinator.validate()


def test_a_savepoint_that_is_to_be_subsumed_is_a_bug(rig):
    r = rig().start()
    r.request(RequestKind.SAVEPOINT)
    lifecycle = r.coordinator._under_way
    with pytest.raises(InvariantError, match=r"checkpoint 1: a savepoint cannot be subsumed \(story: 1000: Savepoint"):
        lifecycle.abort_all(CheckpointFailure.SUBSUMED, "", Instant(r.now))


def test_a_checkpoint_is_told_in_one_line(rig, make):
    r = rig(make.graph(make.vertex("s", 2, is_source=True)), tolerable_failures=None).start()
    r.request()
    r.now = 1_012
    r.ack("s", 1, make.state("s", make.file("x")), subtask=1, metrics=METRICS)
    assert repr(r.details(1)) == (
        "<checkpoint 1: 1 of 2 subtasks acknowledged since 1970-01-01 00:00:01 UTC, unaligned>"
    )
    r.ack("s", 1, subtask=0)
    assert repr(r.details(1)) == "<checkpoint 1: completed in 12 ms, 50 B written, 10 B in all, unaligned>"
    r.request()
    r.decline("s", 2)
    assert repr(r.details(2)).startswith("<checkpoint 2: failed at 0 of 2 subtasks: ")
    assert (r.details(1).why_failed(), bool(r.details(2).why_failed())) == ("", True)


def test_the_latest_of_each_kind_are_remembered_beyond_the_history(rig):
    r = rig(history=1).start()
    r.request(RequestKind.SAVEPOINT)
    r.ack_all(1)
    for checkpoint in (2, 3, 4):
        r.request()
        r.ack_all(checkpoint)
    assert [details.checkpoint for details in r.coordinator.details()] == [4, 1]
    assert [view.checkpoint for view in r.coordinator.view().history] == [4]
