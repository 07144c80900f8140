"""JSON and CSV files: what is in them, what is refused, and that nothing comes twice whatever dies."""

from __future__ import annotations

import base64
import doctest
import gzip
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import given

import penstock as ps
from penstock.api.connector import WriterContext
from penstock.connectors import csv_sink, json_sink
from penstock.connectors.csv_sink import CsvFormat
from penstock.connectors.json_sink import json_lines
from penstock.testing import run, scripted

MOMENT = datetime(2026, 7, 1, 12, 30, 0, 5, tzinfo=UTC)
CONTEXT = WriterContext(job="job", subtask=0, parallelism=1, epoch=1)


def objects(text):
    # Not `splitlines`: texts may hold other characters that end lines for Python.
    return [json.loads(line) for line in text.split(b"\n") if line]


def committed(sink, *batches):
    """The files of one checkpoint, by their names below the sink's folder, with their content."""
    sink.check(batches[0].schema)
    sink.start("job")
    writer = sink.writer(CONTEXT)
    for batch in batches:
        writer.write(batch)
    committables = writer.prepare(1)()
    assert visible(sink) == {}
    sink.commit(committables)
    sink.commit(committables)
    return visible(sink)


def visible(sink):
    root = Path(sink.path)
    files = (file for file in root.rglob("part-*") if "_penstock" not in file.parts)
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(files)}


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_a_json_file_has_an_object_per_line_and_appears_with_the_commit(tmp_path):
    batch = pa.record_batch({"word": ["to", None], "at": pa.array([MOMENT, None], pa.timestamp("us", "UTC"))})
    assert committed(ps.json(tmp_path), batch, batch) == {
        "part-job-0-1-0.json": b'{"word":"to","at":"2026-07-01T12:30:00.000005Z"}\n{"word":null,"at":null}\n' * 2
    }


def test_a_compressed_file_has_the_same_lines(tmp_path):
    batch = pa.record_batch({"n": [1, 2]})
    ((name, content),) = committed(ps.json(tmp_path, compression="gzip"), batch).items()
    assert (name, gzip.decompress(content)) == ("part-job-0-1-0.json.gz", b'{"n":1}\n{"n":2}\n')


def test_records_of_a_value_are_in_its_folder_without_the_column(tmp_path):
    batch = pa.record_batch({"day": ["mon", "tue", "mon"], "n": [1, 2, 3]})
    assert committed(ps.json(tmp_path, partition_by="day", compression="gzip"), batch).keys() == {
        "day=mon/part-job-0-1-0.json.gz",
        "day=tue/part-job-0-1-1.json.gz",
    }
    assert committed(ps.csv(tmp_path / "csv", partition_by="day", null_value="-"), batch) == {
        "day=mon/part-job-0-1-0.csv": b"n\n1\n3\n",
        "day=tue/part-job-0-1-1.csv": b"n\n2\n",
    }


def test_what_json_lacks_is_written_as_spark_writes_it():
    batch = pa.record_batch(
        {
            "f": pa.array([math.nan, math.inf, -math.inf, 0.5, None]),
            "b": pa.array([b"\x00\xff", b"", None, b"a", b"b"]),
            "d": pa.array([Decimal("1.50"), None, Decimal("-0.01"), Decimal(0), Decimal(7)], pa.decimal128(38, 2)),
            "m": pa.array([[("k", 1)], [], None, [("a", None)], [("é", 2)]], pa.map_(pa.string(), pa.int64())),
            "deep": pa.array([[{"x": math.nan}], None, [None], [], [{"x": 1.0}]]),
        }
    )
    found = objects(json_lines(batch))
    assert [row["f"] for row in found] == ["NaN", "Infinity", "-Infinity", 0.5, None]
    assert [row["b"] for row in found] == [base64.b64encode(b"\x00\xff").decode(), "", None, "YQ==", "Yg=="]
    assert [row["d"] for row in found] == [1.5, None, -0.01, 0, 7]
    assert [row["m"] for row in found] == [{"k": 1}, {}, None, {"a": None}, {"é": 2}]
    assert [row["deep"] for row in found] == [[{"x": "NaN"}], None, [None], [], [{"x": 1.0}]]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "s": st.none() | st.text(),
                "n": st.none() | st.integers(-(2**63), 2**63 - 1),
                "f": st.none() | st.floats(),
                "at": st.none() | st.datetimes().map(lambda time: time.replace(tzinfo=UTC, fold=0)),
                "day": st.none() | st.dates(),
                "l": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
            }
        ),
        min_size=1,
    )
)
def test_every_value_comes_back_from_its_line(rows):
    kinds = {
        "s": pa.string(),
        "n": pa.int64(),
        "f": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "l": pa.list_(pa.string()),
    }
    found = objects(json_lines(pa.RecordBatch.from_pylist(rows, schema=pa.schema(kinds))))
    for row, read in zip(rows, found, strict=True):
        read["at"] = read["at"] and datetime.fromisoformat(read["at"])
        read["day"] = read["day"] and date.fromisoformat(read["day"])
        if read["f"] in ("NaN", "Infinity", "-Infinity"):
            read["f"] = float(read["f"])
        assert repr(sorted(read.items())) == repr(sorted(row.items()))


