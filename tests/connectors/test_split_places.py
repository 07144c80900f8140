"""A split of a snapshot is believed only if the source can have made it."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.connector import End
from penstock.connectors.parquet_files import parquet_files
from penstock.connectors.split_places import BelowFolder, GivenPlaces
from penstock.core.errors import CorruptFile, Fault, StorageError, fault_of


@pytest.fixture
def data(tmp_path):
    """A folder of the program with a Parquet file, and a secret Parquet file beside the folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in (folder / "a.parquet", folder / "b.parquet", folder / "_hidden.parquet", tmp_path / "secret.parquet"):
        pq.write_table(pa.table({"n": [1, 2, 3]}), file)
    return folder


def crafted(split, file):
    """The split of an honest source, changed to name another file."""
    _, *rest = msgspec.msgpack.decode(split)
    return msgspec.msgpack.encode([str(file), *rest])


ELSEWHERE = [
    "{data}/../secret.parquet",
    "{above}/secret.parquet",
    "{data}/_hidden.parquet",
    "{data}/below/a.parquet",
    "{data}/..",
    "{data}/",
    "data/a.parquet",
    "/etc/passwd",
    "",
    "{data}/a\0.parquet",
]


@pytest.mark.parametrize("file", ELSEWHERE)
@pytest.mark.parametrize("later", [False, True])
def test_a_split_that_leads_elsewhere_is_refused(data, monkeypatch, file, later):
    monkeypatch.chdir(data.parent)
    source = parquet_files(data)
    bad = crafted(source.splits(1)[0], file.format(data=data, above=data.parent))
    with pytest.raises(CorruptFile, match=r"the snapshot says that the file .* is to be read, and") as caught:
        source.open([]).add_splits([bad]) if later else source.open([bad])
    assert fault_of(caught.value) is Fault.PERMANENT
    assert "do not use the snapshot" in caught.value.hint


def test_a_source_of_files_reads_no_other_file_of_their_folder(data):
    source = parquet_files([data / "a.parquet"])
    (split,) = source.splits(1)
    source.open([crafted(split, data / "a.parquet")])
    with pytest.raises(CorruptFile, match=f"the source reads only {data}/a.parquet"):
        source.open([crafted(split, data / "b.parquet")])


@pytest.mark.parametrize("groups", [(0, 10**12), (-(10**12), 1)])
def test_a_split_of_more_row_groups_than_its_file_has_is_refused(data, groups):
    source = parquet_files(data / "a.parquet")
    file, size, _, _, *rest = msgspec.msgpack.decode(source.splits(1)[0])
    reader = source.open([msgspec.msgpack.encode([file, size, *groups, *rest])])
    with pytest.raises(StorageError, match="the file has 1 row groups"):
        reader.poll(10, 0)


def rows(reader):
    found = []
    while not isinstance(polled := reader.poll(10, 0), End):
        found += polled.column("n").to_pylist()
    return found


@pytest.mark.parametrize("given", ["data", "./data", "data/../data", "link", "file://{above}/data"])
@pytest.mark.parametrize("then", ["data", "link"])
def test_a_snapshot_of_an_honest_job_goes_on_however_the_same_folder_is_named(data, monkeypatch, given, then):
    """The program named the folder in one way when the snapshot was taken, and names it in another way now."""
    monkeypatch.chdir(data.parent)
    (data.parent / "link").symlink_to(data)
    splits = parquet_files(then).splits(1)
    assert sorted(rows(parquet_files(given.format(above=data.parent)).open(splits))) == [1, 1, 2, 2, 3, 3]


def test_no_link_below_a_prepared_folder_is_followed(data):
    below = BelowFolder(folder=str(data))
    (data / "deep").mkdir()
    below.check(f"{data}/deep/c.parquet")
    (data / "link").symlink_to(data.parent)
    (data / "deep" / "s.parquet").symlink_to(data.parent / "secret.parquet")
    for file in ("link/secret.parquet", "deep/s.parquet", "../secret.parquet", "deep/../../secret.parquet", "a\0"):
        with pytest.raises(CorruptFile, match=f"reads only files below {data}"):
            below.check(f"{data}/{file}")
    with pytest.raises(CorruptFile):
        below.check(str(data))


def test_places_of_nothing_allow_nothing():
    with pytest.raises(CorruptFile, match="the source reads only no file"):
        GivenPlaces().check("/etc/passwd")
