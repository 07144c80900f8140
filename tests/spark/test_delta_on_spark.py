"""Delta and Iceberg tables as sources and as sinks. Each needs jars and settings of its own, and so a Spark in a
process of its own. Spark fetches the jars, as it does for users; where it cannot have them the tests are skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import penstock

pytestmark = pytest.mark.slow

TIMEOUT_S = 600
SPARK = ".".join(pyspark.__version__.split(".")[:2])
PACKAGES = os.pathsep.join([str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[1] / "support")])

# A build is for one minor version of Spark. Those for 4.2 and 4.1 fail on 4.3, where classes have changed.
DELTA = {
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
ICEBERG = {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"}

BEGIN = """
import json, os, signal, sys
from pathlib import Path

import penstock as ps
from waiting import wait_until
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

packages, work = sys.argv[1], Path(sys.argv[2])
ROWS, FEEDS = 500, 4

def session(**settings):
    builder = SparkSession.builder.master("local[3]").config("spark.jars.packages", packages)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.warehouse.dir", str(work / "warehouse"))
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    print("Spark is up", flush=True)
    return made

def environment(spark):
    checkpointing = ps.Checkpointing(interval="300ms", directory=str(work / "ckpt"))
    restart = ps.fixed_delay(attempts=9, delay="50ms")
    return ps.Environment(spark, parallelism=2, checkpointing=checkpointing, restart=restart)

class Calls:
    # What a function was called with. It is called again with what it had written when it raised.
    def __init__(self, write):
        self.write = write
        self.made = []

    def __call__(self, frame, checkpoint):
        self.write(frame, checkpoint)
        self.made.append((checkpoint, frame.count()))
        if len(self.made) == 2:
            raise ValueError("the catalog was busy")

    def have_all(self):
        return sum(dict(self.made).values()) == ROWS * FEEDS

def frames(spark, feeds):
    return [spark.range(ROWS * feed, ROWS * feed + ROWS).coalesce(2) for feed in feeds]

def is_once(frame):
    return sorted(row.id for row in frame.select("id").collect()) == list(range(ROWS * FEEDS))

def run(env, feed, *sinks):
    # A worker is killed when the first records have been written; the rest of the source comes after that.
    job = env.start("tables")
    wait_until(job, lambda view: all(sink.made for sink in sinks))
    killed = job.view().slots[1].pid
    os.kill(killed, signal.SIGKILL)
    feed(range(2, FEEDS))
    view = wait_until(job, lambda view: all(sink.have_all() for sink in sinks))
    assert view.slots[1].pid != killed
    job.stop(savepoint=str(work / "saved"))
    return [len(sink.made) > len(dict(sink.made)) for sink in sinks]

def refusal(spark, name):
    env = environment(spark)
    env.from_dataframe(spark.range(3)).write(ps.table(name))
    try:
        env.start("refused")
    except ps.UsageError as error:
        return str(error).splitlines()[0]
"""

DELTA_PROGRAM = """
spark = session(
    spark__sql__extensions="io.delta.sql.DeltaSparkSessionExtension",
    spark__sql__catalog__spark_catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog",
    spark__databricks__delta__snapshotPartitions="1",
)

def append(frame, checkpoint):
    writer = frame.write.format("delta").mode("append")
    writer.option("txnAppId", "tables").option("txnVersion", checkpoint).save(str(work / "appended"))

def merge(frame, checkpoint):
    frame.createOrReplaceTempView("news")
    spark.sql("MERGE INTO merged USING news ON merged.id = news.id WHEN NOT MATCHED THEN INSERT *")

def feed(feeds):
    for frame in frames(spark, feeds):
        frame.write.format("delta").mode("append").save(str(work / "in"))

feed(range(2))
spark.sql("CREATE TABLE merged (id BIGINT) USING delta")
appended, merged = Calls(append), Calls(merge)
env = environment(spark)
stream = env.from_stream(
    spark.readStream.format("delta").option("maxFilesPerTrigger", 2).load(str(work / "in")), trigger="100ms"
)
stream.for_each_checkpoint(appended, name="append")
stream.for_each_checkpoint(merged, name="merge")
stream.write(ps.table("plain"))
repeated = run(env, feed, appended, merged)
print(json.dumps({
    "repeated": repeated,
    "appended": is_once(spark.read.format("delta").load(str(work / "appended"))),
    "merged": is_once(spark.table("merged")),
    "plain": is_once(spark.table("plain")),
    "refused": refusal(spark, "merged"),
}))
spark.stop()
"""

ICEBERG_PROGRAM = """
spark = session(
    spark__sql__extensions="org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    spark__sql__catalog__lake="org.apache.iceberg.spark.SparkCatalog",
    spark__sql__catalog__lake__type="hadoop",
    spark__sql__catalog__lake__warehouse=str(work / "lake"),
)

