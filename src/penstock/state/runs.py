"""Runs: immutable rows that a checkpoint saves once, and that later checkpoints refer to.

Columnar state consists of runs and of rows that are not in a run yet. A run never changes after it was made. A change
of the state makes further runs, merges runs into a run that takes their place, or removes rows from a run: the first
rows, or any rows. What was removed is not written into the run. Each snapshot says which rows of each run are left
(`LiveRun`).

A snapshot is an index, and one file for each run. The index belongs to the snapshot alone. A run's file is shared: a
run whose file a completed checkpoint has is not written again (`RunFiles`).

    4 bytes   PKRN
    2 bytes   version of this format
    4 bytes   number of bytes of the header
    …         the header: `RunIndex` as JSON
    …         the sections: bytes that mean something to the owner of the state only
    …         for each run that lost rows other than its first rows: a bit per row, 1 if the row is gone

Numbers are unsigned, most significant byte first. The index is the first file of a snapshot. The other files are the
files of the runs, in the order of the index. The file of a run is an Arrow stream.

Rules for owners:

* The synchronous part of a snapshot is `RunFiles.snapshot`: its time grows with the number of runs, and not with rows.
* Small runs are better put into a section than into a file of their own: each file costs a write, and a small run will
  soon be merged with others.
* The owner passes on which checkpoints were completed and aborted. A run may be referred to only if a completed
  checkpoint has its file. Files of aborted checkpoints are deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_stream, check_types
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.ports import Frame
from penstock.state.backend import StateWriter, reused
from penstock.state.format import check_names
from penstock.state.restore_bounds import check_named_once

MAGIC = b"PKRN"
VERSION = 1
MOST_GROUPS = 1 << 16
_PREFIX = struct.Struct(">4sHI")
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"

Bits = npt.NDArray[np.bool_]


class Run:
    """Rows that never change, in blocks. Two runs are never equal, whatever their rows are."""

    __slots__ = ("blocks", "buffer", "starts", "token")

    def __init__(self, blocks: Sequence[pa.RecordBatch], buffer: pa.Buffer | None = None) -> None:
        """At least one block, and no block is empty. `buffer`: the file of the run, if the blocks lie in it."""
        self.blocks = tuple(blocks)
        self.buffer = buffer
        self.starts = (0, *accumulate(block.num_rows for block in self.blocks))
        """The number of the first row of each block, and behind them the number of rows."""
        self.token = object()
        """Stands for the run where the rows of the run must not be kept in memory."""

    @property
    def rows(self) -> int:
        """How many rows the run was made with."""
        return self.starts[-1]

    def encoded(self) -> Frame:
        """The bytes of the run's file."""
        if self.buffer is not None:
            return self.buffer
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.blocks[0].schema) as stream:
            for block in self.blocks:
                stream.write_batch(block)
        return sink.getvalue()


class SavedRun(Protocol):
    """What a snapshot must know of what is left of a run. Is read off the loop, and must not change."""

    @property
    def run(self) -> Run:
        """The run."""
        ...

    @property
    def first(self) -> int:
        """The rows before this row are gone."""
        ...

    @property
    def gone(self) -> Bits | None:
        """For each row of the run whether the row is gone; None if no row behind `first` is gone."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LiveRun:
    """What is left of a run."""

    run: Run
    first: int = 0
    """The rows before this row are gone."""
    gone: Bits | None = None
    """For each row of the run whether the row is gone; None if no row behind `first` is gone. Never changed."""

    @property
    def rows(self) -> int:
        """How many rows are behind `first`, gone or not."""
        return self.run.rows - self.first


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run in an index. New fields: at the end, with a default."""

    rows: int
    first: int = 0
    """The rows before this row are gone."""
    marks: bool = False
    """Whether the index has a bit for each row."""


class RunIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The header of an index. New fields: at the end, with a default."""

    groups: int
    """Key groups of the job."""
    own_groups: tuple[int, int]
    """First and last key group of the subtask that wrote the snapshot."""
    sections: tuple[int, ...] = ()
    """How many bytes each section has."""
    runs: tuple[RunEntry, ...] = ()


WriteRuns = Callable[[StateWriter, Sequence[Frame]], tuple[StateFile, ...]]
"""The asynchronous part of a snapshot: is given the sections, and returns the handles of the snapshot's files."""


class RunFiles:
    """Which runs of one subtask's state lie in files that the next checkpoint may refer to.

    All calls come from the loop, in the order in which the checkpoints were taken.
    """

    def __init__(self, name: str, *, groups: int, own_groups: tuple[int, int]) -> None:
        """`name` must be the name of no other subtask of the job, and of no other attempt to run the subtask."""
        self._name = name
        self._groups = groups
        self._own_groups = own_groups
        self._reusable: dict[object, StateFile] = {}
        self._uploaded: dict[CheckpointId, dict[object, StateFile]] = {}

    def adopt(self, run: Run, file: StateFile) -> None:
        """The run was restored from a file, and has all rows of the file."""
        if file.shared_key is not None:
            self._reusable[run.token] = file

    def has(self, run: Run) -> bool:
        """Whether the next checkpoint may refer to the file of the run."""
        return run.token in self._reusable

    def snapshot(self, checkpoint: CheckpointId, runs: Sequence[SavedRun], options: CheckpointOptions) -> WriteRuns:
        """Freeze the runs by reference. The returned work writes the runs that no completed checkpoint has, and the
        index."""
        known = {} if options.full or options.savepoint else self._reusable
        frozen, name, uploaded = tuple(runs), self._name, self._uploaded
        groups, own_groups = self._groups, self._own_groups

        def write(writer: StateWriter, sections: Sequence[Frame]) -> tuple[StateFile, ...]:
            files: list[StateFile] = []
            found: dict[object, StateFile] = {}
            for number, live in enumerate(frozen):
                token = live.run.token
                if (file := known.get(token)) is not None:
                    files.append(reused(file))
                else:
                    # The key is unique: the name is that of this attempt alone, and a later snapshot of this attempt
                    # has another checkpoint id.
                    file = writer.put_shared(live.run.encoded(), f"{name}-{checkpoint}-{number}")
                    files.append(file)
                found[token] = file
            index = encode_index(frozen, sections, groups=groups, own_groups=own_groups)
            handles = (writer.put(index), *files)
            if not options.savepoint:
                uploaded[checkpoint] = found
            return handles

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: later snapshots may refer to its files."""
        self._reusable = self._uploaded.get(checkpoint, self._reusable)
        # A checkpoint that was aborted while it was being written may have written files since then.
        for earlier in [known for known in self._uploaded if known <= checkpoint]:
            del self._uploaded[earlier]

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will never complete: its files are deleted, and no snapshot may refer to them."""
        self._uploaded.pop(checkpoint, None)


