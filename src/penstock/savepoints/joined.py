"""The records of a join whose runs lie in files of their own, as tables: run by run, without the records that are
done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.messages import StateFile
from penstock.runtime.task.operators.join_files import JoinSnapshot
from penstock.runtime.task.operators.join_marks import MARK
from penstock.runtime.task.operators.join_run import GONE
from penstock.runtime.task.operators.window_table import KEY_GROUP
from penstock.runtime.task.partitioning import key_groups
from penstock.state.backend import StateReader


class JoinedRows:
    """The records of one subtask. Raises `CorruptFile` if the files cannot be read."""

    def __init__(self, index: bytes, files: Sequence[StateFile], reader: StateReader, *, what: str) -> None:
        self._snapshot = JoinSnapshot(index, files, what=what)
        self._reader = reader
        self.keys = self._snapshot.header.keys
        """The key columns of both sides."""
        self.parts = self._snapshot.parts
        """The files of records that are in no run."""
        self.sides = list(dict.fromkeys(run.side for run in self._snapshot.header.runs))
        """The sides that have runs."""

    def size_bytes(self, side: int) -> int:
        """How many bytes the files of the runs of a side have."""
        files = self._snapshot.snapshot.files
        numbers = [each for run, *found in self._snapshot.files if run.side == side for each in found]
        return sum(files[number].size for number in numbers if number is not None)

    def iterate(self, side: int, groups: tuple[int, int]) -> Iterator[pa.Table]:
        """The records of a side and of a range of key groups: their columns, the mark and the key group."""
        snapshot, keys = self._snapshot, self.keys[side]
        kind = np.int32 if snapshot.header.counts else np.uint8
        for number, (run, file, _) in enumerate(snapshot.files):
            if run.side != side:
                continue
            data = pa.py_buffer(self._reader.get(snapshot.snapshot.files[file]))
            table = pa.Table.from_batches(snapshot.rows(file, data)).combine_chunks()
            marks = snapshot.marks(number, self._reader, np.int32)
            if marks is None:
                marks = np.zeros(table.num_rows, np.int32)
            else:
                of_rows, changed = snapshot.changes(number)
                marks[of_rows] = changed
                snapshot.checked(marks)
            numbers = key_groups(table.to_batches()[0], keys, snapshot.snapshot.index.groups)
            kept = (numbers >= groups[0]) & (numbers <= groups[1]) & (marks != GONE)
            kept[: snapshot.snapshot.index.runs[file].first] = False
            columns: list[Any] = [pa.array(marks.astype(kind)), pa.array(numbers, pa.int32())]
            found = table.append_column(MARK, columns[0]).append_column(KEY_GROUP, columns[1])
            yield found.filter(pa.array(kept))
