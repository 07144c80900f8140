"""Files as a source: which files are read, and that each row comes once, from whatever position."""

from __future__ import annotations

import gzip
import os
import random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_rows import NUMBERS, drain, json_files, lines_of, numbers_in, put, rows_in

import penstock as ps
from penstock.connectors import file_reading
from penstock.connectors.file_reading import FileSplit
from penstock.core.errors import CorruptFile, StorageError, UsageError

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


@pytest.mark.parametrize(("before", "after"), [("skip", "keep"), ("keep", "skip"), ("skip", "skip")])
@pytest.mark.parametrize("bad", [{0, 1}, {3}, {1, 2, 5, 9}, set(range(0, 10, 2))])
def test_a_position_is_the_same_whatever_becomes_of_bad_lines(tmp_path, before, after, bad):
    put(tmp_path / "a", "".join("bad\n" if n in bad else f'\n{{"n": {n}}}\n' for n in range(10)))
    good = [n for n in range(10) if n not in bad]
    source, changed = json_files(tmp_path, bad_rows=before), json_files(tmp_path, bad_rows=after)
    for count in range(1, len(good) + 1):
        reader, first = source.open(source.splits(1)), []
        while len(first) < count:
            first += [row["n"] for row in drain(reader, limit=1) if row["n"] is not None]
        rest = drain(changed.open(reader.snapshot()))
        reader.close()
        assert first + [row["n"] for row in rest if row["n"] is not None] == good
        if after == "keep" and count < len(good):
            # The first reader has left out the bad lines before its last row.
            assert sum(row["n"] is None for row in rest) == len([n for n in bad if n > first[-1]])


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
