"""How far event time has come, as state of an operator that must know which records are late.

After a restore, at any parallelism, a record is late if it was late before, even though event time starts anew. So a
snapshot says for each key group how far its event time had come: in a list whose parts every subtask gets.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.join_steps import moved
from penstock.api.lateness import LateRecords
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import CorruptFile
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.window_table import FiredRange
from penstock.runtime.task.partitioning import key_groups

PASSED = "penstock.passed"
"""The name of the list in snapshots."""

_Ranges = tuple[FiredRange, ...]


class PassedTimes:
    """Up to which time the watermark has passed, for each key group."""

    def __init__(self, late: LateRecords, keys: tuple[str, ...]) -> None:
        self._late = late
        self._keys = keys
        self._fired = Fired()

    @property
    def least(self) -> int:
        """The time that all key groups have come to. The least of 64 bits if a key group has not begun."""
        return self._fired.least

    def advance(self, time_us: int) -> None:
        """The watermark has come to a time. At the end of all data it has come nowhere: after a stop with drain the
        data goes on if a job starts from the savepoint."""
        if time_us != MAX_WATERMARK:
            self._fired.advance(time_us)

    def times(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The event time of each record. All records have a time."""
        return moved(int64_values(batch.column(self._late.time_column)), self._late.time_offset_us)

    def late(self, batch: pa.RecordBatch, groups: int) -> npt.NDArray[np.bool_] | None:
        """Which records are late; None if no record is late. There are `groups` key groups."""
        late = self._fired.late(self.times(batch), lambda: key_groups(batch, self._keys, groups))
        return late if late is not None and late.any() else None

    def restore(self, states: Iterable[OperatorState], context: OperatorContext) -> None:
        """Begin where the key groups of this subtask had come to."""
        first, last = context.key_groups
        found: list[FiredRange] = []
        for part in (part for state in states for part in state.union_lists.get(PASSED, ())):
            try:
                ranges = msgspec.msgpack.decode(part, type=_Ranges)
            except msgspec.MsgspecError as error:
                raise CorruptFile(
                    f"how far the event time of {context.name!r} had come cannot be read: {error}",
                    hint="restore the job from another checkpoint or savepoint",
                ) from error
            for each in ranges:
                if each.first_group <= last and each.last_group >= first:
                    own = {"first_group": max(each.first_group, first), "last_group": min(each.last_group, last)}
                    found.append(msgspec.structs.replace(each, **own))
        self._fired.restore(found, context.key_groups)

    def saved(self, own: tuple[int, int]) -> dict[str, tuple[bytes, ...]]:
        """The list for a snapshot of a subtask with these key groups."""
        return {PASSED: (msgspec.msgpack.encode(self._fired.ranges(own)),)}
