"""Where a task's results go: each edge out of the task has a partitioner and subpartitions.

An edge carries the main output of the last operator of the task, or a side output of any operator. The records and the
watermarks of a side output go to the edges of the side output only. Barriers and ends go to every edge.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from penstock.core.elements import AnyElement, Barrier, Watermark
from penstock.core.ids import CheckpointId
from penstock.plan.graph import Edge, Partitioning, Plan
from penstock.runtime.task.channels import ChannelKey, Subpartition
from penstock.runtime.task.partitioners import chosen_targets
from penstock.runtime.task.partitioning import partition, split


class OutputEdge:
    """One edge out of a task: chooses the subpartition of each record."""

    def __init__(self, edge: Edge, plan: Plan, subpartitions: list[Subpartition]) -> None:
        self.edge = edge
        self._plan = plan
        self._can_overtake = plan.carries_unaligned_barriers(edge)
        self.subpartitions = subpartitions
        self._groups = plan.max_parallelism
        self._turn = 0
        self._split: Callable[[pa.RecordBatch], None] = {
            Partitioning.HASH: self._by_key if len(subpartitions) > 1 else self._to_only,
            Partitioning.FORWARD: self._to_only,
            Partitioning.REBALANCE: self._in_turn,
            Partitioning.BROADCAST: self._to_all,
            Partitioning.CUSTOM: self._by_function,
        }[edge.partitioning]

    def emit(self, batch: pa.RecordBatch) -> None:
        """Queue a batch's records for their targets."""
        self._split(batch)

    def send_barrier(self, barrier: Barrier) -> dict[ChannelKey, list[pa.RecordBatch]]:
        """Queue a barrier on every channel. Returns the batches that the barrier overtook, by channel. If no barrier
        may overtake on this edge, the barrier is sent as an aligned barrier."""
        if not self._can_overtake and (barrier.options.unaligned or barrier.options.timeoutable):
            forced = msgspec.structs.replace(barrier.options, forced_aligned=True)
            barrier = msgspec.structs.replace(barrier, options=forced)
        return {s.key: s.add_barrier(barrier) for s in self.subpartitions}

    def _by_key(self, batch: pa.RecordBatch) -> None:
        parts = partition(batch, self.edge.keys, parallelism=len(self.subpartitions), groups=self._groups)
        for subpartition, part in zip(self.subpartitions, parts, strict=True):
            if part is not None:
                subpartition.add_batch(part)

    def _by_function(self, batch: pa.RecordBatch) -> None:
        targets = chosen_targets(
            self.edge.partitioner,
            batch,
            parallelism=len(self.subpartitions),
            name=f"partition before {self._plan.vertex(self.edge.downstream).operators[0].name}",
            subtask=self.subpartitions[0].key.upstream,
        )
        for subpartition, part in zip(self.subpartitions, split(batch, targets, len(self.subpartitions)), strict=True):
            if part is not None:
                subpartition.add_batch(part)

    def _to_only(self, batch: pa.RecordBatch) -> None:
        self.subpartitions[0].add_batch(batch)

    def _in_turn(self, batch: pa.RecordBatch) -> None:
        self.subpartitions[self._turn].add_batch(batch)
        self._turn = (self._turn + 1) % len(self.subpartitions)

    def _to_all(self, batch: pa.RecordBatch) -> None:
        for subpartition in self.subpartitions:
            subpartition.add_batch(batch)


