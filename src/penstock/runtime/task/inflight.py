"""Collects, writes and reads the in-flight data of unaligned checkpoints.

A task collects the batches that barriers overtook: batches in its output queues, and batches of its input channels that
were sent before a barrier and had not been read when the snapshot was taken. When the collection of a task is complete,
the task hands the collection to the slot. The slot writes one file for all its tasks, because most collections are
small and every file has a cost. If all collections together are small enough, no file is written: each collection
travels in the acknowledgement of its task.

A batch holds whole records. So at another parallelism in-flight data can be split by key: every subtask that may own
rows of a batch reads the batch and takes its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from penstock.api.arrow_bounds import NOT_ARROW, check_batch
from penstock.core.errors import CorruptFile, MalformedMessage, StorageError
from penstock.core.ids import CheckpointId, TaskId
from penstock.core.key_groups import range_of
from penstock.core.messages import ChannelState, DealtChannel, StateFile
from penstock.plan.graph import Plan
from penstock.ports import Background, Store, WorkResult
from penstock.runtime.task.channels import ChannelKey
from penstock.runtime.task.operators.base import StateReader
from penstock.runtime.task.partitioning import key_groups
from penstock.state.restore_bounds import check_apart
from penstock.storage.local_copies import LocalCopies
from penstock.wire.codec import BatchCodec

Batches = dict[ChannelKey, list[pa.RecordBatch]]


@dataclass
class InFlight:
    """The in-flight data that one task collects for one checkpoint."""

    checkpoint: CheckpointId
    inputs: Batches = field(default_factory=dict)
    outputs: Batches = field(default_factory=dict)
    input_complete: bool = False
    output_complete: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether no batch can be added any more."""
        return self.input_complete and self.output_complete

    @property
    def is_empty(self) -> bool:
        """Whether the barriers overtook no batch."""
        return not self.inputs and not self.outputs

    def add_input(self, key: ChannelKey, batch: pa.RecordBatch) -> None:
        """Add a batch of an input channel to the collection."""
        self.inputs.setdefault(key, []).append(batch)

    def add_outputs(self, overtaken: Mapping[ChannelKey, list[pa.RecordBatch]]) -> None:
        """Add the batches of output channels that the barriers overtook to the collection."""
        for key, batches in overtaken.items():
            if batches:
                self.outputs.setdefault(key, []).extend(batches)


