"""Deletes what is left of a job that will never go on: the name of the job was given to another job, and the other job
has a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.connector import Sink
from penstock.api.steps import WriteStep
from penstock.core.ids import JobId
from penstock.core.recovery import layout
from penstock.plan.graph import Plan
from penstock.ports import Store
from penstock.runtime.master.landed_inputs import MARK


def delete_job(job: JobId, stores: Iterable[Store], plan: Plan) -> None:
    """Delete the files of a job in these stores, and the results that the job prepared in the sinks of the plan. Files
    and results that savepoints need stay: savepoints belong to their users. Blocks. Raises `StorageError`."""
    folder = layout.job_folder(job)
    is_promised = False
    for store in stores:
        files = store.list_files(folder)
        is_promised |= any(path.startswith(f"{layout.promised_folder(folder)}/") for path in files)
        kept = [path.removesuffix(MARK) for path in files if path.endswith(f"/{MARK}")]
        if not kept:
            store.delete_tree(folder)
            continue
        for path in files:
            if not any(path.startswith(place) for place in kept):
                store.delete(path)
    if is_promised:
        # A job that starts from such a savepoint commits the results that sinks prepared for the savepoint.
        return
    for sink in _sinks_of(plan):
        # Sinks that the driver commits, too: their results may lie in a table, or in a system of the user. The records
        # of these results go after the results.
        sink.end(job)
    for store in stores:
        store.delete_tree(layout.results_of_job(folder))


def _sinks_of(plan: Plan) -> list[Sink]:
    steps = (operator.step for vertex in plan.vertices for operator in vertex.operators)
    return [step.sink for step in steps if isinstance(step, WriteStep)]