class SideOutput:
    """The edges that carry one side output of an operator."""

    def __init__(self, outputs: TaskOutputs, edges: list[OutputEdge]) -> None:
        self._outputs = outputs
        self._edges = edges
        self._all = [s for edge in edges for s in edge.subpartitions]

    def emit(self, batch: pa.RecordBatch) -> None:
        """Queue records on every edge of the side output."""
        if batch.num_rows == 0:
            return
        self._outputs.rows_out += batch.num_rows
        for edge in self._edges:
            edge.emit(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Tell every target of the side output how far event time has come."""
        element = Watermark(time_us=time_us, idle=idle)
        for subpartition in self._all:
            subpartition.add_element(element)


class TaskOutputs:
    """The end of a task's operator chain: every edge out of the task (none for a chain that ends in a sink)."""

    def __init__(self, edges: list[OutputEdge], *, output_bytes: int) -> None:
        self._edges = edges
        self._main = [edge for edge in edges if edge.edge.side is None]
        self._all_main = [s for edge in self._main for s in edge.subpartitions]
        self._all = [s for edge in edges for s in edge.subpartitions]
        self._by_key = {s.key: s for s in self._all}
        self._output_bytes = output_bytes
        self.rows_out = 0

    def emit(self, batch: pa.RecordBatch) -> None:
        """Queue records of the last operator's main output on every edge that carries the main output."""
        if batch.num_rows == 0:
            return
        self.rows_out += batch.num_rows
        for edge in self._main:
            edge.emit(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Tell every target of the main output how far event time has come."""
        element = Watermark(time_us=time_us, idle=idle)
        for subpartition in self._all_main:
            subpartition.add_element(element)

    @property
    def main_is_read(self) -> bool:
        """Whether an edge carries the main output of the last operator."""
        return bool(self._main)

    def sides_of(self, operator: str) -> dict[str, SideOutput]:
        """The side outputs of an operator that are read, by name."""
        edges: dict[str, list[OutputEdge]] = {}
        for edge in self._edges:
            if edge.edge.side is not None and edge.edge.side.operator == operator:
                edges.setdefault(edge.edge.side.name, []).append(edge)
        return {name: SideOutput(self, found) for name, found in edges.items()}

    def broadcast(self, element: AnyElement) -> None:
        """Queue an element on every channel."""
        for subpartition in self._all:
            subpartition.add_element(element)

    def send_barrier(self, barrier: Barrier) -> dict[ChannelKey, list[pa.RecordBatch]]:
        """Queue the task's barrier on every channel. Returns the batches that the barrier overtook, by channel."""
        overtaken: dict[ChannelKey, list[pa.RecordBatch]] = {}
        for edge in self._edges:
            overtaken.update(edge.send_barrier(barrier))
        return overtaken

    def time_out(self, checkpoint: CheckpointId) -> dict[ChannelKey, list[pa.RecordBatch]]:
        """On every channel on which the barrier of `checkpoint` still waits, the barrier overtakes. Returns the batches
        that the barrier overtook, by channel."""
        return {s.key: s.time_out(checkpoint) for s in self._all}

    def is_waiting(self, checkpoint: CheckpointId) -> bool:
        """Whether the barrier of `checkpoint` waits on a channel and may still overtake."""
        return any(s.waiting == checkpoint for s in self._all)

    def restore(self, key: ChannelKey, batches: list[pa.RecordBatch]) -> None:
        """Queue the batches that were in flight on a channel in the restored checkpoint, before the operators emit."""
        for batch in batches:
            self._by_key[key].add_batch(batch)

    @property
    def channels(self) -> tuple[ChannelKey, ...]:
        """Every channel out of the task."""
        return tuple(self._by_key)

    def grant(self, key: ChannelKey, bytes_granted: int) -> None:
        """The receiving end of a channel has room for more."""
        self._by_key[key].grant(bytes_granted)

    def data_taken(self, key: ChannelKey) -> None:
        """The receiving end of a channel has processed all data of the channel."""
        self._by_key[key].data_taken()

    @property
    def is_taken(self) -> bool:
        """Whether the receiving end of every channel has processed all data of the channel."""
        return all(s.is_taken for s in self._all)

    def flush_channel(self, key: ChannelKey) -> None:
        """Send everything that the credit of one channel allows."""
        self._by_key[key].flush()

    @property
    def has_room(self) -> bool:
        """Whether the task may make more output: on no channel too many bytes wait to be sent."""
        limit = self._output_bytes
        return all(s.queued_bytes < limit for s in self._all)

    @property
    def is_empty(self) -> bool:
        """Whether everything has been sent."""
        return all(s.is_empty for s in self._all)

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait to be sent on all channels together, for people to look at."""
        return sum(s.queued_bytes for s in self._all)

    @property
    def bytes_out(self) -> int:
        """The bytes of all batches that were ever queued on a channel, for people to look at."""
        return sum(s.bytes_added for s in self._all)

    def flush(self) -> None:
        """Send everything that the credit of every channel allows."""
        for subpartition in self._all:
            subpartition.flush()