@dataclass(frozen=True, slots=True)
class SavedChannels:
    """Where a task's collection has been written."""

    inputs: tuple[ChannelState, ...] = ()
    outputs: tuple[ChannelState, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes of in-flight data were written."""
        return sum(length for c in (*self.inputs, *self.outputs) for _, length in c.ranges)


Saved = Callable[[WorkResult], None]
"""Called with the `SavedChannels` of one task, or with the error that kept the collection from being written."""


@dataclass(frozen=True, slots=True)
class _Written:
    saved: list[SavedChannels]
    """One `SavedChannels` for each collection, in the order of the collections."""
    path: str | None
    """None if no file was needed."""
    content: bytes


class ChannelFiles:
    """Writes the collections of a slot's tasks: all collections of one checkpoint together."""

    def __init__(
        self,
        *,
        store: Store,
        background: Background,
        codecs: Mapping[int, BatchCodec],
        copies: LocalCopies,
        path_of: Callable[[CheckpointId], str],
        inline_threshold: int,
    ) -> None:
        self._store = store
        self._copies = copies
        self._background = background
        self._codecs = codecs
        self._path_of = path_of
        self._inline_threshold = inline_threshold
        self._waiting: dict[CheckpointId, dict[TaskId, tuple[InFlight, Saved]]] = {}
        self._answered: dict[CheckpointId, dict[TaskId, None]] = {}
        """The tasks that have submitted a collection or given up, by checkpoint. A checkpoint is removed when all tasks
        have submitted or given up."""

    def submit(self, task: TaskId, collected: InFlight, saved: Saved, members: tuple[TaskId, ...]) -> None:
        """Take the complete collection of a task. The collection is written when all `members`, the slot's tasks that
        take part in checkpoints, have submitted a collection or given up."""
        checkpoint = collected.checkpoint
        self._answered.setdefault(checkpoint, {})[task] = None
        if collected.is_empty:
            saved(WorkResult(value=SavedChannels()))
        else:
            self._waiting.setdefault(checkpoint, {})[task] = (collected, saved)
        self._write_if_all(checkpoint, members)

    def give_up(self, task: TaskId, checkpoint: CheckpointId, members: tuple[TaskId, ...]) -> None:
        """A task will not submit a collection for a checkpoint, or takes its collection back."""
        self._waiting.get(checkpoint, {}).pop(task, None)
        self._answered.setdefault(checkpoint, {})[task] = None
        self._write_if_all(checkpoint, members)

    def forget_before(self, checkpoint: CheckpointId) -> None:
        """Forget the checkpoints before `checkpoint`, which are over. Such a checkpoint still has an entry if a task
        took its collection back after all tasks had submitted or given up, or if some tasks did neither."""
        for old in [c for c in self._answered if c < checkpoint]:
            self._answered.pop(old)
            self._waiting.pop(old, None)

    def _write_if_all(self, checkpoint: CheckpointId, members: tuple[TaskId, ...]) -> None:
        if not all(member in self._answered[checkpoint] for member in members):
            return
        del self._answered[checkpoint]
        waiting = self._waiting.pop(checkpoint, {})
        if not waiting:
            return
        tasks = list(waiting.items())

        def write() -> _Written:
            return self._write(checkpoint, [collected for _, (collected, _) in tasks])

        def done(outcome: WorkResult) -> None:
            for number, (_, (_, saved)) in enumerate(tasks):
                saved(outcome if outcome.error is not None else WorkResult(value=outcome.value.saved[number]))
            if outcome.error is None:
                self._copy(outcome.value)

        self._background.submit(write, done)

    def _write(self, checkpoint: CheckpointId, collections: list[InFlight]) -> _Written:
        """Write one file for all collections, or no file if the collections are small. Runs off the loop."""
        encoded = [self._encode(c.inputs) + self._encode(c.outputs) for c in collections]
        total = sum(len(piece) for collection in encoded for _, pieces in collection for piece in pieces)
        path, content = None, b""
        if total <= self._inline_threshold:
            files = [[(key, _inline(pieces), pieces, 0) for key, pieces in collection] for collection in encoded]
        else:
            content = b"".join(piece for collection in encoded for _, pieces in collection for piece in pieces)
            path = self._path_of(checkpoint)
            self._store.write(path, content)
            shared = StateFile(path=path, size=len(content), checksum=xxhash.xxh3_64_intdigest(content))
            files, start = [], 0
            for collection in encoded:
                placed = []
                for key, pieces in collection:
                    placed.append((key, shared, pieces, start))
                    start += sum(map(len, pieces))
                files.append(placed)
        saved = [
            SavedChannels(
                inputs=tuple(_state(*entry) for entry in placed[: len(collected.inputs)]),
                outputs=tuple(_state(*entry) for entry in placed[len(collected.inputs) :]),
            )
            for collected, placed in zip(collections, files, strict=True)
        ]
        return _Written(saved=saved, path=path, content=content)

    def _copy(self, written: _Written) -> None:
        """Keep a local copy of the file. The checkpoint does not wait for the copy."""
        path = written.path
        if path is not None:
            self._background.submit(lambda: self._copies.keep(path, written.content), lambda _: None)

    def _encode(self, batches: Batches) -> list[tuple[ChannelKey, list[pa.Buffer]]]:
        return [(key, [self._codecs[key.edge].encode(batch) for batch in found]) for key, found in batches.items()]


def _inline(pieces: list[pa.Buffer]) -> StateFile:
    content = b"".join(pieces)
    return StateFile(path=None, size=len(content), checksum=xxhash.xxh3_64_intdigest(content), inline=content)


def _state(key: ChannelKey, file: StateFile, pieces: list[pa.Buffer], start: int) -> ChannelState:
    ranges = []
    for piece in pieces:
        ranges.append((start, len(piece)))
        start += len(piece)
    return ChannelState(
        edge=key.edge, upstream=key.upstream, downstream=key.downstream, file=file, ranges=tuple(ranges)
    )


def _check_apart(states: Iterable[ChannelState]) -> None:
    """Raise `CorruptFile` if a batch in a file is named twice."""
    spans: dict[str | int, list[tuple[int, int]]] = {}
    for number, state in enumerate(states):
        found = spans.setdefault(number if state.file.path is None else state.file.path, [])
        found += [(start, start + length) for start, length in state.ranges]
    for found in spans.values():
        check_apart(found, what="the ranges of in-flight data")


class ChannelReader:
    """Reads saved channels back, for the tasks of one slot. Calls block, and raise `CorruptFile` or `StorageError`."""

    def __init__(self, plan: Plan, reader: StateReader, codecs: Mapping[int, BatchCodec]) -> None:
        self._plan = plan
        self._reader = reader
        self._codecs = codecs
        self._contents: dict[str, bytes] = {}

    def read(self, states: tuple[ChannelState, ...]) -> Batches:
        """The batches of saved channels, by channel, in the order in which they were sent."""
        _check_apart(states)
        found: Batches = {}
        for state in states:
            key = ChannelKey(state.edge, state.upstream, state.downstream)
            found.setdefault(key, []).extend(self._batches(state))
        return found

    def read_dealt(self, task: TaskId, dealt: tuple[DealtChannel, ...]) -> Batches:
        """The batches that a task gets of channels of another parallelism, by the channel into which the batches are
        put, in the order in which they were sent."""
        _check_apart([part for channel in dealt for part in channel.parts])
        found: Batches = {}
        for channel in dealt:
            for part in channel.parts:
                batches = self._batches(part)
                if channel.own_keys_only:
                    batches = [self._own_rows(task, part.edge, batch) for batch in batches]
                key = ChannelKey(part.edge, channel.upstream, task.subtask)
                found.setdefault(key, []).extend(batch for batch in batches if batch.num_rows)
        return {key: batches for key, batches in found.items() if batches}

    def _batches(self, state: ChannelState) -> list[pa.RecordBatch]:
        codec = self._codecs.get(state.edge)
        if codec is None:
            raise StorageError(
                f"the checkpoint has in-flight data of edge {state.edge}, and the program has no such edge",
                hint="restore with the program that took the checkpoint",
            )
        content = memoryview(self._content(state.file))
        found: list[pa.RecordBatch] = []
        try:
            for start, length in state.ranges:
                data = bytes(content[start : start + length])
                check_batch(pa.py_buffer(data))
                found.append(codec.decode(data))
        except (MalformedMessage, *NOT_ARROW) as error:
            text = error.message if isinstance(error, MalformedMessage) else str(error)
            raise CorruptFile(
                f"in-flight data of edge {state.edge} cannot be read: {text}",
                hint="restore with the program that took the checkpoint, or from another checkpoint",
            ) from error
        return found

    def _content(self, file: StateFile) -> bytes:
        if file.path is None:
            return self._reader.get(file)
        if file.path not in self._contents:
            self._contents[file.path] = self._reader.get(file)
        return self._contents[file.path]

    def _own_rows(self, task: TaskId, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        plan = self._plan
        edge = next(edge for edge in plan.edges if edge.number == number)
        groups = key_groups(batch, edge.keys, plan.max_parallelism)
        first, last = range_of(
            task.subtask, parallelism=plan.vertex(task.vertex).parallelism, groups=plan.max_parallelism
        )
        own = (groups >= first) & (groups <= last)
        return batch if own.all() else batch.filter(pa.array(own))
