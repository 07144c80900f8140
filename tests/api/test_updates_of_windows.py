"""Results of windows as they change: what `updates` makes of the steps, and what it refuses."""

from __future__ import annotations

import pytest

from penstock.api.aggregates import count, max  # noqa: A004
from penstock.api.changelog import Changelog
from penstock.api.steps import LATE, ROW_COUNT, CombineStep, Updates, WindowStep
from penstock.api.windows import session, tumbling
from penstock.core.errors import UsageError


@pytest.fixture
def timed(bids):
    return bids.watermark("ts", delay="4s")


@pytest.fixture
def counted(timed):
    return timed.key_by("auction").window(tumbling("10s"), allowed_lateness="1 min").aggregate(n=count())


def steps_of(program, kind):
    return [o.step for v in program.plan().vertices for o in v.operators if isinstance(o.step, kind)]


def test_the_updates_are_a_changelog_by_key_and_window(program, counted, make_sink):
    updates = counted.updates()
    assert updates._state.changelog == Changelog(keys=("auction", "window_start", "window_end"))
    assert updates.schema.names == ["auction", "window_start", "window_end", "n", "row_kind"]
    updates.changes().write(make_sink())
    (window,), (combine,) = steps_of(program, WindowStep), steps_of(program, CombineStep)
    assert window.updates == Updates()
    assert window.partials == combine.schema
    assert window.schema == updates.schema
    assert not combine.holds


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("5s", Updates(every_ms=5_000)),
        (1000, Updates(every_rows=1000)),
        ("change", Updates(every_batch=True)),
    ],
)
def test_early_results_are_given_by_time_by_number_or_at_every_change(counted, every, expected):
    updates = counted.updates(every=every)
    assert updates._state.ledger.step(updates._state.last_step).step.updates == expected


def test_to_show_results_after_a_number_of_records_the_records_are_counted(program, counted, make_sink):
    counted.updates(every=7).changes().write(make_sink())
    (window,), (combine,) = steps_of(program, WindowStep), steps_of(program, CombineStep)
    assert [aggregate.name for aggregate in window.aggregates] == ["n", ROW_COUNT]
    assert combine.schema.names == ["auction", "window_start", "n", ROW_COUNT]
    assert ROW_COUNT not in window.schema.names


def test_final_is_what_a_window_is_anyway(program, counted, make_sink):
    counted.final().write(make_sink())
    assert steps_of(program, WindowStep)[0].updates is None


def test_late_records_of_a_window_with_updates_can_be_read(program, counted, make_sink):
    updates = counted.updates()
    updates.changes().write(make_sink())
    updates.late().write(make_sink())
    (window,) = steps_of(program, WindowStep)
    assert window.combine is not None
    assert window.updates is not None
    assert LATE in window.sides


def test_a_window_cannot_show_both(program, counted, make_sink):
    counted.write(make_sink())
    counted.updates().changes().write(make_sink())
    with pytest.raises(UsageError, match="shows updates, and its final results are read, too"):
        program.plan()


def test_updates_are_asked_for_once(counted):
    counted.updates()
    with pytest.raises(UsageError, match="shows updates already"):
        counted.updates(every="5s")


@pytest.mark.parametrize("method", ["final", "updates"])
def test_only_the_aggregate_of_a_window_has_final_results_or_updates(timed, counted, method):
    with pytest.raises(UsageError, match=f"{method}: .* is not the aggregate of a window"):
        getattr(timed, method)()
    with pytest.raises(UsageError, match="is not the aggregate of a window"):
        getattr(counted.where("n > 1"), method)()
    with pytest.raises(UsageError, match="is not the aggregate of a window"):
        getattr(counted.late(), method)()


@pytest.mark.parametrize("every", [0, -1, True, "0s", "often", 1.5])
def test_every_must_say_something(counted, every):
    with pytest.raises(UsageError, match="every is"):
        counted.updates(every=every)


def test_updates_have_no_event_time(timed):
    updates = timed.key_by("auction").window(session("10s")).aggregate(top=max("price")).updates()
    with pytest.raises(UsageError, match="come behind the watermark"):
        updates.changes().window(tumbling("1s"))
