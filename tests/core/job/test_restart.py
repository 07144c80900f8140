"""Restart strategies: how long to wait after each failure, and when to give up."""

from __future__ import annotations

import pytest

from penstock.core.ids import Instant
from penstock.core.job.restart import make_restart_strategy
from penstock.settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restart


def test_none_gives_up_at_once():
    strategy = make_restart_strategy(NoRestart())
    assert strategy.failed(Instant(0), 0.5) is None
    assert "no_restart() was given" in strategy.why_not


def test_who_chooses_nothing_gets_pauses_that_add_up_to_an_hour_and_then_an_end():
    strategy = make_restart_strategy(None)
    pauses = [strategy.failed(Instant(t), 0.5) for t in range(61)]
    assert pauses[-1] is None
    assert 40 * 60_000 < sum(p for p in pauses if p is not None) < 70 * 60_000


def test_a_completed_checkpoint_ends_a_row_of_restarts_and_not_the_growth_of_the_pauses():
    strategy = make_restart_strategy(ExponentialDelay(attempts=2, initial_ms=100, multiplier=2, jitter=0))
    assert [strategy.failed(Instant(t), 0.5) for t in range(2)] == [100, 200]
    strategy.progressed()
    assert [strategy.failed(Instant(t), 0.5) for t in range(2, 5)] == [400, 800, None]


@pytest.mark.parametrize(
    "settings",
    [NoRestart(), FixedDelay(attempts=1), FailureRate(max_failures=1)],
    ids=lambda settings: type(settings).__name__,
)
def test_other_strategies_count_whatever_checkpoints_there_are(settings: Restart):
    strategy = make_restart_strategy(settings)
    strategy.failed(Instant(0), 0.5)
    strategy.progressed()
    assert strategy.failed(Instant(0), 0.5) is None


def test_fixed_delay_allows_its_attempts_and_no_more():
    strategy = make_restart_strategy(FixedDelay(attempts=2, delay_ms=70))
    assert [strategy.failed(Instant(t), 0.5) for t in (0, 1, 2)] == [70, 70, None]
    assert "all 2 restarts" in strategy.why_not


def test_exponential_delay_grows_to_its_limit():
    strategy = make_restart_strategy(ExponentialDelay(initial_ms=100, multiplier=2, max_ms=500, jitter=0))
    assert [strategy.failed(Instant(t), 0.9) for t in range(5)] == [100, 200, 400, 500, 500]


def test_jitter_varies_a_pause_by_its_share_at_most():
    def pause(draw: float) -> int | None:
        return make_restart_strategy(ExponentialDelay(initial_ms=1000, jitter=0.1)).failed(Instant(0), draw)

    assert (pause(0.0), pause(0.5)) == (900, 1000)
    assert pause(0.999) == 1100


def test_jitter_makes_no_pause_longer_than_the_longest():
    strategy = make_restart_strategy(ExponentialDelay(initial_ms=900, multiplier=2, max_ms=1000, jitter=0.5))
    assert [strategy.failed(Instant(t), 0.999) for t in range(3)] == [1000, 1000, 1000]
    assert strategy.failed(Instant(3), 0.0) == 500


def test_exponential_delay_starts_over_after_a_long_calm():
    """The calm is counted from the restart, not from the failure: nothing can fail in the pause."""
    strategy = make_restart_strategy(
        ExponentialDelay(initial_ms=100, multiplier=10, jitter=0, reset_after_ms=5_000, attempts=2)
    )
    assert strategy.failed(Instant(0), 0.5) == 100
    assert strategy.failed(Instant(5_099), 0.5) == 1000
    assert strategy.failed(Instant(5_099 + 1000 + 5_000), 0.5) == 100
    assert strategy.failed(Instant(11_099 + 100 + 5_000), 0.5) == 100


def test_the_calm_begins_when_the_pause_with_its_jitter_ends():
    settings = ExponentialDelay(initial_ms=100, multiplier=10, jitter=1, reset_after_ms=5_000)
    strategy = make_restart_strategy(settings)
    assert strategy.failed(Instant(0), 0.0) == 0
    assert strategy.failed(Instant(5_000), 0.5) == 100


def test_exponential_delay_gives_up_after_its_attempts():
    strategy = make_restart_strategy(ExponentialDelay(attempts=1, jitter=0))
    assert strategy.failed(Instant(0), 0.5) == 1000
    assert strategy.failed(Instant(1), 0.5) is None
    assert strategy.why_not.startswith("1 restarts in a row")


def test_a_rate_bears_so_many_failures_in_a_time_and_forgets_older_ones():
    strategy = make_restart_strategy(FailureRate(max_failures=2, interval_ms=1_000, delay_ms=30))
    assert [strategy.failed(Instant(t), 0.5) for t in (0, 900, 1_001, 1_900)] == [30, 30, 30, None]
    assert "more than 2 failures came within 1000 ms" in strategy.why_not
