"""Tests start dozens of JVMs, and most of them end within seconds: the settings that make such a JVM cheap.

A JVM spends its first seconds on reading and checking the classes of Spark, and on compiling code for a long life. So
the JVMs of tests compile quickly instead of well, and take the classes from an archive, if `make` has written the
archive. Without the archive tests run as well, and take longer. Benchmarks outside the tests know nothing of this.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMPILE_QUICKLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# An archive of other jars, or of another Java, is not used. There is no need to say so on the output of every JVM.
SILENT = "-Xlog:disable"

# What most tests have Spark do: rows through Python, expressions, files, a stream.
PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

folder = Path(sys.argv[1])
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.parallelize(range(4), 2).map(lambda number: number + 1).collect()
rows = spark.range(100).selectExpr("id", "id % 3 AS k", "CAST(id AS string) AS text", "timestamp_seconds(id) AS at")
rows.write.parquet(str(folder / "rows"))
read = spark.read.parquet(str(folder / "rows"))
read.groupBy("k").agg({"id": "sum", "text": "max"}).orderBy("k").collect()
read.join(read.selectExpr("id", "k AS other"), "id").toArrow()
read.mapInArrow(lambda batches: batches, read.schema).collect()
stream = spark.readStream.schema(read.schema).parquet(str(folder / "rows"))
written = stream.writeStream.foreachBatch(lambda batch, _: batch.collect()).trigger(availableNow=True)
written.option("checkpointLocation", str(folder / "progress")).start().awaitTermination()
spark.stop()
"""


def java() -> str | None:
    """The Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


def archive() -> Path | None:
    """Where the archive of this Java and this Spark is, or would be; None where there is no Java."""
    found = java()
    if found is None:
        return None
    binary = Path(found).resolve()
    # An environment has one archive by whatever link its interpreter is called.
    environment = Path(sys.prefix).resolve()
    made_from = (str(environment), str(binary), str(binary.stat().st_mtime_ns), importlib.metadata.version("pyspark"))
    return environment / f"spark-classes-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:12]}.jsa"


def options() -> str:
    """What a JVM is started with."""
    kept = archive()
    shared = "" if kept is None or not kept.exists() else f" -XX:SharedArchiveFile={kept}"
    return f"{COMPILE_QUICKLY} {SILENT}{shared}"


def use_cheap_jvms() -> None:
    """Whatever this process and its children start of Spark is cheap to start from now on.

    Executors have a setting instead of a variable.
    """
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"):
        given = os.environ.get(name, "")
        if COMPILE_QUICKLY not in given:
            os.environ[name] = f"{given} {options()}".strip()


def write_archive() -> None:
    """Run Spark once, and keep the classes that it needed. Tests run without the archive, if that fails."""
    kept = archive()
    if kept is None or kept.exists():
        return
    for old in kept.parent.glob("spark-classes-*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
        written = kept.with_suffix(f".{os.getpid()}")
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"{COMPILE_QUICKLY} {SILENT} -XX:ArchiveClassesAtExit={written}",
        }
        command = [sys.executable, "-c", PROGRAM, folder]
        done = subprocess.run(command, env=environment, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode or not written.exists():
            sys.stderr.write(f"no archive of Spark's classes was written, tests take longer\n{done.stderr[-2000:]}\n")
            written.unlink(missing_ok=True)
            return
        written.rename(kept)


if __name__ == "__main__":
    write_archive()
