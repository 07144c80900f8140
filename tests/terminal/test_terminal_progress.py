"""How far a job is, how fast, and what happened, from one look to the next."""

from __future__ import annotations

from job_views import make_view

from penstock.core.job.events import JobState
from penstock.runtime.views import FailureView
from penstock.terminal.progress import LAG_MS, Watch
from penstock.terminal.screen import LastCheckpoint


def lost(epoch: int = 1, *, when: int = 2_500, restart_in_ms: int | None = 100) -> FailureView:
    return FailureView(
        epoch=epoch,
        when=when,
        text="slot 1 was lost: its worker exited\nmore",
        operator=None,
        subtask=None,
        traceback="",
        user_code=False,
        restart_in_ms=restart_in_ms,
    )


def test_a_look_shows_what_the_view_says():
    watch = Watch(events=1_000, start_ms=0)
    progress, notes = watch.look(make_view(rows_in=250, completed=7), 2_000)
    assert (progress.state, progress.elapsed_s, progress.events_read) == ("running", 2.0, 250)
    assert progress.checkpoint == LastCheckpoint(number=7, duration_ms=37, size_bytes=1_234)
    assert (progress.completed, progress.failed, progress.restarts) == (7, 2, 0)
    assert notes == ["all slots are up, the job runs"]


def test_the_rate_is_over_the_last_two_seconds():
    watch = Watch(events=100_000, start_ms=0)
    rates = [watch.look(make_view(rows_in=rows), at)[0].events_per_second for at, rows in ((0, 0), (2_000, 2_000))]
    later, _ = watch.look(make_view(rows_in=12_000), 4_000)
    assert rates == [0.0, 1_000.0]
    assert later.events_per_second == 5_000.0
    assert later.rates == (1_000.0, 5_000.0)


def test_a_job_that_does_not_run_has_no_rate():
    watch = Watch(events=100_000, start_ms=0)
    watch.look(make_view(rows_in=5_000), 1_000)
    progress, _ = watch.look(make_view(rows_in=9_000, state=JobState.FAILING), 2_000)
    assert progress.events_per_second == 0.0


def test_the_first_records_are_noticed():
    watch = Watch(events=1_000, start_ms=0)
    watch.look(make_view(state=JobState.STARTING), 100)
    watch.look(make_view(), 200)
    assert watch.first_read_ms is None
    watch.look(make_view(rows_in=1), 300)
    watch.look(make_view(rows_in=2), 400)
    assert watch.first_read_ms == 300


def test_a_restored_attempt_begins_where_its_checkpoint_was_triggered():
    """1. 1000 events/s are read. 2. Checkpoint 4 is triggered at 1.5 s. 3. A slot dies at 2.5 s and 2500 events.
    4. The next attempt is restored from 4, and has read 100 events."""
    watch = Watch(events=10_000, start_ms=0)
    watch.look(make_view(rows_in=1_000), 1_000)
    watch.look(make_view(rows_in=2_000, completed=4, triggered_ms=1_500), 2_000)
    watch.look(make_view(rows_in=2_500, completed=4, triggered_ms=1_500), 2_500)
    failing, failed = watch.look(make_view(state=JobState.FAILING, completed=4, failures=(lost(),)), 2_600)
    deploying, quiet = watch.look(make_view(state=JobState.DEPLOYING, epoch=2, completed=4, failures=(lost(),)), 3_000)
    progress, back = watch.look(make_view(epoch=2, rows_in=100, restored=4, completed=4, failures=(lost(),)), 3_500)
    assert failed == ["slot 1 was lost: its worker exited; restarting"]
    assert quiet == []
    assert deploying.restarts == 1
    assert (failing.events_read, deploying.events_read) == (2_500, 2_500), "in between nothing is read, nothing is lost"
    assert back == ["restored from checkpoint 4"]
    assert progress.events_read == 1_500 + LAG_MS + 100


def test_an_attempt_without_a_checkpoint_begins_at_the_beginning():
    watch = Watch(events=10_000, start_ms=0)
    watch.look(make_view(rows_in=1_000), 1_000)
    progress, notes = watch.look(make_view(epoch=2, rows_in=10), 2_000)
    assert progress.events_read == 10
    assert notes == ["started from the beginning"]


def test_a_job_that_gives_up_says_so_once():
    watch = Watch(events=10_000, start_ms=0)
    view = make_view(state=JobState.FAILING, failures=(lost(restart_in_ms=None),))
    assert watch.look(view, 100)[1] == ["slot 1 was lost: its worker exited; giving up"]
    assert watch.look(view, 200)[1] == []


def test_a_finished_job_has_read_everything_and_never_more():
    watch = Watch(events=1_000, start_ms=0)
    assert watch.look(make_view(rows_in=1_200), 100)[0].events_read == 1_000
    assert watch.look(make_view(rows_in=900, state=JobState.FINISHED), 200)[0].events_read == 1_000
