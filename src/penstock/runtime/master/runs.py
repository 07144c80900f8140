"""Which job a run of a program has: the job of the program's name goes on, or the name is given to a new job.

A run takes a job over as any driver does, in a term of its own. To start over, or to start from a snapshot that the
user names, the name is given to a new job (`storage.names`). When a program starts over, the files of the old job are
deleted as soon as the new job has a checkpoint, and not before.

Not handled here: how a driver takes a job over, and how drivers wait for a job. The shell does both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.api.restoring import Restore
from penstock.core.ids import JobId
from penstock.core.recovery import layout
from penstock.plan.graph import Plan
from penstock.ports import Leader, Store
from penstock.runtime.master.earlier_jobs import delete_job
from penstock.settings import JobSettings, Retention
from penstock.storage.names import Holder, JobName


class LostJob:
    """The function to call when the job is lost. The hold on the job needs this function before the part of the program
    exists that must know of the loss: that part sets `call` later."""

    def __init__(self) -> None:
        self.call: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        """The job is lost."""
        self.call()


Lead = Callable[[JobId, LostJob, bool], Leader]
"""Takes a job over. If the last argument is true, a job that has ended goes on from the checkpoints that it kept.
Blocks."""


class Run:
    """One run of a program: this driver's hold on the job that has the program's name."""

    def __init__(
        self,
        *,
        name: JobName,
        job: JobId,
        leader: Leader,
        lost: LostJob,
        gives_up: tuple[JobId, ...] = (),
        replaced: tuple[Holder, Leader] | None = None,
    ) -> None:
        """`replaced` is the job that had the name before, and the hold on that job."""
        self.job = job
        self.leader = leader
        self.lost = lost
        self.settings = JobSettings()
        """The settings of the job, for this run."""
        self.gives_up = gives_up
        """Earlier jobs whose files are not needed any more when this job has a checkpoint."""
        self._name = name
        self._replaced = replaced

    def began(self) -> None:
        """The job has begun: let go of the job that had the name before."""
        if self._replaced is not None:
            self._replaced[1].resign()
            self._replaced = None

    def abandon(self) -> None:
        """The job could not begin: the name goes back to the job that had the name before."""
        if self._replaced is not None:
            holder, leader = self._replaced
            number, _ = self._name.holder()
            self._name.give(
                holder.job, after=number, started_from=holder.started_from, gives_up=(*holder.gives_up, self.job)
            )
            leader.resign()
        self.leader.resign()

    def when_safe(self, store: Store, landing: Store | None, plan: Plan) -> Callable[[], None] | None:
        """The work to do when the job has a checkpoint; None if there is nothing to do. The work blocks."""
        if not self.gives_up:
            return None
        stores = [store] if landing is None else [store, landing]

        def delete() -> None:
            for job in self.gives_up:
                delete_job(job, stores, plan)
            self._name.gave_up()

        return delete


def take_job(
    names: JobName,
    given: Restore | None,
    *,
    fresh: bool,
    lead: Lead,
    new_job: Callable[[], JobId],
    path_of: Callable[[str], str | None],
    check: Callable[[Restore], object] = lambda _: None,
) -> Run:
    """Take over the job of a name, or give the name to a new job. The name is given to a new job with `fresh`, if no
    job has the name, or if `given` is a snapshot that the job of the name did not begin with. `path_of` belongs to the
    store in which the jobs of the name lie. `check` raises if a new job cannot start from `given`; a job that goes on
    does not need `given` any more. Blocks. Raises `StorageError` and `CorruptFile`, and the errors of `lead`."""
    started_from = "" if given is None else given.path
    while True:
        number, holder = names.holder()
        lost = LostJob()
        goes_on = holder is not None and not fresh and started_from in ("", holder.started_from)
        if given is not None and not goes_on:
            check(given)
        if holder is None:
            job = new_job()
            if names.give(job, after=0, started_from=started_from):
                return Run(name=names, job=job, leader=lead(job, lost, False), lost=lost)  # noqa: FBT003
            continue
        leader = lead(holder.job, lost, goes_on)
        if names.holder()[0] != number:
            # Another driver gave the name away in between.
            leader.resign()
            continue
        if goes_on:
            return Run(name=names, job=holder.job, leader=leader, lost=lost, gives_up=holder.gives_up)
        job = new_job()
        old = (*holder.gives_up, *((holder.job,) if fresh else ()))
        inside = path_of(started_from) if started_from else None
        gives_up = tuple(o for o in old if inside is None or not f"{inside}/".startswith(f"{layout.job_folder(o)}/"))
        if names.give(job, after=number, started_from=started_from, gives_up=gives_up):
            own = lead(job, lost, False)  # noqa: FBT003
            return Run(name=names, job=job, leader=own, lost=lost, gives_up=gives_up, replaced=(holder, leader))
        leader.resign()


def settings_of_run(settings: JobSettings, *, finds_more_later: bool) -> JobSettings:
    """The settings of a job that goes on when its program is run again. If a source of the job may find more data then,
    all tasks end with one last checkpoint. This checkpoint has the state of all tasks, and is kept like other
    checkpoints."""
    checkpoint = settings.checkpoint
    if checkpoint.retention is not Retention.KEEP or not finds_more_later:
        return settings
    return replace(settings, checkpoint=replace(checkpoint, after_tasks_finish=False, goes_on_when_finished=True))
