"""An outside system whose logs carry marks: its hook puts them there, its source says by them where checkpoints begin.

A partition is a file of lines. Whoever appends writes whole lines: a number, `mark 7`, or `end`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cloudpickle
import pyarrow as pa

import penstock as ps

# What is defined here goes to the workers by value: they cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([("partition", pa.int64()), ("number", pa.int64())])


class Logs:
    """The outside system: a folder with a file for each partition."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.folder = folder
        self.partitions = partitions
        folder.mkdir()
        for partition in range(partitions):
            self.path(partition).touch()

    def path(self, partition: int) -> Path:
        return self.folder / str(partition)

    def append(self, partition: int, line: str) -> None:
        with self.path(partition).open("a") as file:
            file.write(f"{line}\n")

    def lines(self, partition: int) -> list[str]:
        """Those that are whole."""
        return self.path(partition).read_text().split("\n")[:-1]

    def extend(self, numbers: range) -> None:
        """Numbers to all partitions in turn."""
        for number in numbers:
            self.append(number % self.partitions, str(number))

    def end(self) -> None:
        for partition in range(self.partitions):
            self.append(partition, "end")

    def rows(self, *, until: dict[str, int] | None = None) -> list[tuple[int, int]]:
        """All numbers, or those before a line of each partition."""
        found = []
        for partition in range(self.partitions):
            lines = self.lines(partition)
            lines = lines if until is None else lines[: until[str(partition)]]
            found += [(partition, int(line)) for line in lines if line.isdigit()]
        return sorted(found)


class Marks(ps.CheckpointHook):
    """Has a mark put into every partition, and keeps where they stand."""

    name = "marks"

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.story: list[tuple] = []
        self.placed: dict[int, dict[str, int]] = {}

    def trigger(self, checkpoint, timestamp_ms):
        placed = {}
        for partition in range(self._logs.partitions):
            self._logs.append(partition, f"mark {checkpoint}")
            placed[str(partition)] = self._logs.lines(partition).index(f"mark {checkpoint}")
        self.placed[checkpoint] = placed
        return json.dumps(placed).encode()

    def restore(self, checkpoint, state):
        self.story.append(("restore", checkpoint, None if state is None else json.loads(state)))

    def reset(self):
        self.story.append(("reset",))

    def close(self):
        self.story.append(("close",))


class MarkedReader(ps.SourceReader):
    """Reads its partitions line by line. Where one comes to a mark, it waits until all have."""

    def __init__(self, logs: Logs, splits) -> None:
        self._logs = logs
        self._positions = dict(sorted(json.loads(split) for split in splits))
        self._at: dict[int, int] = {}
        """Partitions that stand before a mark, and which."""
        self._reached: int | None = None

    def induced_checkpoint(self):
        told, self._reached = self._reached, None
        return told

    def poll(self, max_rows, now_ms):
        for partition in [p for p in self._positions if p not in self._at]:
            lines = self._logs.lines(partition)[self._positions[partition] :]
            numbers = []
            for line in lines[:20]:
                if not line.isdigit():
                    break
                numbers.append(int(line))
            if numbers:
                self._positions[partition] += len(numbers)
                return pa.RecordBatch.from_arrays(
                    [pa.array([partition] * len(numbers)), pa.array(numbers)], schema=SCHEMA
                )
            if lines and lines[0] == "end":
                del self._positions[partition]
            elif lines:
                self._at[partition] = int(lines[0].removeprefix("mark "))
        if not self._positions:
            return ps.End()
        if len(self._at) == len(self._positions):
            marks = set(self._at.values())
            # One that was not put everywhere, since the driver died over it, is passed by.
            self._reached = marks.pop() if len(marks) == 1 else None
            passed = min(self._at.values())
            for partition in [p for p, mark in self._at.items() if mark == passed]:
                self._positions[partition] += 1
                del self._at[partition]
        return ps.Pause(1)

    def snapshot(self):
        return [json.dumps(position).encode() for position in self._positions.items()]


class MarkedSource(ps.Source):
    schema = SCHEMA
    name = "marked"
    induces_checkpoints = True

    def __init__(self, logs: Logs, hook: ps.CheckpointHook | None = None) -> None:
        self._logs = logs
        self._hook = hook

    def __reduce__(self):
        # The hook stays on the driver.
        return MarkedSource, (self._logs,)

    def splits(self, parallelism):
        return [json.dumps((partition, 0)).encode() for partition in range(self._logs.partitions)]

    def checkpoint_hook(self):
        return self._hook

    def open(self, splits):
        return MarkedReader(self._logs, splits)
