"""Files as a source: which files are read, what their lines become, and that each row comes once."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
from datetime import UTC, date, datetime

import cloudpickle
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.connectors import file_following, file_reading
from penstock.connectors.file_following import FileEnumerator, decoded
from penstock.connectors.file_reading import FileSplit
from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.testing import collect, run

NUMBERS = "n bigint"


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def lines_of(numbers):
    return "".join(f'{{"n": {n}}}\n' for n in numbers)


def drain(reader, max_rows=100, limit=None):
    rows, waiting = [], threading.Event()
    while limit is None or len(rows) < limit:
        polled = reader.poll(max_rows if limit is None else min(max_rows, limit - len(rows)), 0)
        if isinstance(polled, End):
            break
        if isinstance(polled, Pause):
            waiting.wait(0.001)
        else:
            rows += polled.to_pylist()
    return rows


def rows_in(source):
    source = cloudpickle.loads(cloudpickle.dumps(source))
    reader = source.open(source.splits(2))
    try:
        return drain(reader)
    finally:
        reader.close()


def numbers_in(source):
    return [row["n"] for row in rows_in(source)]


def json_files(path, **options):
    return ps.files(path, format="json", schema=NUMBERS, **options)


# --- which files -----------------------------------------------------------------------------------------------------


def test_a_folder_is_read_with_its_sub_folders_without_hidden_and_temporary_names(tmp_path):
    names = ["a.json", "day=1/b.json", "day=1/deep/c", "_SUCCESS", ".d.json", "_logs/e.json", "day=1/.git/f.json"]
    names += ["g.json.tmp", "h.part", "day=1/i._COPYING_", "j.crdownload", "k.json~", "x.tmp/l.json"]
    for number, name in enumerate(names):
        put(tmp_path / name, lines_of([number]))
    assert sorted(numbers_in(json_files(tmp_path))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.json", [0]),
        ("*/*.json", [1, 2]),
        ("**/*.json", [0, 1, 2, 3]),
        ("day=*/b.json", [1, 2]),
        ("day=1/**", [1, 3, 4]),
        ("**", [0, 1, 2, 3, 4]),
        ("day=[2-3]/?.json", [2]),
        ("a.json", [0]),
        ("_hidden.json", [5]),
    ],
)
@pytest.mark.parametrize("prefix", ["{}", "file://{}"])
def test_a_pattern_or_the_name_of_a_file_chooses_files(tmp_path, prefix, pattern, expected):
    if "?" in pattern and "file" in prefix:
        pattern = pattern.replace("?", "*")
    for number, name in enumerate(
        ["a.json", "day=1/b.json", "day=2/b.json", "day=1/x/c.json", "day=1/d", "_hidden.json"]
    ):
        put(tmp_path / name, lines_of([number]))
    assert sorted(numbers_in(json_files(prefix.format(tmp_path) + "/" + pattern))) == expected


def test_older_files_are_read_first(tmp_path):
    for name, number, at in (("a", 2, 200), ("b", 1, 100), ("c", 3, 300)):
        put(tmp_path / name, lines_of([number]))
        os.utime(tmp_path / name, (at, at))
    assert numbers_in(json_files(tmp_path)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "options", "text"),
    [
        ("nothing", {}, "does not exist"),
        ("", {"path": ""}, "path of ps.files is ''"),
        ("*.csv", {}, "no files are at"),
        ("", {"format": "xml"}, "'xml', which ps.files cannot read"),
        ("", {"header": False}, "are for CSV files"),
        ("", {"bad_rows": "bad"}, "bad_rows is 'bad'"),
        ("", {"bad_rows": "keep", "bad_rows_column": "n"}, "has a column 'n'"),
        ("", {"format": "parquet", "bad_rows": "skip"}, "Parquet files have no lines"),
        ("", {"format": "text"}, "text files have the column 'line'"),
        ("", {"format": "csv", "delimiter": ",,"}, "single letter"),
        ("", {"format": "csv", "null_values": "NULL"}, "null_values is 'NULL'"),
        ("", {"schema": "m map<string, int>"}, "a type that lines of these files cannot have"),
        ("", {"format": "csv", "schema": "m array<int>"}, "a type that lines of these files cannot have"),
        ("", {"path": "nowhere://x/y"}, "no address of a file system"),
        ("", {"format": "parquet", "schema": None}, "is not a Parquet file"),
    ],
)
def test_mistakes_are_told_when_the_program_is_written(tmp_path, path, options, text):
    put(tmp_path / "a.json", lines_of([1]))
    given = {"path": tmp_path / path, "format": "json", "schema": NUMBERS} | options
    with pytest.raises(UsageError, match=text):
        ps.files(given.pop("path"), **given)


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("json", '{"user": "a", "n": 1, "x y": [1.5], "o": {"ok": true}}\n',
         "user string, n bigint, `x y` array<double>, o struct<ok: boolean>"),
        ("csv", "user,n,day\na,1,2026-01-02\n", "user string, n bigint, day date"),
    ],
)  # fmt: skip
def test_who_gives_no_schema_is_shown_the_schema_of_the_first_line(tmp_path, form, text, expected):
    put(tmp_path / "a", text)
    with pytest.raises(UsageError, match="needs a schema") as raised:
        ps.files(tmp_path, format=form)
    assert f"schema={expected!r}" in raised.value.hint
    assert len(rows_in(ps.files(tmp_path, format=form, schema=expected))) == 1


def test_a_first_line_that_fits_nothing_leaves_a_general_hint(tmp_path):
    put(tmp_path / "a", "no json")
    with pytest.raises(UsageError, match="needs a schema") as raised:
        ps.files(tmp_path, format="json")
    assert raised.value.hint.startswith("for example")


# --- what lines become -----------------------------------------------------------------------------------------------


def test_json_lines_become_rows_with_nulls_for_what_is_not_there(tmp_path):
    text = (
        '{"at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "d": 1.25, "t": ["x"], "more": 1}\r\n\n  \n{"s": {"a": 1}}'
    )
    put(tmp_path / "a", b"\xef\xbb\xbf" + text.encode())
    schema = "at timestamp, day date, d decimal(5, 2), t array<string>, s struct<a: int>"
    first, second = rows_in(ps.files(tmp_path, format="json", schema=schema))
    assert (first["at"], first["day"]) == (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), date(2026, 1, 2))
    assert (str(first["d"]), first["t"], first["s"], second["s"], second["day"]) == (
        "1.25",
        ["x"],
        None,
        {"a": 1},
        None,
    )


def test_csv_columns_are_taken_by_the_names_of_the_header(tmp_path):
    put(tmp_path / "a", b'\xef\xbb\xbfword;more;n\n"to; be";x;1\n"";y;\n\nNULL;z;3\r\n')
    put(tmp_path / "b", "n;word;more\n4;is;")
    put(tmp_path / "c", "n;word;more")
    source = ps.files(tmp_path, format="csv", schema="n int, word string", delimiter=";", null_values=["", "NULL"])
    assert [tuple(row.values()) for row in rows_in(source)] == [
        (1, "to; be"), (None, ""), (3, None), (4, "is"),
    ]  # fmt: skip


def test_csv_without_header_has_the_columns_of_the_schema(tmp_path):
    put(tmp_path / "a", "1,to\n2,be\n")
    source = ps.files(tmp_path, format="csv", schema="n int, word string", header=False)
    assert [tuple(row.values()) for row in rows_in(source)] == [(1, "to"), (2, "be")]


def test_a_header_without_a_column_of_the_schema_is_an_error(tmp_path):
    put(tmp_path / "a", "m,word\n1,to\n")
    with pytest.raises(UsageError, match="line 1: the first line does not name n; the first line names m, word"):
        rows_in(ps.files(tmp_path, format="csv", schema="n int, word string"))


def test_every_line_of_a_text_is_a_row(tmp_path):
    put(tmp_path / "a", "to be\r\n\n ü\rx \nlast")
    assert [row["line"] for row in rows_in(ps.files(tmp_path, format="text"))] == ["to be", "", " ü\rx ", "last"]
    put(tmp_path / "a", "to be\n")
    assert [row["line"] for row in rows_in(ps.files(tmp_path, format="text"))] == ["to be"]


def test_packed_files_are_unpacked(tmp_path):
    put(tmp_path / "a.json.gz", gzip.compress(lines_of(range(5)).encode()))
    assert numbers_in(json_files(tmp_path)) == list(range(5))


def test_parquet_columns_are_told_from_the_first_file_or_cast(tmp_path):
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32()), "s": ["x", "y"]}), tmp_path / "a.parquet")
    assert rows_in(ps.files(tmp_path, format="parquet")) == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}]
    source = ps.files(tmp_path, format="parquet", schema=NUMBERS)
    assert (rows_in(source), source.schema) == ([{"n": 1}, {"n": 2}], pa.schema([("n", pa.int64())]))


# --- lines that cannot be read ---------------------------------------------------------------------------------------

BAD_JSON = ["{", "null", "5", "[1]", '{"n": "x"}', '{"n": 2.5}', '{"n": 1} {"n": 2}', '{"n": 1} null', '{"n":']
BAD_JSON += [b'{"n": 1, "s": "\xff"}']


@pytest.mark.parametrize("bad", BAD_JSON)
def test_a_bad_line_is_an_error_with_its_number_or_skipped_or_kept(tmp_path, bad, caplog):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    good = lines_of(range(100)).encode().splitlines(keepends=True)
    put(tmp_path / "a", b"".join([*good[:37], b"\n", bad, b"\n", *good[37:]]))
    with pytest.raises(UsageError, match="a, line 39 cannot be read") as raised:
        rows_in(json_files(tmp_path))
    assert "bad_rows='skip'" in raised.value.hint
    assert numbers_in(json_files(tmp_path, bad_rows="skip")) == list(range(100))
    assert "1 rows of" in caplog.text
    assert "are skipped; the first is line 39" in caplog.text
    kept = rows_in(json_files(tmp_path, bad_rows="keep"))
    assert [row["n"] for row in kept] == [*range(37), None, *range(37, 100)]
    assert kept[37]["bad_row"] == bad.decode(errors="replace")
    assert [row["bad_row"] for row in kept].count(None) == 100


@pytest.mark.parametrize("bad", ["x,to", "1", "1,to,x", '1,"to', '1,"to\n2,be"', b"1,\xff"])
def test_bad_lines_of_csv_are_found_too(tmp_path, bad):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    put(tmp_path / "a", b"n,word\n7,ok\n" + bad + b'\n8,"fi""ne"\n9,5" pipe\n')

    def source(**o):
        return ps.files(tmp_path, format="csv", schema="n int, word string", **o)

    with pytest.raises(UsageError, match="a, line 3 cannot be read"):
        rows_in(source())
    assert [row["n"] for row in rows_in(source(bad_rows="skip")) if row["n"] > 2] == [7, 8, 9]
    kept = rows_in(source(bad_rows="keep", bad_rows_column="raw"))
    assert next(row["raw"] for row in kept if row["raw"] is not None) == bad.decode(errors="replace").partition("\n")[0]


def test_a_column_that_must_have_a_value_makes_a_line_bad(tmp_path):
    put(tmp_path / "a", '{"n": 1}\n{"n": null}\n{}\n')
    source = ps.files(tmp_path, format="json", schema="n int NOT NULL", bad_rows="keep")
    assert [(row["n"], row["bad_row"]) for row in rows_in(source)] == [(1, None), (None, '{"n": null}'), (None, "{}")]


# --- positions -------------------------------------------------------------------------------------------------------


def big_source(folder, form):
    """A file of 3,000 rows that is read in many blocks."""
    match form:
        case "json":
            put(
                folder / "a", "".join(f'{{"n": {n}}}\n' if n % 7 else f'\n{{"n": {n}}}\nbad {n}\n' for n in range(3000))
            )
        case "json.gz":
            put(folder / "a.gz", gzip.compress(lines_of(range(3000)).encode()))
        case "csv":
            put(folder / "a", "n\n" + "".join(f"{n}\n" for n in range(3000)))
        case "text":
            put(folder / "a", "\n".join(map(str, range(3000))))
        case "parquet":
            pq.write_table(pa.table({"n": range(3000)}), folder / "a", row_group_size=700)
            return ps.files(folder, format="parquet")
    schema = None if form == "text" else NUMBERS
    skip = "skip" if form == "json" else "fail"
    return ps.files(folder, format=form.partition(".")[0], schema=schema, bad_rows=skip)


@pytest.mark.parametrize("form", ["json", "json.gz", "csv", "text", "parquet"])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_comes_once_and_in_order_from_whatever_position(tmp_path, monkeypatch, form, seed):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", 300)
    monkeypatch.setattr(file_reading, "_BATCH_ROWS", 64)
    source, chance = big_source(tmp_path, form), random.Random(seed)
    places, read = source.splits(1), []
    while places:
        reader = source.open(places)
        read += [int(next(iter(row.values()))) for row in drain(reader, chance.randint(1, 90), chance.randint(1, 600))]
        places = reader.snapshot()
        reader.close()
        if len(read) >= 3000:
            read += drain(source.open(places))
            break
    assert read == list(range(3000))


def test_line_numbers_are_right_behind_a_position(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", 100)
    put(tmp_path / "a", lines_of(range(50)) + "\n\nbad\n")
    source = json_files(tmp_path)
    reader = source.open(source.splits(1))
    drain(reader, limit=30)
    places = reader.snapshot()
    reader.close()
    with pytest.raises(UsageError, match="a, line 53 cannot be read"):
        drain(source.open(places))


def test_a_line_longer_than_a_block_is_read_and_one_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", 100)
    put(tmp_path / "a", "x" * 1000 + "\nshort\n")
    assert [len(row["line"]) for row in rows_in(ps.files(tmp_path, format="text"))] == [1000, 5]
    monkeypatch.setattr(file_reading, "LONGEST_LINE_BYTES", 500)
    with pytest.raises(UsageError, match="a has a line of more than 500 bytes"):
        rows_in(ps.files(tmp_path, format="text"))


def test_a_file_that_has_changed_or_gone_is_refused_by_name(tmp_path):
    put(tmp_path / "a", lines_of(range(5)))
    source = json_files(tmp_path)
    places = source.splits(1)
    put(tmp_path / "a", lines_of(range(6)))
    with pytest.raises(StorageError, match="a has changed while it was read: the file has 54 bytes, and had 45 bytes"):
        drain(source.open(places))
    (tmp_path / "a").unlink()
    with pytest.raises(StorageError, match="a is gone"):
        drain(source.open(places))


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reading, "BLOCK_BYTES", 10)
    put(tmp_path / "a", lines_of(range(500)))
    source = json_files(tmp_path)
    reader = source.open(source.splits(1))
    drain(reader, limit=1)
    with (tmp_path / "a").open("a") as file:
        file.write(lines_of([500]))
    with pytest.raises(StorageError, match="a has changed while it was read"):
        drain(reader)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "", "a/../../secret", ".hidden", "x.csv", "a\0b", "b/./a"]
)
def test_a_snapshot_cannot_name_a_file_elsewhere(tmp_path, name):
    put(tmp_path / "in" / "a.json", lines_of([1]))
    put(tmp_path / "secret", lines_of([2]))
    crafted = msgspec.msgpack.encode(FileSplit(name, 9))
    with pytest.raises(CorruptFile, match="no such file can have been found"):
        json_files(f"{tmp_path}/in/**/*.json").open([crafted])


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
