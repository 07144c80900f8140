"""Lines of files: what they become, and what becomes of lines that cannot be read."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_rows import NUMBERS, json_files, lines_of, numbers_in, put, rows_in

import penstock as ps
from penstock.core.errors import UsageError

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
    assert "are skipped: 1; the first of these lines is line 39" in caplog.text
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