def test_rows_are_written_alike_by_columns_and_one_by_one():
    """A value that only one of the two ways can write decides the way for the whole batch."""
    batch = pa.record_batch(
        {
            "at": pa.array([MOMENT, None], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("us")),
            "s": pa.array(['"\\\n\x00', "é"]).dictionary_encode(),
            "b": [b"\x01", None],
            "x": [{"l": [1, 2], "t": "a"}, None],
        }
    )
    by_columns = objects(json_lines(batch))
    by_rows = objects(json_lines(batch.append_column("f", pa.array([math.nan, math.nan]))))
    assert [{**row, "f": "NaN"} for row in by_columns] == by_rows


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.map_(pa.int64(), pa.string()), "maps with keys of type int64"),
        (pa.timestamp("ns"), "no nanoseconds"),
        (pa.list_(pa.struct([("t", pa.timestamp("ns"))])), "no nanoseconds"),
        (pa.null(), "without values"),
        (pa.duration("us"), "no text that Spark reads back"),
        (pa.time64("us"), "no text that Spark reads back"),
    ],
)
def test_types_that_spark_reads_from_no_json_are_refused_when_the_program_is_built(tmp_path, kind, text):
    with pytest.raises(ps.UsageError, match=text):
        ps.json(tmp_path).check(pa.schema([("x", kind)]))


def test_what_has_no_json_is_told():
    """Polars and Spark know years that Python does not."""
    far = pa.array([[253402300800000000]], pa.list_(pa.timestamp("us", "UTC")))
    with pytest.raises(ps.UsageError, match="cannot be written as JSON"):
        json_lines(pa.record_batch({"x": far}))


# --- CSV -------------------------------------------------------------------------------------------------------------


def test_a_csv_file_has_a_header_and_values_in_quotes_where_they_need_them(tmp_path):
    batch = pa.record_batch(
        {
            "a,b": ["plain", "with, comma", 'a "word"', "back\\slash", "", None],
            "n": [1, 2, 3, 4, 5, None],
            "f": [math.nan, math.inf, -math.inf, 0.5, 1e300, None],
            "at": pa.array([MOMENT] * 5 + [None], pa.timestamp("us", "UTC")),
        }
    )
    (content,) = committed(ps.csv(tmp_path), batch).values()
    moment = "2026-07-01T12:30:00.000005Z"
    assert content.decode().splitlines() == [
        '"a,b",n,f,at',
        f"plain,1,NaN,{moment}",
        f'"with, comma",2,Infinity,{moment}',
        rf'"a \"word\"",3,-Infinity,{moment}',
        rf'"back\\slash",4,0.5,{moment}',
        f'"",5,1e+300,{moment}',
        ",,,",
    ]


def test_header_delimiter_and_null_are_as_given(tmp_path):
    batch = pa.record_batch({"a": ["x;y", None], "b": ["x,y", "z"]})
    (content,) = committed(ps.csv(tmp_path, header=False, delimiter=";", null_value="-"), batch).values()
    assert content == b'"x;y";x,y\n-;z\n'