def replace(frame, checkpoint):
    marked = frame.withColumn("checkpoint", F.lit(checkpoint).cast("bigint"))
    marked.writeTo("lake.db.replaced").overwrite(F.col("checkpoint") == checkpoint)

def merge(frame, checkpoint):
    frame.createOrReplaceTempView("news")
    spark.sql("MERGE INTO lake.db.merged USING news ON merged.id = news.id WHEN NOT MATCHED THEN INSERT *")

def feed(feeds):
    for frame in frames(spark, feeds):
        frame.writeTo("lake.db.numbers").append()

spark.sql("CREATE TABLE lake.db.numbers (id BIGINT) USING iceberg")
spark.sql("CREATE TABLE lake.db.merged (id BIGINT) USING iceberg")
spark.sql("CREATE TABLE lake.db.replaced (id BIGINT, checkpoint BIGINT) USING iceberg PARTITIONED BY (checkpoint)")
feed(range(2))
replaced, merged = Calls(replace), Calls(merge)
env = environment(spark)
numbers = spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", 2).load("lake.db.numbers")
stream = env.from_stream(numbers, trigger="100ms")
stream.for_each_checkpoint(replaced, name="replace")
stream.for_each_checkpoint(merged, name="merge")
repeated = run(env, feed, replaced, merged)
print(json.dumps({
    "repeated": repeated,
    "replaced": is_once(spark.table("lake.db.replaced")),
    "merged": is_once(spark.table("lake.db.merged")),
    "refused": refusal(spark, "lake.db.merged"),
    "not_made": refusal(spark, "lake.db.fresh"),
    "tables": sorted(row.tableName for row in spark.sql("SHOW TABLES IN lake.db").collect()),
}))
spark.stop()
"""


def printed(program: str, builds: dict[str, str], work: Path) -> dict:
    """What the program printed last. Skips the test where its Spark cannot have the jars."""
    if SPARK not in builds:
        pytest.skip(f"no build for Spark {SPARK} was found; there are {', '.join(builds.values())}")
    try:
        ran = subprocess.run(
            [sys.executable, "-c", BEGIN + program, builds[SPARK], str(work)],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": PACKAGES},
            cwd=work,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        if b"Spark is up" not in (late.stdout or b""):
            pytest.skip(f"{builds[SPARK]} could not be fetched in {TIMEOUT_S} s")
        raise
    if "Spark is up" not in ran.stdout and "unresolved dependency" in ran.stdout + ran.stderr:
        pytest.skip(f"{builds[SPARK]} could not be fetched from Maven Central")
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_delta_tables_are_read_and_written_once_with_a_killed_worker_and_repeated_calls(tmp_path):
    """1. Each function raises after its second write, and is called again with the same id. 2. A worker is killed, and
    more rows come into the table that is read. 3. Appended under the id, or merged by key, each row is there once; so
    it is in a Parquet table, which Delta's catalog passes on to Spark's."""
    assert printed(DELTA_PROGRAM, DELTA, tmp_path) == {
        "repeated": [True, True],
        "appended": True,
        "merged": True,
        "plain": True,
        "refused": "table merged is of format delta, and only parquet can be written",
    }


def test_iceberg_tables_are_read_and_written_once_with_a_killed_worker_and_repeated_calls(tmp_path):
    """The same. What belongs to an id is overwritten; and a table that is not there is not made, as Iceberg would make
    one of its own."""
    found = printed(ICEBERG_PROGRAM, ICEBERG, tmp_path)
    assert found.pop("not_made").startswith("table lake.db.fresh does not exist, and would be made in catalog lake;")
    assert found == {
        "repeated": [True, True],
        "replaced": True,
        "merged": True,
        "refused": "table lake.db.merged is of format iceberg, and only parquet can be written",
        "tables": ["merged", "numbers", "replaced"],
    }
