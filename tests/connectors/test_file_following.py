"""Files that appear while the job runs, and jobs over files: each file is read once, whoever dies."""

from __future__ import annotations

import json
import os
import uuid

import msgspec
import pyarrow.fs as pafs
import pytest
from file_rows import drain, json_files, lines_of, numbers_in, put

import penstock as ps
from penstock.api.connector import End
from penstock.connectors import file_following
from penstock.connectors.file_following import FileEnumerator, decoded
from penstock.connectors.file_reading import FileSplit
from penstock.core.errors import StorageError, UsageError
from penstock.testing import collect, run

# --- files that appear later -----------------------------------------------------------------------------------------


def names_in(found):
    return [msgspec.msgpack.decode(split, type=FileSplit).name for split in found.splits]


def test_new_files_are_found_once_whatever_their_times(tmp_path):
    looking = json_files(tmp_path, follow=True).enumerator()
    put(tmp_path / "b", "1")
    first = looking.discover(None)
    assert names_in(first) == ["b"]
    put(tmp_path / "a", "2")
    os.utime(tmp_path / "a", (1, 1))
    second = looking.discover(first.position)
    assert names_in(second) == ["a"]
    assert names_in(looking.discover(second.position)) == []
    assert names_in(looking.discover(first.position)) == ["a"]
    assert not first.ended


def test_a_known_file_of_another_size_is_refused(tmp_path):
    looking = json_files(tmp_path, follow=True).enumerator()
    put(tmp_path / "a", "1")
    found = looking.discover(None)
    put(tmp_path / "a", "12")
    with pytest.raises(StorageError, match="a has changed since it was found: the file has 2 bytes, and had 1 byte"):
        looking.discover(found.position)


def test_names_of_files_that_are_gone_are_forgotten_beyond_a_bound_and_not_if_all_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(file_following, "KNOWN_FILES", 3)
    looking = json_files(tmp_path, follow=True).enumerator()
    for name in "abc":
        put(tmp_path / name, "1")
    found = looking.discover(None)
    (tmp_path / "a").unlink()
    found = looking.discover(found.position)
    assert len(decoded(found.position)) == 3
    put(tmp_path / "d", "1")
    found = looking.discover(found.position)
    assert (names_in(found), len(decoded(found.position))) == (["d"], 3)
    for name in "bcd":
        (tmp_path / name).unlink()
    put(tmp_path / "e", "1")
    found = looking.discover(found.position)
    assert (names_in(found), len(decoded(found.position))) == (["e"], 4)


def test_many_files_are_given_out_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(file_following, "FOUND_AT_ONCE", 4)
    looking, position, given = FileEnumerator(json_files(tmp_path, follow=True).reading.files), None, []
    for number in range(10):
        put(tmp_path / f"{number}", "1")
    for is_behind in (True, True, False):
        found = looking.discover(position)
        assert found.catching_up is is_behind
        position, given = found.position, given + names_in(found)
    assert sorted(given) == [str(number) for number in range(10)]


def test_a_folder_that_is_followed_may_be_empty_and_is_asked_again_after_the_end(tmp_path):
    source = json_files(tmp_path, follow=True)
    assert (source.splits(2), source.discovers, source.finds_more_later, source.unpickles) == ([], True, True, False)
    reader = source.open([])
    assert reader.poll(5, 0) == End()
    put(tmp_path / "a", lines_of([1, 2]))
    reader.add_splits(source.enumerator().discover(None).splits)
    assert (drain(reader), reader.splits_read) == ([{"n": 1}, {"n": 2}], 1)


def test_object_storage_is_read_and_followed(s3):
    folder = f"files/{uuid.uuid4()}"
    system, base = pafs.FileSystem.from_uri(s3.uri(folder))
    followed = json_files(s3.uri(folder), follow=True)
    for number in range(2):
        with system.open_output_stream(f"{base}/day=1/{number}.json") as out:
            out.write(lines_of([number]).encode())
    for path in (folder, f"{folder}/*/*.json", f"{folder}/day=1/**"):
        assert sorted(numbers_in(json_files(s3.uri(path)))) == [0, 1]
    assert numbers_in(json_files(s3.uri(f"{folder}/day=1/1.json"))) == [1]
    found = followed.enumerator().discover(None)
    assert sorted(row["n"] for row in drain(followed.open(found.splits))) == [0, 1]
    with pytest.raises(UsageError, match="does not exist"):
        json_files(s3.uri(f"{folder}/nothing"))


# --- in a job --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_rows_of_files_come_out_once_whoever_dies(tmp_path, seed):
    # A run reads at most 1,000 rows at a time, and a block of a file has more rows.
    for number in range(4):
        put(tmp_path / f"{number}.json", lines_of(range(number * 10_000, number * 10_000 + 10_000)))
    source = json_files(tmp_path)
    found = run(lambda env: env.read(source).write(collect()), seed=seed, crashes=2, checkpoint_interval="10ms")
    assert sorted(row["n"] for row in found) == list(range(40_000))


class Ending(FileEnumerator):
    """Puts a file into the folder whenever it is asked, and ends when there are enough."""

    def __init__(self, files, folder, last):
        super().__init__(files)
        self._folder = folder
        self._last = last

    def discover(self, position):
        count = len(list(self._folder.iterdir()))
        if count <= self._last:
            put(self._folder / f"{count}.tmp", lines_of(range(count * 20, count * 20 + 20)))
            (self._folder / f"{count}.tmp").rename(self._folder / f"{count}.json")
        found = super().discover(position)
        known = len(decoded(found.position))
        return ps.Found(position=found.position, splits=found.splits, ended=known > self._last, wait_ms=5)


class Followed(ps.Source):
    """A source of files that ends, so that a run of the kit can end."""

    def __init__(self, inner, folder, last):
        self._inner, self._folder, self._last = inner, folder, last
        self.splits, self.open = inner.splits, inner.open

    discovers = True
    schema = property(lambda self: self._inner.schema)

    def splits(self, parallelism):
        raise NotImplementedError

    def open(self, splits):
        raise NotImplementedError

    def enumerator(self):
        return Ending(self._inner.reading.files, self._folder, self._last)


@pytest.mark.parametrize("seed", range(24))
def test_files_that_appear_while_the_job_runs_are_read_once_whoever_dies(tmp_path, seed):
    source = Followed(json_files(tmp_path, follow=True), tmp_path, last=14)
    found = run(lambda env: env.read(source).write(collect()), seed=seed, crashes=2)
    assert sorted(row["n"] for row in found) == list(range(300))


def test_a_job_names_the_line_that_cannot_be_read(tmp_path):
    put(tmp_path / "a", json.dumps({"n": 1}) + "\nnull\n")
    with pytest.raises(ps.JobFailed, match="line 2 cannot be read"):
        run(lambda env: env.read(json_files(tmp_path), name="numbers").write(collect()))
