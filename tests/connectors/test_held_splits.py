"""A held split gives no records until the hold is over, and stays in snapshots meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.connector import End, Pause, Source, SourceReader
from penstock.api.iterables import ListedRows
from penstock.connectors.files import files
from penstock.connectors.parquet_files import parquet_files
from penstock.testing import scripted

NUMBERS = [list(range(20)), list(range(20, 40)), list(range(40, 60))]


def listed(folder: Path) -> Source:
    return ListedRows(pa.record_batch({"n": [n for part in NUMBERS for n in part]}))


def parquet(folder: Path) -> Source:
    for number, part in enumerate(NUMBERS):
        pq.write_table(pa.table({"n": part}), folder / f"{number}.parquet")
    return parquet_files(folder)


def lines(folder: Path) -> Source:
    for number, part in enumerate(NUMBERS):
        (folder / f"{number}.csv").write_text("".join(f"{n}\n" for n in part))
    return files(str(folder), format="csv", schema="n bigint", header=False)


def scripts(folder: Path) -> Source:
    return scripted(*([{"n": n} for n in part] for part in NUMBERS), schema="n bigint")


@pytest.fixture(params=[listed, parquet, lines, scripts])
def reader(request: pytest.FixtureRequest, tmp_path: Path):
    source = request.param(tmp_path)
    opened = source.open(source.splits(len(NUMBERS)))
    yield opened
    opened.close()


def read(reader: SourceReader, *, until: type = End, most: int = 10_000) -> list[int]:
    """The numbers that come until the reader ends, or has had nothing for a while."""
    found: list[int] = []
    silent_since = time.monotonic()
    for _ in range(most):
        polled = reader.poll(3, 0)
        if isinstance(polled, pa.RecordBatch):
            found += polled.column(0).to_pylist()
            silent_since = time.monotonic()
        elif isinstance(polled, End) or (until is Pause and polled.wait_ms >= 1_000):
            return found
        else:
            assert time.monotonic() - silent_since < 20, "nothing comes"
            time.sleep(0.001)
    return found


def begun(reader: SourceReader) -> tuple[object, list[int]]:
    """The split of the first records, and these records."""
    found: list[int] = []
    while not found:
        polled = reader.poll(3, 0)
        found = polled.column(0).to_pylist() if isinstance(polled, pa.RecordBatch) else []
    progress = reader.progress()
    assert progress is not None
    return progress.current, found


def test_a_held_split_waits_while_the_others_go_on(reader: SourceReader):
    held, first = begun(reader)
    (own,) = (part for part in NUMBERS if first[0] in part)
    reader.hold([held])
    others = read(reader, until=Pause)
    assert set(others) == {n for part in NUMBERS for n in part} - set(own)
    reader.hold([])
    assert sorted([*first, *others, *read(reader)]) == list(range(60))


def test_a_reader_pauses_when_all_its_splits_are_held(reader: SourceReader):
    _, first = begun(reader)
    progress = reader.progress()
    assert progress is not None
    reader.hold(list(progress.open))
    assert read(reader, until=Pause) == []
    assert len(reader.snapshot()) == len(NUMBERS)
    reader.hold([])
    assert sorted([*first, *read(reader)]) == list(range(60))
