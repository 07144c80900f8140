"""Parquet files in folders by the values of columns."""

from __future__ import annotations

from datetime import date

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from penstock.api.connector import WriterContext
from penstock.connectors import parquet as connector
from penstock.connectors.parquet import parquet
from penstock.connectors.partitions import NO_VALUE, by_partition
from penstock.connectors.table import table
from penstock.core.errors import StorageError, UsageError

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("shop", pa.string())])
FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)


def batch(*rows):
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def context(*, subtask=0, epoch=1):
    return WriterContext(job="job", subtask=subtask, parallelism=1, epoch=epoch)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink(folder):
    made = parquet(folder, partition_by=["day", "shop"])
    made.check(SCHEMA)
    made.start("job")
    return made


def visible(folder):
    """What a reader sees: files without the columns that are in the names of their folders."""
    found = {}
    for file in sorted(folder.rglob("*.parquet")):
        if "_penstock" not in file.parts:
            read = pq.ParquetFile(file).read()
            assert read.schema.names == ["n"]
            found[str(file.relative_to(folder))] = read["n"].to_pylist()
    return found


def staged(folder):
    return sorted(file.name for file in (folder / "_penstock").rglob("*.parquet"))


def test_records_of_a_value_appear_in_its_folder_when_they_are_committed_and_once(sink, folder):
    writer = sink.writer(context(subtask=3))
    writer.write(batch((1, FIRST, "a"), (2, SECOND, "a"), (3, FIRST, "b")))
    writer.write(batch((4, FIRST, "a")))
    prepared = writer.prepare(7)()
    assert (visible(folder), len(staged(folder))) == ({}, 3)
    for _ in range(2):
        sink.commit(prepared)
        assert visible(folder) == {
            "day=2026-01-01/shop=a/part-job-3-7-0.parquet": [1, 4],
            "day=2026-01-01/shop=b/part-job-3-7-2.parquet": [3],
            "day=2026-01-02/shop=a/part-job-3-7-1.parquet": [2],
        }
    assert staged(folder) == []


def test_what_an_earlier_attempt_left_goes_and_what_is_promised_stays(sink, folder):
    writer = sink.writer(context())
    writer.write(batch((1, FIRST, "a"), (2, SECOND, "a")))
    promised = writer.prepare(1)()
    writer.write(batch((3, FIRST, "a"), (4, SECOND, "a")))
    writer.prepare(2)()
    assert len(staged(folder)) == 4
    sink.clean(context(epoch=2), promised)
    assert len(staged(folder)) == 2
    sink.commit(promised)
    assert sorted(visible(folder).values()) == [[1], [2]]
    sink.end("job")
    assert not (folder / "_penstock").exists()


def test_a_job_that_counts_checkpoints_again_adds_files(sink, folder):
    for n in (1, 2):
        writer = sink.writer(context(epoch=n))
        writer.write(batch((n, FIRST, "a")))
        sink.commit(writer.prepare(5)())
    assert sorted(visible(folder).values()) == [[1], [2]]


def test_work_that_failed_in_the_middle_is_done_again_whole(sink, folder, monkeypatch):
    writer = sink.writer(context())
    writer.write(batch((1, FIRST, "a"), (2, SECOND, "a")))
    work, write, calls = writer.prepare(1), connector.pq.write_table, []

    def fails_once(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise OSError("disk full")
        write(*args, **options)

    monkeypatch.setattr(connector.pq, "write_table", fails_once)
    with pytest.raises(StorageError, match="disk full"):
        work()
    sink.commit(work())
    assert sorted(visible(folder).values()) == [[1], [2]]


@given(
    st.lists(
        st.tuples(
            st.integers(-9, 9),
            st.none() | st.sampled_from([FIRST, SECOND]),
            st.none() | st.text("ab%/=", min_size=1, max_size=2),
        ),
        min_size=1,
    )
)
def test_every_record_is_in_the_folder_of_its_values_in_the_order_it_had(rows):
    found = {folder: part["n"].to_pylist() for folder, part in by_partition(pa.table(batch(*rows)), ["day", "shop"])}
    expected: dict[str, list[int]] = {}
    for n, day, shop in rows:
        escaped = "".join({"%": "%25", "/": "%2F", "=": "%3D"}.get(c, c) for c in shop or NO_VALUE)
        expected.setdefault(f"day={day or NO_VALUE}/shop={escaped}", []).append(n)
    assert found == expected


def test_a_null_and_an_empty_text_are_in_one_folder():
    given = pa.table(batch((1, FIRST, None), (2, FIRST, ""), (3, FIRST, None)))
    found = [(folder, part["n"].to_pylist()) for folder, part in by_partition(given, ["shop"])]
    assert sorted(found) == [(f"shop={NO_VALUE}", [1, 3]), (f"shop={NO_VALUE}", [2])]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["other"], "partition_by has 'other'.*the stream has the columns n, day, shop"),
        (["n", "day", "shop"], "partition_by has all columns"),
        (["day", "day"], "each once"),
        ([3], "give names of columns"),
    ],
)
def test_columns_that_cannot_be_partitioned_by_are_refused(tmp_path, columns, text):
    with pytest.raises(UsageError, match=text):
        parquet(tmp_path, partition_by=columns).check(SCHEMA)


@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("us", "UTC"), pa.list_(pa.int64()), pa.decimal128(9, 2)])
def test_values_that_make_no_name_of_a_folder_are_refused(tmp_path, kind):
    with pytest.raises(UsageError, match="whose values cannot be names of folders"):
        parquet(tmp_path, partition_by="k").check(pa.schema([("n", pa.int64()), ("k", kind)]))


def test_a_value_that_is_too_long_for_a_folder_is_told(sink):
    writer = sink.writer(context())
    writer.write(batch((1, FIRST, "x" * 300)))
    with pytest.raises(UsageError, match="'shop' of partition_by has a value of 300 characters"):
        writer.prepare(1)()


def test_two_sinks_of_one_folder_are_the_same_however_they_lay_it_out(tmp_path):
    """So that a program is refused in which two steps write there."""
    assert parquet(tmp_path) == parquet(tmp_path, partition_by="day")
    assert table("t", path=tmp_path) == table("t", path=tmp_path, partition_by="day")
