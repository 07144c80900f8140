"""The join of a stream with a versioned stream: each record with the version of its key that held at the time of the
record.

A record waits until the watermark has reached its time: then all versions up to its time have come. A version is never
late: a version that comes behind the watermark holds for the records that are still to be handed on.

At the end of all data the records that wait are handed on with the versions that have come, and are kept no longer.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.api.join_steps import LEFT, RIGHT, JoinKind, VersionJoinStep
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.join_columns import Pairs
from penstock.runtime.task.operators.join_runs import JoinRuns, Run
from penstock.runtime.task.operators.join_sides import RESULT_ROWS, TwoSidedOperator
from penstock.runtime.task.operators.version_runs import VersionRuns
from penstock.runtime.task.slices import Steps, Work


class VersionJoinOperator(TwoSidedOperator):
    """Joins records with versions."""

    _step: VersionJoinStep

    def __init__(self, step: VersionJoinStep) -> None:
        super().__init__(step)
        self._waiting = JoinRuns(last_match=lambda times: times)
        self._versions = VersionRuns(step.right.keys)
        self._sides = (self._waiting, self._versions)
        self._unusable = 0
        """How many versions had no key or no time."""

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:
        """Take records or versions in."""
        if number == LEFT:
            arrived = self._arrived(batch, LEFT)
            if arrived.rows.num_rows:
                self._waiting.append(arrived.rows, arrived.times, arrived.hashes)
            return None
        arrived = self._usable(batch, RIGHT)
        self._unusable += batch.num_rows - arrived.rows.num_rows
        self._versions.append(arrived.rows, arrived.times, arrived.hashes)
        return None

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Hand on the records up to the watermark, then the watermark."""
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        """Records are in the state until they have been handed on, so a snapshot may be taken between two slices. After
        a restore they are handed on at the next watermark."""
        is_end = time_us == MAX_WATERMARK
        if not is_end:
            self._passed.advance(time_us)
        for run in list(self._waiting.runs):
            due = run.times.size if is_end else self._waiting.due(run, time_us)
            while run.begin < due:
                begin, end = run.begin, min(due, run.begin + min(RESULT_ROWS, self.slice.left))
                self._hand_on(run, begin, end)
                run.begin = end
                if self.slice.spend(end - begin):
                    yield True
        self._waiting.drop(time_us)
        if not is_end:
            self._versions.forget(time_us)
        self.output.watermark(time_us, idle=idle)

    def _hand_on(self, run: Run, begin: int, end: int) -> None:
        """Hand on the results of some records of a run."""
        part, times, how = run.rows.slice(begin, end - begin), run.times[begin:end], self._step.how
        of_run, rows = self._versions.held(part, self._step.left.keys, times, run.hashes[begin:end])
        matched = np.zeros(end - begin, np.bool_)
        for number, versions in enumerate(self._versions.runs):
            mine = np.flatnonzero(of_run == number)
            if mine.size == 0:
                continue
            pairs = self._results.meeting(Pairs(part, mine, versions.rows, rows[mine]), (), self.context)
            matched[pairs.rows(LEFT)] = True
            if how.has_pairs and pairs.count:
                self.output.emit(self._results.pairs(pairs))
        if how is JoinKind.INNER:
            return
        shown = matched if how is JoinKind.SEMI else ~matched
        if shown.any():
            self.output.emit(self._results.alone(part.filter(pa.array(shown)), LEFT))

    def metrics(self) -> dict[str, float]:
        """How many records wait, how many versions are kept, how large both are, and how many records came too late."""
        return {
            "left_rows_kept": self._waiting.rows,
            "versions_kept": self._versions.rows,
            "bytes_kept": self._waiting.nbytes + self._versions.nbytes,
            "unusable_versions": self._unusable,
            "late_dropped": sum(self._late_dropped),
        }
