"""Steps of a world that put the records of each key in the order of their event time, and check the order.

The step behind the sort remembers the last record of each key, whatever fails meanwhile. A record that comes out of
order gets a value that no record of the input has.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from penstock.api.functions import EPOCH, KeyedContext, KeyedFunction
from penstock.api.state_declarations import value_state
from penstock.api.steps import LateRecords, SortStep
from penstock.sim.external import system_of
from penstock.sim.jobs import SCHEMA

KEY = pa.schema([SCHEMA.field("key")])
_MICROSECOND = datetime.timedelta(microseconds=1)


def sort_step(*, descending: bool) -> SortStep:
    """The sort. Records of the same time are ordered by their numbers."""
    late = LateRecords(time_column="ts", schema=SCHEMA)
    return SortStep(keys=("key",), late=late, order=(("seq", descending),), schema=SCHEMA)


class InOrder(KeyedFunction):
    """Hands records on, and changes records that are out of order."""

    last_us = value_state("last-us", "bigint", default=-1)
    last_seq = value_state("last-seq", "bigint", default=-1)

    def __init__(self, world: int, *, descending: bool) -> None:
        self._world = world
        self._sign = -1 if descending else 1

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> dict[str, Any]:  # noqa: ARG002
        """The record. A record out of order has a negative value."""
        time_us, seq = (row["ts"] - EPOCH) // _MICROSECOND, row["seq"]
        before = (self.last_us.get(), self._sign * self.last_seq.get())
        is_in_order = self.last_us.get() < 0 or before < (time_us, self._sign * seq)
        self.last_us.set(time_us)
        self.last_seq.set(seq)
        # Behind a drain the records begin an order of their own.
        return row if is_in_order or system_of(self._world).is_drained else {**row, "value": -1 - row["value"]}
