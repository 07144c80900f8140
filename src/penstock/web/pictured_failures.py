"""Failures, attempts and changes of parallelism in the document of a job."""

from __future__ import annotations

from typing import Any

from penstock.core.recovery.tenure import attempt_of
from penstock.runtime.facts import AttemptView, JobFacts


def pictured_failures(facts: JobFacts) -> list[dict[str, Any]]:
    """The last failures, newest first."""
    return [
        {
            "when": failure.when,
            "attempt": attempt_of(failure.epoch),
            "text": failure.text,
            "operator": failure.operator,
            "subtask": failure.subtask,
            "traceback": failure.traceback,
            "user_code": failure.user_code,
            "restart_in_ms": failure.restart_in_ms,
            "is_cause": is_cause,
        }
        for is_cause, failure in ((True, f) for f in reversed(facts.view.failures))
    ]


def pictured_attempts(facts: JobFacts) -> list[dict[str, Any]]:
    """The deployments, newest first: when, from which checkpoint, how long until the tasks ran, how the deployment
    ended, and how many records were read again."""
    found = []
    before: AttemptView | None = None
    for attempt in facts.attempts:
        cause = attempt.cause
        found.append(
            {
                "attempt": attempt_of(attempt.epoch),
                "tasks": attempt.tasks,
                "deployed": attempt.deployed,
                "ran": attempt.ran,
                "ended": attempt.ended,
                "how": attempt.how,
                "restored_checkpoint": attempt.restored,
                "down_ms": _down_ms(before, attempt),
                "replayed": _replayed(facts, before, attempt),
                "restart_in_ms": attempt.restart_in_ms,
                "cause": None
                if cause is None
                else {
                    "text": cause.text,
                    "traceback": cause.traceback,
                    "operator": cause.operator,
                    "subtask": cause.subtask,
                    "user_code": cause.user_code,
                    "why_final": cause.why_final,
                },
            }
        )
        before = attempt
    return found[::-1]


def _down_ms(before: AttemptView | None, attempt: AttemptView) -> int | None:
    """From the end of the attempt before until the tasks ran again."""
    if before is None or before.ended is None or attempt.ran is None:
        return None
    return max(0, attempt.ran - before.ended)


def _replayed(facts: JobFacts, before: AttemptView | None, attempt: AttemptView) -> int | None:
    """How many records this attempt reads again, as far as the slots had reported; None if that is not known."""
    if before is None or before.rows_read_after is None or attempt.tasks is not None or attempt.ran is None:
        return None
    read = before.rows_read_after - before.rows_read_before
    if attempt.restored is None or attempt.restored == before.restored:
        return read
    known = next((c for c in facts.checkpoints if c.checkpoint == attempt.restored), None)
    if known is None or before.ran is None or known.triggered < before.ran:
        return None
    return max(0, read - sum(s.rows_in for v in known.vertices for s in v.subtasks))


def pictured_rescales(facts: JobFacts) -> list[dict[str, Any]]:
    """The changes of the parallelism, newest first."""
    return [
        {
            "asked": rescale.asked,
            "before": rescale.before,
            "after": rescale.after,
            "state": rescale.state,
            "times": dict(rescale.times),
            "text": rescale.text,
        }
        for rescale in reversed(facts.rescales)
    ]
