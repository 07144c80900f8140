"""The end of a job: how it ended is recorded, then whatever only a running job needs goes.

    outcome decided ──► recorded ──► coordinator shut down ──► slots have left ──► cleaned up ──► over

Only a job that may outlive its driver records its outcome, and keeps the record. It is written before anything else
goes: a driver that crashes between the two leaves a job that has ended, not one that seems never to have begun.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from penstock.api.steps import WriteStep
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import Outcome as JobOutcome
from penstock.plan.graph import Plan
from penstock.ports import Background, Outcome, Store
from penstock.storage.places import delete_folder
from penstock.storage.tenure import record_outcome

RECORD_TRIES = 40
"""A storage that refuses the outcome so often stays as it is: the job could be taken over and would go on."""
CLEAN_TRIES = 10
"""What cannot be deleted after so many tries is left to `penstock verify`."""
RETRY_MS = 500

log = logging.getLogger(__name__)


class Record(Enum):
    """What is known about the record of the outcome."""

    NONE = "none"
    WRITING = "writing"
    DURABLE = "durable"
    GIVEN_UP = "given up"


class Ending:
    """Does what is left to do when the outcome of a job is decided, one thing after another, again where it failed."""

    def __init__(self, *, job: JobId, plan: Plan, store: Store, background: Background) -> None:
        self.record = Record.NONE
        self._job = job
        self._folder = layout.job_folder(job)
        self._plan = plan
        self._store = store
        self._background = background
        self._steps: deque[_Step] = deque()
        self._busy = False
        self._tries = 0
        self._try_at = Instant(0)

    def turn(self, now: Instant) -> None:
        """Go on with what is to be done."""
        if self._steps and not self._busy and now >= self._try_at:
            self._busy = True
            self._tries += 1
            self._try_at = Instant(now + RETRY_MS)
            self._background.submit(self._steps[0].work, self._tried)

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest; None if there is nothing to wait for."""
        return self._try_at if self._steps and not self._busy else None

    def _tried(self, outcome: Outcome) -> None:
        self._busy = False
        step = self._steps[0]
        if outcome.error is not None:
            extra = {"job": self._job, "error": str(outcome.error), "tries": self._tries}
            log.warning("the end of the job: %s failed", step.what, extra=extra)
            if self._tries < step.tries:
                return
        self._steps.popleft()
        self._tries, self._try_at = 0, Instant(0)
        step.done(outcome.error is None)

    # --- the record ----------------------------------------------------------------------

    def write_record(self, outcome: JobOutcome) -> None:
        """Have the outcome recorded; `record` says when it is."""
        self.record = Record.WRITING

        def done(worked: bool) -> None:  # noqa: FBT001  # told so by `_Step`
            self.record = Record.DURABLE if worked else Record.GIVEN_UP

        work = partial(record_outcome, self._store, self._folder, outcome)
        self._steps.append(_Step("recording its outcome", work, RECORD_TRIES, done))

    # --- cleaning up ---------------------------------------------------------------------

    def clean_up(
        self, retained: tuple[CheckpointId, ...], failed_savepoints: tuple[str, ...], done: Callable[[], None]
    ) -> None:
        """Delete what nobody needs any more; `done` is called when that was tried."""
        works: list[Callable[[], None]]
        if retained:
            # Whoever starts from a retained checkpoint needs what it refers to, and nothing else.
            works = [partial(self._sweep, retained)]
        else:
            # Each by itself: a sink that cannot be reached must not keep the others, and the files, from being cleaned.
            steps = [operator.step for vertex in self._plan.vertices for operator in vertex.operators]
            works = [partial(step.sink.end, self._job) for step in steps if isinstance(step, WriteStep)]
            works.append(self._delete_all)
        # A slot that was given up may have written there since they were deleted.
        works += [partial(delete_folder, self._store, folder) for folder in failed_savepoints]
        self._steps += [_Step("cleaning up", work, CLEAN_TRIES, lambda _worked: None) for work in works]
        self._steps.append(_Step("cleaning up", lambda: None, 1, lambda _worked: done()))

    def _sweep(self, retained: tuple[CheckpointId, ...]) -> None:
        """Delete what slots wrote for checkpoints that had ended, when nobody could hear of it any more."""
        store, pointers = self._store, layout.completed_folder(self._folder)
        numbers = {path: layout.number_of(pointers, path) for path in store.list_files(pointers)}
        kept = {*retained}
        for path, number in numbers.items():
            if self.record is Record.DURABLE:
                # The outcome says what is kept. Another driver may have died before it had dropped its records.
                store.delete(path)
            elif number is not None:
                # In the store although storing it seemed to fail: what it refers to stays too.
                kept.add(number)
        folders = tuple(f"{layout.checkpoint_folder(self._folder, number)}/" for number in sorted(kept))
        for path in store.list_files(self._folder):
            if layout.is_checkpoint_file(self._folder, path) and not path.startswith(folders):
                store.delete(path)

    def _delete_all(self) -> None:
        """Everything of the job goes, but for its outcome."""
        if self.record is Record.NONE:
            self._store.delete_tree(self._folder)
            return
        start = len(self._folder) + 1
        names = dict.fromkeys(path[start:].partition("/")[0] for path in self._store.list_files(self._folder))
        for folder in (f"{self._folder}/{name}" for name in names):
            if folder != layout.outcome_folder(self._folder):
                self._store.delete_tree(folder)


class _Step(NamedTuple):
    """One thing to do."""

    what: str
    work: Callable[[], None]
    tries: int
    done: Callable[[bool], None]
    """Told whether it was done, or given up."""
