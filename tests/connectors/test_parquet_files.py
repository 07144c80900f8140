from __future__ import annotations

import itertools
import pickle
import random
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.connector import End
from penstock.connectors import parquet_files as connector
from penstock.connectors.parquet_files import parquet_files
from penstock.core.errors import StorageError, UsageError


def write(path, numbers, *, group=10):
    texts = pa.array([f"t{n}" for n in numbers], pa.string())
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64()), "s": texts}), path, row_group_size=group)


def drain(reader, max_rows=7):
    rows = []
    while not isinstance(polled := reader.poll(max_rows, 0), End):
        rows += polled.column("n").to_pylist()
    return rows


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 4), st.integers(0, 2**32)
)
def test_every_row_is_read_once_and_those_of_a_split_in_order_whatever_is_restored(
    tmp_path, sizes, group, parallelism, seed
):
    chance = random.Random(seed)
    first, expected = 0, []
    for number, size in enumerate(sizes):
        write(tmp_path / f"{number}.parquet", range(first, first + size), group=group)
        expected += range(first, first + size)
        first += size
    source = parquet_files([tmp_path / f"{number}.parquet" for number in range(len(sizes))])
    parts = source.splits(parallelism)
    readers = [(source.open(parts[i::parallelism]), {}) for i in range(parallelism)]
    read = []
    while readers:
        turn = chance.randrange(len(readers))
        reader, rows = readers[turn]
        if chance.random() < 0.2:
            reader.close()
            reader = source.open(reader.snapshot())
            readers[turn] = (reader, rows)
        polled = reader.poll(chance.randint(1, 25), 0)
        if isinstance(polled, End):
            assert all(split == sorted(split) for split in rows.values())
            assert reader.snapshot() == []
            read += itertools.chain(*rows.values())
            readers.pop(turn)
        else:
            assert polled.schema == source.schema
            rows.setdefault(reader.progress().current, []).extend(polled.column("n").to_pylist())
    assert sorted(read) == expected


def test_splits_are_read_in_turns_some_at_a_time_and_each_has_its_own_event_time(tmp_path, monkeypatch):
    monkeypatch.setattr(connector, "OPEN_SPLITS", 2)
    for name, numbers in (("a", [1, 2]), ("b", [11, 12, 13]), ("c", [21])):
        write(tmp_path / f"{name}.parquet", numbers)
    source = parquet_files(tmp_path)
    reader = source.open(source.splits(1))
    assert (reader.progress().current, len(reader.progress().open)) == (None, 3)
    read = []
    while not isinstance(polled := reader.poll(1, 0), End):
        progress = reader.progress()
        assert list(progress.ready) == list(progress.open)
        read.append((polled.column("n")[0].as_py(), len(progress.open), progress.current in progress.open))
    assert read == [(1, 3, True), (11, 3, True), (2, 2, False), (12, 2, True), (21, 1, False), (13, 0, False)]


def test_row_groups_are_joined_into_splits_and_shared_by_all_subtasks(tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", range(100), group=10)
    source = parquet_files(tmp_path)
    assert len(source.splits(1)) == 4
    assert len(source.splits(100)) == 10
    monkeypatch.setattr(connector, "SPLIT_ROWS", 10)
    assert len(source.splits(1)) == 10


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path):
    for name, numbers in (("b", [3, 4]), ("a", [1, 2]), ("_temporary", [9]), (".crc", [8])):
        write(tmp_path / f"{name}.parquet", numbers)
    (tmp_path / "_SUCCESS").touch()
    source = parquet_files(str(tmp_path))
    assert drain(source.open(source.splits(1))) == [1, 2, 3, 4]


def test_files_without_rows_make_no_splits(tmp_path):
    write(tmp_path / "a.parquet", [])
    source = parquet_files(tmp_path)
    assert source.splits(2) == []
    assert source.open([]).poll(5, 0) == End()


def test_columns_are_taken_by_name_and_cast_to_the_given_schema(tmp_path):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    table = pa.table({"extra": [1], "ts": pa.array([moment.replace(tzinfo=None)], pa.timestamp("ns")), "n": [5]})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    schema = pa.schema([("n", pa.int32()), ("ts", pa.timestamp("us", "UTC"))])
    source = parquet_files(tmp_path, schema=schema)
    batch = source.open(source.splits(1)).poll(10, 0)
    assert batch.schema == source.schema == schema
    assert batch.to_pylist() == [{"n": 5, "ts": moment}]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (pa.table({"m": [1]}), "has no column n, s"),
        (pa.table({"n": ["x"], "s": ["x"]}), "do not fit the source's schema"),
    ],
)
def test_a_file_with_other_columns_is_refused_by_name(tmp_path, table, text):
    write(tmp_path / "a.parquet", [1])
    pq.write_table(table, tmp_path / "b.parquet")
    source = parquet_files(tmp_path)
    with pytest.raises(StorageError, match=rf"b\.parquet .*{text}"):
        drain(source.open(source.splits(1)))


def test_a_file_that_has_changed_is_refused(tmp_path):
    write(tmp_path / "a.parquet", range(50))
    source = parquet_files(tmp_path)
    parts = source.splits(1)
    write(tmp_path / "a.parquet", range(1000))
    with pytest.raises(StorageError, match=r"a\.parquet has changed since the job started"):
        source.open(parts).poll(5, 0)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(StorageError, match=r"a\.parquet cannot be read"):
        source.open(parts).poll(5, 0)


def test_nothing_to_read_is_said_at_once(tmp_path):
    with pytest.raises(UsageError, match="no Parquet files"):
        parquet_files(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        parquet_files(tmp_path / "nowhere")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(UsageError, match=r"text\.parquet is not a Parquet file"):
        parquet_files(tmp_path)


def test_the_source_can_be_pickled(tmp_path):
    write(tmp_path / "a.parquet", [1])
    source = parquet_files(tmp_path)
    assert pickle.loads(pickle.dumps(source)) == source