@given(st.lists(st.tuples(st.text(), st.text())))
def test_every_text_comes_back_from_a_csv_file(rows):
    columns = {"a": pa.array([a for a, _ in rows], pa.string()), "b": pa.array([b for _, b in rows], pa.string())}
    text = CsvFormat().lines(pa.record_batch(columns))
    read = arrow_csv.read_csv(
        pa.BufferReader(b"a,b\n" + text),
        parse_options=arrow_csv.ParseOptions(escape_char="\\", double_quote=False, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()}),
    )
    assert list(zip(read["a"].to_pylist(), read["b"].to_pylist(), strict=True)) == rows


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.list_(pa.int64()), "cannot hold other values"),
        (pa.struct([("a", pa.int64())]), "cannot hold other values"),
        (pa.map_(pa.string(), pa.string()), "cannot hold other values"),
        (pa.binary(), "CSV files hold texts only"),
        (pa.timestamp("ns"), "no nanoseconds"),
    ],
)
def test_types_that_csv_cannot_hold_are_refused_when_the_program_is_built(tmp_path, kind, text):
    with pytest.raises(ps.UsageError, match=text):
        ps.csv(tmp_path).check(pa.schema([("n", pa.int64()), ("x", kind)]))


def test_a_single_column_needs_a_text_for_nulls(tmp_path):
    """A null would be an empty line, and readers skip empty lines: the record would be lost."""
    one = pa.schema([("n", pa.int64())])
    with pytest.raises(ps.UsageError, match="readers skip empty lines"):
        ps.csv(tmp_path).check(one)
    with pytest.raises(ps.UsageError, match="readers skip empty lines"):
        ps.csv(tmp_path, partition_by="day").check(one.append(pa.field("day", pa.string())))
    ps.csv(tmp_path, null_value="NULL").check(one)
    ps.csv(tmp_path).check(pa.schema([pa.field("n", pa.int64(), nullable=False)]))


@pytest.mark.parametrize(
    "arguments", [{"delimiter": '"'}, {"delimiter": "ab"}, {"delimiter": "1"}, {"null_value": "a,b"}]
)
def test_options_that_make_files_nobody_can_read_are_refused(arguments):
    with pytest.raises(ps.UsageError, match=next(iter(arguments))):
        ps.csv("out", **arguments)


@pytest.mark.parametrize("make", [ps.json, ps.csv])
def test_a_compression_that_does_not_exist_is_refused(make):
    with pytest.raises(ps.UsageError, match="compression is 'zip'"):
        make("out", compression="zip")


# --- as sinks --------------------------------------------------------------------------------------------------------


def test_a_folder_is_for_one_sink_whatever_the_formats_are(tmp_path):
    def build(env):
        words = env.read(scripted([{"n": 1, "m": 2}], schema="n bigint, m bigint"))
        words.write(ps.json(tmp_path))
        words.write(ps.csv(tmp_path))

    with pytest.raises(ps.UsageError, match="one sink cannot be written by two steps"):
        run(build)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_every_record_is_there_once_whatever_dies(tmp_path, kind, seed):
    scripts = [[{"n": n + first, "shop": f"s{n % 3}"} for n in range(20)] for first in (0, 1000)]
    options = {"partition_by": "shop", "compression": "gzip"} if seed % 2 else {}
    sink = ps.json(tmp_path, **options) if kind == "json" else ps.csv(tmp_path, null_value="-", **options)
    lines = scripted(*scripts, schema="n bigint, shop string")
    run(lambda env: env.read(lines).write(sink), seed=seed, crashes=2)
    found = []
    for content in visible(sink).values():
        text = gzip.decompress(content) if seed % 2 else content
        if kind == "json":
            found += [row["n"] for row in objects(text)]
        else:
            found += [int(line.split(",")[0]) for line in text.decode().splitlines()[1:]]
    assert sorted(found) == sorted(row["n"] for script in scripts for row in script)
    assert list((tmp_path / "_penstock").rglob("*.json*")) == []


def test_the_examples_of_the_sinks_are_true():
    assert [doctest.testmod(module).failed for module in (json_sink, csv_sink)] == [0, 0]
