"""State as DataFrames on a real Spark: read, changed, made anew, and a job that starts from it."""

from __future__ import annotations

import pickle
import sys
from decimal import Decimal

import cloudpickle
import pytest
from golden_content import KEYS, expected
from golden_snapshots import CHECKPOINT_FOLDER, SAVEPOINT
from pyspark.sql import functions as sql

import penstock as ps
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.comparison import compare
from penstock.storage.files import FileStore
from penstock.storage.verification import verify_savepoint

# What is defined here goes to the workers by value: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def golden(spark):
    return ps.read_savepoint(spark, SAVEPOINT)


def check(path):
    report = verify_savepoint(FileStore(path), "it")
    assert report.is_fine, report.all_problems
    return SnapshotData(path)


def test_every_state_is_a_dataframe(golden):
    assert (golden.kind, golden.checkpoint, golden.job) == ("Savepoint", 7, "job-1")
    states = [(o.id, info) for o in golden.operators() for info in golden.states(o.id)]
    for operator, info in states:
        frame = golden.state(operator, f"{info.kind}:{info.name}")
        assert frame.columns == [column.partition(":")[0] for column in info.columns]
    for kind in sorted({info.kind for _, info in states}):
        operator, info = next(found for found in states if found[1].kind == kind)
        assert golden.state(operator, f"{kind}:{info.name}").count() == info.rows, info
    prices = {row["k"]: row["value"] for row in golden.state("every", "price").collect()}
    assert prices == {key: expected(key)["price"] for key in KEYS}
    parts = golden.state("lists", "split").orderBy("subtask", "part").collect()
    assert [pickle.loads(row["value"]) for row in parts] == ["a", "b", "c"]


def test_it_is_read_in_tasks_a_file_each(golden):
    assert golden.state("every", "big").rdd.getNumPartitions() == 2
    assert golden.state("every", "big").where("value % 2 = 0").count() == sum((key or 0) % 2 == 0 for key in KEYS)


def test_what_was_in_flight_is_a_dataframe(spark):
    found = ps.read_savepoint(spark, CHECKPOINT_FOLDER)
    (edge,) = found.edges()
    rows = found.in_flight(edge.edge, "k bigint, text string").orderBy("k").collect()
    assert [(row["side"], row["k"], row["text"]) for row in rows] == [
        ("input", 1, "eins"),
        ("input", 2, None),
        ("output", 3, "drei"),
    ]


def test_states_are_changed_with_what_spark_can_do(golden, tmp_path):
    scores = golden.state("every", "scores").withColumn("value", sql.col("value") * 2)
    windows = golden.state("windows", "windows").where("k > 3")
    splits = golden.state("lists", "split").where("subtask = 0")
    changed = (
        golden.with_state("every", "scores", scores)
        .with_state("every", "events", golden.state("every", "events").drop("key_group"))
        .with_state("windows", "windows", windows)
        .with_state("lists", "split", splits)
        .without("pairs")
        .renamed("every", "each")
    )
    data = check(changed.write(tmp_path / "new"))
    found = {
        (row["k"], row["map_key"]): (row["value"], row["written_ms"])
        for table in data.tables("each", "scores")
        for row in table.to_pylist()
    }
    assert found == {(k, i): (2 * v, 1_000_000) for k in KEYS for i, v in expected(k)["scores"].items()}
    differing = {(s.operator, s.state) for s in compare(SnapshotData(SAVEPOINT), data) if s.differs}
    assert ("windows", "windows") in differing
    assert ("lists", "split") in differing
    assert not {name for operator, name in differing if operator in ("lists", "source")} - {"split"}
    old, new = SnapshotData(SAVEPOINT), data
    events = [[t.to_pylist() for t in d.tables(o, "events")] for d, o in ((old, "every"), (new, "each"))]
    assert sorted(map(str, events[0][0] + events[0][1])) == sorted(map(str, events[1][0] + events[1][1]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g: g.with_state("every", "big", g.state("every", "big").drop("k")), "no column 'k'"),
        (lambda g: g.with_state("every", "big", g.state("every", "big").withColumn("x", sql.lit(1))), "column 'x'"),
        (lambda g: g.with_state("every", "none", g.state("every", "big")), "no state 'none'"),
        (lambda g: g.without("nobody"), "no operator 'nobody'"),
        (lambda g: g.writer().with_keyed_state("a", ps.union_list_state("u", int), None, keys=["k"]), "a keyed state"),
        (lambda g: ps.new_savepoint().without("a"), "has no operators"),
    ],
)
def test_what_cannot_be_is_refused_at_once(golden, change, text):
    with pytest.raises(ps.UsageError, match=text):
        change(golden)


class Count(ps.KeyedFunction):
    seen = ps.value_state("seen", "bigint", default=0)
    pages = ps.map_state("pages", key="string", value="bigint")
    known = ps.broadcast_state("known", key="string", value="string")

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        yield {
            "user": context.key,
            "n": self.seen.get(),
            "pages": sum(self.pages.values()),
            "known": self.known.get("who"),
        }

    def on_timer(self, timer, context):
        yield {"user": context.key, "n": -1, "pages": timer.time_us, "known": None}


@pytest.mark.parametrize(("kind", "user"), [("string", str), ("decimal(20, 0)", Decimal)], ids=["string", "decimal"])
def test_a_job_on_spark_starts_from_state_that_was_made_of_dataframes(spark, tmp_path, kind, user):
    users = spark.range(100).selectExpr(f"CAST(id AS {kind}) AS user", "id * 1000 AS value")
    pages = spark.range(100).selectExpr(f"CAST(id % 10 AS {kind}) AS user", "concat('p', id) AS map_key", "1L AS value")
    timers = spark.sql(f"SELECT CAST(3 AS {kind}) AS user, 'event-time' AS timer, 7L AS time_us")
    path = (
        ps.new_savepoint(max_parallelism=64, parallelism=3)
        .with_keyed_state("count users", Count.seen, users, keys=["user"])
        .with_keyed_state("count users", Count.pages, pages, keys=f"user {kind}")
        .with_timers("count users", timers, keys=["user"])
        .with_operator_state("count users", Count.known, {"who": "me"})
        .write(tmp_path / "made")
    )
    check(path)
    made = ps.read_savepoint(spark, path).state("count users", "seen")
    assert sorted(map(tuple, made.select("user", "value").collect())) == sorted(map(tuple, users.collect()))
    env = ps.Environment(
        spark, parallelism=2, checkpointing=ps.Checkpointing(interval="1s", directory=tmp_path / "checkpoints")
    )
    clicks = spark.range(50).selectExpr(f"CAST(id % 5 AS {kind}) AS user", "timestamp_micros(id * 1000000) AS ts")
    counted = env.from_dataframe(clicks, name="clicks").watermark("ts", delay="1s").key_by("user")
    schema = f"user {kind}, n bigint, pages bigint, known string"
    counted.process(Count(), schema=schema, name="count users").write(ps.parquet(str(tmp_path / "out")))
    assert "restored" in str(env.restore_plan(path))
    env.run("counting", restore=path)
    out = spark.read.parquet(str(tmp_path / "out"))
    last = {
        row["user"]: (row["n"], row["p"], row["w"])
        for row in out.where("n > 0")
        .groupBy("user")
        .agg(sql.max("n").alias("n"), sql.max("pages").alias("p"), sql.max("known").alias("w"))
        .collect()
    }
    assert last == {user(n): (1_000 * n + 10, 10, "me") for n in range(5)}
    assert [(row["user"], row["pages"]) for row in out.where("n = -1").collect()] == [(user(3), 7)]
