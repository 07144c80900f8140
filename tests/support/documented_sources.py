"""Data sources and sinks written against PySpark's documentation alone: nothing here knows of Penstock."""

# Names and parameters are those of PySpark's classes.
# ruff: noqa: N802, N803

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructType

LONGEST_S = 600
"""What a test leaves behind that has failed does not wait for ever. No other test takes so long."""


def note(folder: str | None, what: str, value: object) -> None:
    """Leave a line in a file, for a test to find."""
    if folder:
        with Path(folder, what).open("a") as out:
            out.write(json.dumps(value) + "\n")


def noted(folder: Path, what: str) -> list:
    """The lines that were left."""
    return [json.loads(line) for line in whole_lines(folder / what)]


def whole_lines(file: Path) -> list[str]:
    """Those of a file that grows meanwhile: of the last one there may be a part, which is none yet."""
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def wait_for(path: str | None) -> None:
    """Until a file exists, if there is one to wait for."""
    until = time.monotonic() + LONGEST_S
    while path and not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.005)


# --- numbers, in partitions ------------------------------------------------------------------------------------------


@dataclass
class Range(InputPartition):
    """Numbers from `first` up to, not including, `stop`."""

    first: int
    stop: int


class CounterReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts up to `total`, some rows at a time; the last of all are held back until a file exists."""

    def __init__(self, options) -> None:
        self.total = int(options.get("total", "100"))
        self.rows_per_batch = int(options.get("rowsPerBatch", "40"))
        self.partitions_per_batch = int(options.get("numPartitions", "3"))
        self.gate = options.get("gate")
        self.notes = options.get("notes")

    def prepareForTriggerAvailableNow(self):
        note(self.notes, "prepared", True)

    def initialOffset(self):
        return {"next": 0}

    def getDefaultReadLimit(self):
        return ReadMaxRows(self.rows_per_batch)

    def latestOffset(self, start, limit):
        if isinstance(limit, ReadAllAvailable):
            return {"next": self.total}
        return {"next": min(self.total, start["next"] + limit.max_rows)}

    def partitions(self, start, end):
        first, stop = start["next"], end["next"]
        step = -(-(stop - first) // self.partitions_per_batch)
        return [Range(at, min(at + step, stop)) for at in range(first, stop, step)]

    def read(self, partition):
        for number in range(partition.first, partition.stop):
            if number == self.total - 2:
                wait_for(self.gate)
            yield (number, f"n{number}")

    def commit(self, end):
        note(self.notes, "committed", end["next"])

    def stop(self):
        note(self.notes, "stopped", True)


class Counter(DataSource):
    """A stream of numbers."""

    @classmethod
    def name(cls):
        return "counter"

    def schema(self):
        return "id bigint, text string"

    def streamReader(self, schema):
        return CounterReader(self.options)


# --- a file that grows -----------------------------------------------------------------------------------------------


class LinesReader(SimpleDataSourceStreamReader):
    """The lines of a file that is being written, a few at a time."""

    def __init__(self, options) -> None:
        self.path = Path(options["path"])
        self.lines_per_read = int(options.get("linesPerRead", "10"))
        self.notes = options.get("notes")

    def initialOffset(self):
        return {"line": 0}

    def read(self, start):
        rows = list(self._rows(start["line"], start["line"] + self.lines_per_read))
        return iter(rows), {"line": start["line"] + len(rows)}

    def readBetweenOffsets(self, start, end):
        note(self.notes, "replayed", [start["line"], end["line"]])
        return iter(list(self._rows(start["line"], end["line"])))

    def commit(self, end):
        note(self.notes, "committed", end["line"])

    def _rows(self, first, stop):
        for number, line in enumerate(whole_lines(self.path)[first:stop], first):
            yield Row(text=line, id=number)


def append_lines(path, lines):
    """As somebody who writes a log does: a reader never finds lines gone that it has seen."""
    with path.open("a") as out:
        out.write("".join(f"{line}\n" for line in lines))


class Lines(DataSource):
    """A text file as a stream of its lines."""

    @classmethod
    def name(cls):
        return "lines"

    def schema(self):
        return StructType().add("id", LongType()).add("text", StringType())

    def simpleStreamReader(self, schema):
        return LinesReader(self.options)


# --- a batch, as Arrow -----------------------------------------------------------------------------------------------


class SquaresReader(DataSourceReader):
    def __init__(self, count: int) -> None:
        self.count = count

    def partitions(self):
        return [InputPartition(remainder) for remainder in range(4)]

    def read(self, partition):
        numbers = list(range(partition.value, self.count, 4))
        for at in range(0, len(numbers), 7):
            some = numbers[at : at + 7]
            yield pa.RecordBatch.from_pydict({"n": some, "square": [n * n for n in some]})


class Squares(DataSource):
    """A table of squares."""

    def schema(self):
        return "n bigint, square bigint"

    def reader(self, schema):
        return SquaresReader(int(self.options["count"]))


# --- sinks -----------------------------------------------------------------------------------------------------------


@dataclass
class Staged(WriterCommitMessage):
    """A file that is written and not to be seen yet."""

    name: str
    rows: int


class FilesWriter(DataSourceStreamWriter):
    """Writes JSON lines into files that appear all at once, when their batch is committed."""

    def __init__(self, options) -> None:
        self.path = Path(options["path"])
        self.notes = options.get("notes")

    def write(self, iterator):
        task = TaskContext.get()
        # Two tasks that write at the same time, or one that is tried again, must not write the same file.
        name = f"{task.partitionId()}-{task.taskAttemptId()}" if task is not None else uuid.uuid4().hex
        (self.path / "_staged").mkdir(parents=True, exist_ok=True)
        rows = 0
        with (self.path / "_staged" / name).open("x") as out:
            for row in iterator:
                out.write(json.dumps(row.asDict()) + "\n")
                rows += 1
        return Staged(name, rows)

    def commit(self, messages, batchId):
        note(self.notes, "commits", batchId)
        for message in messages:
            (self.path / "_staged" / message.name).rename(self.path / f"{batchId}-{message.name}.json")

    def abort(self, messages, batchId):
        note(self.notes, "aborts", batchId)
        for message in messages:
            if message is not None:
                (self.path / "_staged" / message.name).unlink()


class Files(DataSource):
    """A folder of JSON files."""

    @classmethod
    def name(cls):
        return "files"

    def streamWriter(self, schema, overwrite):
        return FilesWriter(self.options)


class BatchFilesWriter(DataSourceWriter):
    """The same, for batches."""

    def __init__(self, options) -> None:
        self._files = FilesWriter(options)

    def write(self, iterator):
        return self._files.write(iterator)

    def commit(self, messages):
        self._files.commit(messages, uuid.uuid4().hex)

    def abort(self, messages):
        self._files.abort(messages, "batch")


class BatchFiles(DataSource):
    """A folder of JSON files that only batches are written to."""

    @classmethod
    def name(cls):
        return "batch-files"

    def writer(self, schema, overwrite):
        return BatchFilesWriter(self.options)


def rows_of_files(path: Path) -> list[tuple]:
    """What the sink shows."""
    lines = [line for file in path.glob("*.json") for line in file.read_text().splitlines()]
    return sorted(tuple(json.loads(line).values()) for line in lines)


@dataclass
class Rows(WriterCommitMessage):
    """What is to be inserted."""

    values: list


class SqliteWriter(DataSourceStreamArrowWriter):
    """Inserts each batch in one transaction, with its id: a batch that comes twice is an error."""

    def __init__(self, options) -> None:
        self.path = options["path"]
        self.fails_on = int(options.get("failsOn", "-1"))
        self.notes = options.get("notes")

    def write(self, iterator):
        return Rows([tuple(row.values()) for batch in iterator for row in batch.to_pylist()])

    def commit(self, messages, batchId):
        note(self.notes, "commits", batchId)
        if len(noted(Path(self.notes), "commits")) == self.fails_on:
            raise OSError("the database is locked")
        with sqlite3.connect(self.path, timeout=LONGEST_S) as database:
            database.execute("CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY)")
            database.execute("CREATE TABLE IF NOT EXISTS data (id INTEGER, text TEXT)")
            database.execute("INSERT INTO batches VALUES (?)", (batchId,))
            for message in messages:
                database.executemany("INSERT INTO data VALUES (?, ?)", message.values)
        database.close()

    def abort(self, messages, batchId):
        note(self.notes, "aborts", batchId)


class Sqlite(DataSource):
    """A table in SQLite."""

    @classmethod
    def name(cls):
        return "sqlite"

    def streamWriter(self, schema, overwrite):
        return SqliteWriter(self.options)


def rows_of_sqlite(path: Path) -> list[tuple]:
    """What the table has."""
    database = sqlite3.connect(path, timeout=LONGEST_S)
    try:
        return sorted(database.execute("SELECT id, text FROM data").fetchall())
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()