def encode_index(
    runs: Sequence[SavedRun], sections: Sequence[Frame], *, groups: int, own_groups: tuple[int, int]
) -> bytes:
    """The bytes of an index."""
    gone = [live.gone for live in runs]
    header = msgspec.json.encode(
        RunIndex(
            groups=groups,
            own_groups=own_groups,
            sections=tuple(memoryview(section).nbytes for section in sections),
            runs=tuple(
                RunEntry(rows=live.run.rows, first=live.first, marks=bits is not None)
                for live, bits in zip(runs, gone, strict=True)
            ),
        )
    )
    marks = [np.packbits(bits).tobytes() for bits in gone if bits is not None]
    parts: list[Any] = [_PREFIX.pack(MAGIC, VERSION, len(header)), header, *sections, *marks]
    return b"".join(memoryview(part) for part in parts)


def is_runs(data: bytes) -> bool:
    """Whether a file is the index of a snapshot of runs."""
    return data[:4] == MAGIC


class RunSnapshot:
    """A snapshot whose index was read; `what` names the index in errors. Raises `CorruptFile` if the index is cut
    short, was changed, or has a newer format."""

    def __init__(self, data: bytes, files: Sequence[StateFile], *, what: str) -> None:
        """`files` are all files of the snapshot, the index first."""
        self._what = what
        if len(data) < _PREFIX.size:
            raise self._corrupt(f"is cut short: it has {len(data)} bytes, fewer than its prefix alone")
        _, version, size = _PREFIX.unpack_from(data)
        if version > VERSION:
            raise CorruptFile(
                f"{what} has format version {version}; this program reads up to {VERSION}", hint="use a newer penstock"
            )
        at = _PREFIX.size + size
        try:
            self.index = msgspec.json.decode(data[_PREFIX.size : at], type=RunIndex)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"has a header that cannot be read: {error}") from error
        self._check_header(len(files) - 1, len(data) - at)
        check_named_once(files, what=what)
        self.sections: list[bytes] = []
        for length in self.index.sections:
            self.sections.append(data[at : at + length])
            at += length
        self.gone: list[Bits | None] = []
        """For each run which rows are gone; None if only first rows are gone."""
        for entry in self.index.runs:
            if not entry.marks:
                self.gone.append(None)
                continue
            bits = np.frombuffer(data, np.uint8, _mark_bytes(entry), at)
            self.gone.append(np.unpackbits(bits, count=entry.rows).astype(np.bool_))
            at += bits.size
        self.files = tuple(files[1:])
        """The files of the runs."""

    def _check_header(self, files: int, body: int) -> None:
        index = self.index
        first, last = index.own_groups
        if not 0 <= first <= last < index.groups <= MOST_GROUPS:
            raise self._corrupt(f"has the impossible key groups {first} to {last} of {index.groups}")
        if len(index.runs) != files:
            raise self._corrupt(f"names {len(index.runs)} runs, but the checkpoint has files of {files} runs")
        if any(not 0 <= entry.first <= entry.rows for entry in index.runs):
            raise self._corrupt("has a run that has lost more rows than the run has")
        if any(length < 0 for length in index.sections):
            raise self._corrupt("has a section of less than no bytes")
        said = sum(index.sections) + sum(_mark_bytes(entry) for entry in index.runs if entry.marks)
        if said != body:
            raise self._corrupt(f"has {body} bytes behind its header instead of {said}")

    def blocks(self, number: int, data: pa.Buffer, *, block_rows: int) -> list[pa.RecordBatch]:
        """The rows of a run, from the bytes of its file: also rows that are gone, in blocks of at most `block_rows`
        rows. The rows lie in `data`. Raises
        `CorruptFile` if the file cannot be read, or does not fit the index."""
        entry = self.index.runs[number]
        try:
            check_stream(data)
            stream = pa.ipc.open_stream(data)
            check_types(stream.schema)
            table: Any = stream.read_all()
            table.validate(full=True)
            check_size(table, data.size)
            check_names(table.schema)
        except NOT_ARROW as error:
            raise CorruptFile(f"{self._what} has a run that cannot be read: {error}", hint=_HINT) from error
        if table.num_rows != entry.rows:
            raise self._corrupt(f"has a run of {entry.rows} rows, and the file of the run has {table.num_rows}")
        return [block for block in table.to_batches(max_chunksize=block_rows) if block.num_rows]

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(f"{self._what} {text}", hint=_HINT)


def _mark_bytes(entry: RunEntry) -> int:
    return -(-entry.rows // 8)
