"""The driver's part of tables that are read anew every so often: a thread reads them, one after another, while the job
runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.api.static_tables import RefreshedTable
from penstock.api.steps import TableJoinStep
from penstock.plan.graph import Plan
from penstock.spark.clock import WallClock
from penstock.spark.slots import short_reason

_LEAVE_S = 10.0
"""When the job is over, a table that is being read is waited for so long."""

log = logging.getLogger(__name__)


class Refreshes:
    """Reads tables anew while a block runs. A table that cannot be read stays as it is until the next time."""

    def __init__(self, tables: Sequence[tuple[str, RefreshedTable]], *, job: str) -> None:
        """`tables` are the tables, each with the name of its step."""
        self._tables = tables
        self._job = job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-refreshes-{job}", daemon=True)

    def __enter__(self) -> Self:
        if self._tables:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._tables:
            self._thread.join(timeout=_LEAVE_S)

    def _run(self) -> None:
        clock = WallClock()
        due = [clock.now() + table.every_ms for _, table in self._tables]
        while not self._over.wait(max(0, min(due) - clock.now()) / 1_000):
            number = due.index(min(due))
            name, table = self._tables[number]
            self._read(name, table)
            # Counted from the end of the read: a table that takes longer to read than its interval is not read always.
            due[number] = clock.now() + table.every_ms

    def _read(self, name: str, table: RefreshedTable) -> None:
        extra = {"job": self._job, "operator": name}
        try:
            version = table.read_anew()
        except Exception as error:  # noqa: BLE001  # whatever it is, the slots have the version that they have
            if not self._over.is_set():
                text = "the table of %r in job %s could not be read anew; its last version stays, next try in %g s: %s"
                every_s, why = table.every_ms / 1_000, short_reason(str(error))
                log.warning(text, name, self._job, every_s, why, extra={**extra, "error": why})
            return
        log.info("the table of %r in job %s was read anew: version %s", name, self._job, version.number, extra=extra)


def refreshed_tables(plan: Plan) -> list[tuple[str, RefreshedTable]]:
    """The tables of a plan that are read anew, each with the name of its step."""
    steps = [(operator.name, operator.step) for vertex in plan.vertices for operator in vertex.operators]
    return [
        (name, step.table)
        for name, step in steps
        if isinstance(step, TableJoinStep) and isinstance(step.table, RefreshedTable)
    ]
