"""What to do when a task fails: the restart strategies a program can choose from."""

from __future__ import annotations

from penstock.core.durations import Duration, duration_ms_or_problem
from penstock.core.errors import SettingsError
from penstock.settings import ExponentialDelay, FailureRate, FixedDelay, NoRestart


def no_restart() -> NoRestart:
    """The first failure fails the job.

    >>> import penstock as ps
    >>> ps.no_restart()  # for ps.Environment(spark, restart=...)
    NoRestart()
    """
    return NoRestart()


def fixed_delay(attempts: int, delay: Duration = "1s") -> FixedDelay:
    """Restart up to `attempts` times in all, `delay` after each failure.

    >>> import penstock as ps
    >>> ps.fixed_delay(3, "10s")  # for ps.Environment(spark, restart=...)
    FixedDelay(attempts=3, delay_ms=10000)
    """
    problems: list[str] = []
    _check_attempts(attempts, problems)
    delay_ms = duration_ms_or_problem(delay, argument="delay", problems=problems)
    if problems or delay_ms is None:
        raise SettingsError(problems)
    return FixedDelay(attempts=attempts, delay_ms=delay_ms)


def exponential_delay(
    *,
    initial: Duration = "1s",
    multiplier: float = 1.5,
    maximum: Duration = "1 min",
    jitter: float = 0.1,
    reset_after: Duration = "1h",
    attempts: int | None = None,
) -> ExponentialDelay:
    """Restart after a pause that starts at `initial` and grows by `multiplier` up to `maximum`.

    `jitter` varies each pause by up to that share, and makes no pause longer than `maximum`. When the job has run for
    `reset_after` since its last restart without a failure, the next pause is `initial` again. `attempts` limits the
    number of restarts in a row without a completed checkpoint between them (None: any number).

    >>> import penstock as ps
    >>> strategy = ps.exponential_delay(initial="2s", maximum="5 min")  # for ps.Environment(spark, restart=strategy)
    >>> strategy.initial_ms, strategy.max_ms
    (2000, 300000)
    """
    problems: list[str] = []
    initial_ms = duration_ms_or_problem(initial, argument="initial", problems=problems)
    max_ms = duration_ms_or_problem(maximum, argument="maximum", problems=problems)
    reset_after_ms = duration_ms_or_problem(reset_after, argument="reset_after", problems=problems)
    if initial_ms is not None and max_ms is not None and max_ms < initial_ms:
        problems.append(f"maximum {maximum!r} is shorter than initial {initial!r}; raise maximum or lower initial")
    if not multiplier >= 1:
        problems.append(f"multiplier is {multiplier}; use 1 for pauses of one length, more for growing pauses")
    if not 0 <= jitter <= 1:
        problems.append(f"jitter is {jitter}; give a share of the pause, between 0 and 1")
    if attempts is not None:
        _check_attempts(attempts, problems)
    if problems or initial_ms is None or max_ms is None or reset_after_ms is None:
        raise SettingsError(problems)
    return ExponentialDelay(
        initial_ms=initial_ms,
        multiplier=multiplier,
        max_ms=max_ms,
        jitter=jitter,
        reset_after_ms=reset_after_ms,
        attempts=attempts,
    )


def failure_rate(max_failures: int, within: Duration = "1 min", *, delay: Duration = "1s") -> FailureRate:
    """Restart `delay` after each failure, as long as no more than `max_failures` failures come in the time `within`.

    >>> import penstock as ps
    >>> ps.failure_rate(5, within="10 min")  # for ps.Environment(spark, restart=...)
    FailureRate(max_failures=5, interval_ms=600000, delay_ms=1000)
    """
    problems: list[str] = []
    if not isinstance(max_failures, int) or isinstance(max_failures, bool) or max_failures < 1:
        problems.append(f"max_failures is {max_failures!r}; give a whole number from 1, or use no_restart()")
    interval_ms = duration_ms_or_problem(within, argument="within", problems=problems)
    delay_ms = duration_ms_or_problem(delay, argument="delay", problems=problems)
    if interval_ms == 0:
        problems.append(f"within is {within!r}; give a duration above 0")
    if problems or interval_ms is None or delay_ms is None:
        raise SettingsError(problems)
    return FailureRate(max_failures=max_failures, interval_ms=interval_ms, delay_ms=delay_ms)


def _check_attempts(attempts: int, problems: list[str]) -> None:
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        problems.append(f"attempts is {attempts!r}; give a whole number from 1, or use no_restart()")
