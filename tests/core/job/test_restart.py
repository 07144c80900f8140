"""Restart strategies: how long to wait after each failure, and when to give up."""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.core.job.restart import make_restart_strategy
from penstock.settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart


def test_none_gives_up_at_once():
    strategy = make_restart_strategy(NoRestart())
    assert strategy.failed(Instant(0), 0.5) is None
    assert "no restart strategy" in strategy.why_not


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


def test_exponential_delay_starts_over_after_a_long_calm():
    strategy = make_restart_strategy(
        ExponentialDelay(initial_ms=100, multiplier=10, jitter=0, reset_after_ms=5_000, attempts=2)
    )
    assert strategy.failed(Instant(0), 0.5) == 100
    assert strategy.failed(Instant(5_000), 0.5) == 1000
    assert strategy.failed(Instant(20_000), 0.5) == 100


def test_exponential_delay_gives_up_after_its_attempts():
    strategy = make_restart_strategy(ExponentialDelay(attempts=1, jitter=0))
    assert strategy.failed(Instant(0), 0.5) == 1000
    assert strategy.failed(Instant(1), 0.5) is None
    assert "all 1 restarts" in strategy.why_not


def test_a_rate_bears_so_many_failures_in_a_time_and_forgets_older_ones():
    strategy = make_restart_strategy(FailureRate(max_failures=2, interval_ms=1_000, delay_ms=30))
    assert [strategy.failed(Instant(t), 0.5) for t in (0, 900, 1_001, 1_900)] == [30, 30, 30, None]
    assert "more than 2 failures came within 1000 ms" in strategy.why_not
