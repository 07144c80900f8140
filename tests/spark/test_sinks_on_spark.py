"""What Spark reads from the JSON and CSV files of the sinks, and streams that are looked at on Spark."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.connector import WriterContext

pytestmark = pytest.mark.slow

FLAT = (
    "n bigint, small tinyint, f double, f32 float, s string, yes boolean, day date, at timestamp, local timestamp_ntz, "
    "money decimal(20, 2)"
)
MOMENT = datetime(2026, 7, 1, 12, 30, 0, 5, tzinfo=UTC)
ROWS = [
    (2**62, -128, math.nan, 0.1, 'a "word", \\ and \\"', True, date(1, 1, 1), MOMENT, None, Decimal("1.50")),
    (-1, 127, math.inf, 1e20, "", False, date(9999, 12, 31), MOMENT.replace(year=1900), None, Decimal("-0.01")),
    (None,) * 10,
    (0, 0, -math.inf, -0.0, " é\t'; \\", None, date(2026, 1, 1), MOMENT.replace(year=1), None, Decimal(10) ** 17),
    (1, 1, 1e-300, 3.4e38, "plain", True, None, MOMENT, MOMENT.replace(tzinfo=None), Decimal(0)),
]


def table(spark, schema, rows):
    """Records of a schema as the stream has them, made by Spark."""
    return spark.createDataFrame([tuple(row) for row in rows], schema).toArrow().combine_chunks().to_batches()[0]


def written(sink, batch):
    sink.check(batch.schema)
    sink.start("job")
    writer = sink.writer(WriterContext(job="job", subtask=0, parallelism=1, epoch=1))
    writer.write(batch)
    sink.commit(writer.prepare(1)())
    writer.write(batch)
    writer.prepare(2)()
    return sink.path


def as_text(rows):
    # NaN is not equal to itself.
    return sorted(repr(row) for row in rows)


@pytest.mark.parametrize(("kind", "compression"), [("json", "gzip"), ("csv", None)])
def test_spark_reads_the_rows_that_were_written(spark, tmp_path, kind, compression):
    batch = table(spark, FLAT, ROWS)
    if kind == "json":
        path = written(ps.json(tmp_path / "out", compression=compression), batch)
        read = spark.read.schema(FLAT).json(path)
    else:
        path = written(ps.csv(tmp_path / "out", compression=compression, null_value="NULL"), batch)
        read = spark.read.schema(FLAT).csv(path, header=True, nullValue="NULL")
    assert as_text(read.toArrow().to_pylist()) == as_text(batch.to_pylist())


def test_by_default_spark_takes_an_empty_text_in_csv_for_a_null_and_all_else_as_written(spark, tmp_path):
    batch = table(spark, FLAT, ROWS)
    read = spark.read.schema(FLAT).csv(written(ps.csv(tmp_path / "out"), batch), header=True)
    expected = [{**row, "s": row["s"] or None} for row in batch.to_pylist()]
    assert as_text(read.toArrow().to_pylist()) == as_text(expected)


def test_spark_reads_line_breaks_in_csv_with_its_option_for_them(spark, tmp_path):
    schema = "a string, b string"
    batch = table(spark, schema, [("one\ntwo", "x"), ("\r\n", '"'), ("a\rb", None)])
    path = written(ps.csv(tmp_path / "out"), batch)
    read = spark.read.schema(schema).csv(path, header=True, multiLine=True)
    assert as_text(read.toArrow().to_pylist()) == as_text(batch.to_pylist())


def test_spark_reads_nulls_of_a_single_column_by_their_text(spark, tmp_path):
    batch = table(spark, "n bigint", [(1,), (None,), (2,)])
    path = written(ps.csv(tmp_path / "out", null_value="NULL"), batch)
    read = spark.read.schema("n bigint").csv(path, header=True, nullValue="NULL")
    assert as_text(read.toArrow().to_pylist()) == as_text(batch.to_pylist())


def test_spark_reads_nested_json_bytes_and_folders_of_partitions(spark, tmp_path):
    schema = (
        "b binary, l array<timestamp>, x struct<f: double, m: map<string, decimal(9, 2)>>, deep array<array<string>>, "
        "day string"
    )
    rows = [
        (b"\x00\xff", [MOMENT, None], (math.nan, {"k": Decimal("1.25"), "none": None}), [["a"], [], None], "mon"),
        (b"", [], (1.5, {}), [], "tue"),
        (None, None, None, None, "mon"),
        (b"x", None, (None, None), [[None, 'q"']], "tue"),
    ]
    batch = table(spark, schema, rows)
    path = written(ps.json(tmp_path / "out", partition_by="day"), batch)
    read = spark.read.schema(schema).json(path)
    assert as_text(read.toArrow().to_pylist()) == as_text(batch.to_pylist())


def test_a_job_on_spark_writes_both_and_prints_on_the_driver(spark, tmp_path, capsys):
    env = ps.Environment(spark, parallelism=1)
    numbers = env.from_dataframe(spark.range(1000).selectExpr("id AS n", "timestamp_micros(id) AS at"))
    numbers.write(ps.json(tmp_path / "json"))
    numbers.write(ps.csv(tmp_path / "csv", compression="gzip"))
    numbers.where("n < 2").select("n").print(prefix="small")
    env.run("both")
    assert sorted(line for line in capsys.readouterr().out.splitlines() if ">" in line) == [
        "small> {n: 0}",
        "small> {n: 1}",
    ]
    for read in (
        spark.read.schema("n bigint, at timestamp").json(str(tmp_path / "json")),
        spark.read.schema("n bigint, at timestamp").csv(str(tmp_path / "csv"), header=True),
    ):
        found = read.toArrow()
        assert sorted(found["n"].to_pylist()) == list(range(1000))
        assert found["at"].cast(pa.int64()).to_pylist() == found["n"].to_pylist()


# --- on the driver ---------------------------------------------------------------------------------------------------


def files_below(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_stream_is_looked_at_and_collected_apart_from_the_program(spark, tmp_path, capsys):
    """1. Rows are looked at, in this process. 2. All are collected, by a job. 3. The other sink has got nothing, and
    the checkpoint directory has no file of it. 4. The program runs as if nothing had happened."""
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    env = ps.Environment(spark, parallelism=1, checkpointing=ps.Checkpointing(interval="1s", directory=directory))
    numbers = env.from_dataframe(spark.range(1000).selectExpr("id AS n", "id % 7 AS k"))
    kept = ps.collect()
    numbers.write(ps.parquet(tmp_path / "out"))
    large = numbers.where("n >= 990")
    large.write(kept)
    before = repr(env.plan())

    assert [row["n"] >= 990 for row in large.take(5)] == [True] * 5
    large.select("k").show(2)
    assert capsys.readouterr().out.splitlines()[:3] == ["+---+", "|  k|", "+---+"]
    assert sorted(row["n"] for row in large.collect()) == list(range(990, 1000))
    assert large.collect("spark").selectExpr("sum(n)").first()[0] == sum(range(990, 1000))

    assert repr(env.plan()) == before
    assert not (tmp_path / "out").exists()
    assert files_below(directory) == []
    env.run("numbers")
    assert sorted(row["n"] for row in kept.rows) == list(range(990, 1000))
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1000


def test_without_checkpointing_too_and_errors_are_told(spark):
    env = ps.Environment(spark, parallelism=1)
    numbers = env.from_dataframe(spark.range(100).selectExpr("id AS n"))
    assert sorted(row["n"] for row in numbers.collect()) == list(range(100))
    with pytest.raises(ps.JobFailed, match="collect keeps at most 10 rows"):
        numbers.collect(limit=10)
    assert len(numbers.take(3)) == 3
