"""Like `lasting_driver`, with a job that has parts on the driver wherever there can be one."""

# Names and parameters are those of PySpark's classes.
# ruff: noqa: N802, N803

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import documented_sources
import lasting_driver
import pyarrow as pa
from documented_sources import note
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

import penstock as ps

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(documented_sources)

COUNTED = 40
FILES = 4
ROWS_PER_FILE = 5


class TicksReader(ps.SourceReader):
    """Counts, slowly, until a file exists."""

    def __init__(self, splits: Sequence[bytes], gate: Path) -> None:
        self._next = [int(split) for split in splits]
        self._gate = gate
        self._due_ms = 0

    def poll(self, max_rows: int, now_ms: int) -> pa.RecordBatch | ps.Pause | ps.End:
        if not self._next:
            return ps.End()
        if now_ms < self._due_ms:
            return ps.Pause(5)
        self._due_ms = now_ms + 10
        numbers = range(self._next[0], self._next[0] + 3)
        self._next = [] if self._gate.exists() else [numbers.stop]
        return pa.record_batch({"split": ["ticks"] * 3, "number": list(numbers)}, schema=lasting_driver.Numbers.columns)

    def snapshot(self) -> list[bytes]:
        return [b"%d" % number for number in self._next]


class Ticks(lasting_driver.Numbers):
    """Rows for as long as a test likes."""

    def splits(self, parallelism: int) -> list[bytes]:
        return [b"0"]

    def open(self, splits: Sequence[bytes]) -> ps.SourceReader:
        return TicksReader(splits, self._folder / "gate")


class Written(WriterCommitMessage):
    """Rows that wait to be shown."""

    def __init__(self, rows: list[list]) -> None:
        self.rows = rows


class ArchiveWriter(DataSourceStreamWriter):
    """Shows each batch as one file, named by its id: a batch that comes again replaces itself."""

    def __init__(self, options) -> None:
        self.path = Path(options["path"])
        self.notes = options["notes"]

    def write(self, iterator):
        return Written([[row.split, row.number] for row in iterator])

    def commit(self, messages, batchId):
        rows = sorted(row for message in messages for row in message.rows)
        note(self.notes, "commits", [os.getpid(), batchId, rows])
        self.path.mkdir(exist_ok=True)
        hidden = self.path / f".{batchId}-{os.getpid()}"
        hidden.write_text(json.dumps(rows))
        hidden.rename(self.path / f"{batchId}.json")

    def abort(self, messages, batchId):
        note(self.notes, "aborts", [os.getpid(), batchId])


class Archive(DataSource):
    """A folder of batches."""

    def streamWriter(self, schema, overwrite):
        return ArchiveWriter(self.options)


def hand_over(env: ps.Environment, spark: SparkSession, folder: Path) -> None:
    """Rows, a data source and a streaming DataFrame, into a function, a data sink and a table."""

    def take(frame: Any, checkpoint: int) -> None:
        rows = sorted([row.split, row.number] for row in frame.collect())
        note(str(folder), "calls", [os.getpid(), checkpoint, rows])
        if (folder / "hold").exists():
            (folder / "held").touch()
            documented_sources.wait_for(str(folder / f"go-on-{os.getpid()}"))

    counter = ps.data_source(
        documented_sources.Counter,
        options={"total": COUNTED, "rowsPerBatch": 7, "gate": folder / "gate", "notes": folder},
        mode="available-now",
    )
    landed = spark.readStream.schema("split string, number long").option("maxFilesPerTrigger", 1)
    numbers = (
        env.read(Ticks(folder), name="ticks")
        .union(env.read(counter, name="counter").select("'counter' AS split", "id AS number"))
        .union(env.from_stream(landed.json(str(folder / "incoming")), available_now=True, name="landed"))
    )
    numbers.for_each_checkpoint(take, name="take")
    numbers.write(ps.data_sink(Archive, options={"path": folder / "archive", "notes": folder}), name="archive")
    numbers.write(ps.table("numbers", path=str(folder / "table")), name="table")


def write_incoming(folder: Path) -> None:
    """What the streaming DataFrame reads."""
    (folder / "incoming").mkdir()
    for file in range(FILES):
        rows = range(file * ROWS_PER_FILE, (file + 1) * ROWS_PER_FILE)
        lines = (json.dumps({"split": "landed", "number": number}) for number in rows)
        (folder / "incoming" / f"{file:02d}.json").write_text("\n".join(lines))


def is_everything(rows: list[list]) -> bool:
    """Whether all rows are there, each once; of the ticks, however many there were."""
    ticks = sorted(number for split, number in rows if split == "ticks")
    others = sorted([split, number] for split, number in rows if split != "ticks")
    counted = [["counter", n] for n in range(COUNTED)]
    landed = [["landed", n] for n in range(FILES * ROWS_PER_FILE)]
    return bool(ticks) and ticks == list(range(len(ticks))) and others == [*counted, *landed]


if __name__ == "__main__":
    lasting_driver.main(Path(sys.argv[1]), sys.argv[2], hand_over, cores=3, interval="500ms", starts=2)
