"""Requests for checkpoints and savepoints, and which requests are refused."""

from __future__ import annotations

import msgspec

from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import CheckpointForm, CheckpointRequested, RequestKind
from penstock.core.ids import Instant, RequestId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a checkpoint or a savepoint, of a user or of the coordinator itself."""

    kind: SnapshotKind
    submitted: Instant
    answer_to: RequestId | None = None
    """Which caller gets the answer; None: nobody waits for an answer."""
    periodic: bool = False
    forced: bool = False
    """The request need not wait until fewer checkpoints are under way."""
    final: bool = False
    """The request was made because all tasks have seen all their data."""
    target: str | None = None
    canonical: bool = False

    @property
    def rank(self) -> tuple[bool, bool, bool, Instant]:
        """The request's place in the line: the lowest rank goes first, among equal ranks the request that came
        first."""
        return (not self.kind.is_savepoint, not self.forced, self.periodic, self.submitted)


def kind_of(event: CheckpointRequested) -> SnapshotKind:
    """What kind of snapshot fulfils the request."""
    if event.kind is RequestKind.STOP:
        return SnapshotKind.TERMINATE if event.drain else SnapshotKind.SUSPEND
    if event.kind is RequestKind.SAVEPOINT:
        return SnapshotKind.SAVEPOINT
    return SnapshotKind.FULL_CHECKPOINT if event.form is CheckpointForm.FULL else SnapshotKind.CHECKPOINT


def refusal_of(event: CheckpointRequested) -> RequestFailure | None:
    """Why a request makes no sense; None if it does."""
    if event.drain and event.kind is not RequestKind.STOP:
        return _wrong(f"only a stop can drain: a {event.kind.value} must not move event time to its end")
    if event.kind is RequestKind.CHECKPOINT:
        if event.target is not None or event.canonical:
            return _wrong("only a savepoint has a target and a format; a checkpoint goes to the checkpoint directory")
        return None
    if event.form is not CheckpointForm.CONFIGURED:
        return _wrong(f"only a checkpoint can be {event.form.value}; a savepoint is always self-contained")
    if event.target is None:
        return _wrong("a savepoint needs a target")
    return None


def _wrong(text: str) -> RequestFailure:
    return RequestFailure(reason=None, text=text)


def failure_of(reason: CheckpointFailure, text: str) -> RequestFailure:
    """The answer to a request that failed for this reason; `text` adds the facts."""
    return RequestFailure(reason=reason, text=f"{reason.text}: {text}" if text else reason.text)
