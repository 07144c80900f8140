"""The Python workers that slots run in: what a slot finds there, and what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import documented_sources as documented
import pyarrow as pa
import pytest
from bid_jobs import GatedBids, checkpointing, hot_auctions
from documented_sources import noted
from waiting import wait_for_it, wait_until

import penstock as ps
from penstock.core.job.events import JobState
from penstock.spark.jvm_watch import jvm_socket
from penstock.spark.slots import job_group
from penstock.spark.worker import SWITCH_S

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _by_value() -> Iterator[None]:
    """What is defined in the module goes to the workers by value: they cannot import it."""
    cloudpickle.register_pickle_by_value(documented)
    yield
    cloudpickle.unregister_pickle_by_value(documented)


# --- what a slot finds -----------------------------------------------------------------------------------------------


class LookAround:
    """Writes down, once, what there is in the process of a slot while it works."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # On the driver it is called with no rows, to see what it makes of its columns.
        if batch.num_rows and not self._file.exists():
            import polars as pl

            descriptor = jvm_socket()
            descriptors = [] if descriptor is None else [entry.name for entry in Path("/proc/self/fd").iterdir()]
            targets = {}
            for name in descriptors:
                with contextlib.suppress(OSError):
                    targets[name] = str(Path("/proc/self/fd", name).readlink())
            found = {
                "arrow": pa.cpu_count(),
                "polars": pl.thread_pool_size(),
                "switch_s": sys.getswitchinterval(),
                "jvm": targets.get(str(descriptor), "none"),
                "targets": list(targets.values()),
                "threads": [thread.name for thread in threading.enumerate()],
            }
            self._file.with_suffix(".part").write_text(json.dumps(found))
            self._file.with_suffix(".part").rename(self._file)
        return batch


SEVERAL = 3


@pytest.fixture
def several_threads(spark) -> Iterator[None]:
    """Arrow may have that many threads in every worker, however few cores there are, and may again after a slot."""

    def set_threads(batches):
        from pyspark import BarrierTaskContext

        for batch in batches:
            BarrierTaskContext.get().barrier()
            before = pa.cpu_count()
            pa.set_cpu_count(batch.column(0)[0].as_py())
            yield pa.RecordBatch.from_pydict({"before": [before]})

    def in_all_workers(threads: int) -> int:
        numbers = spark.range(0, 4, 1, 4).selectExpr(f"{threads} + 0 * id")
        (before,) = {row.before for row in numbers.mapInArrow(set_threads, "before long", barrier=True).collect()}
        return before

    before = in_all_workers(SEVERAL)
    yield
    assert in_all_workers(before) == SEVERAL


@pytest.mark.usefixtures("several_threads")
def test_a_slot_has_one_thread_in_every_pool_and_watches_the_socket_to_its_jvm(spark, tmp_path):
    env = ps.Environment(spark, parallelism=1, checkpointing=checkpointing(tmp_path))
    gate, file = tmp_path / "gate", tmp_path / "found.json"
    env.read(GatedBids(gate)).map_batches(LookAround(file)).write(ps.parquet(str(tmp_path / "out")))
    job = env.start("looks around")
    wait_for_it(file.exists, "the slot has looked around")
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)
    found = json.loads(file.read_text())
    assert (found["arrow"], found["polars"]) == (1, 1)
    assert found["switch_s"] == pytest.approx(SWITCH_S)
    # PySpark's daemon has the socket, and two copies of it: for what comes from the JVM, and for what goes there.
    assert found["jvm"].startswith("socket:")
    assert found["targets"].count(found["jvm"]) == 3
    assert "penstock-jvm-watch" in found["threads"]


# --- what is left ----------------------------------------------------------------------------------------------------


def workers(spark) -> dict[int, dict]:
    """What is there in each of Spark's four workers, by process id."""

    def look_around(batches):
        """What is there in a worker, as one row."""
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        # All at once, so that each is in a worker of its own.
        BarrierTaskContext.get().barrier()
        links = []
        for descriptor in Path("/proc/self/fd").iterdir():
            # One of them is that of the listing itself.
            with contextlib.suppress(OSError):
                links.append(str(descriptor.readlink()).partition(":")[0])
        found = {
            "pid": os.getpid(),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "descriptors": sorted(links),
            "contexts": sum(
                str(type(o).__module__).startswith("zmq") and type(o).__name__ == "Context" and not o.closed
                for o in gc.get_objects()
            ),
            "environment": sorted(name for name in os.environ if "THREADS" in name or "PENSTOCK" in name),
            "handlers": [
                str(signal.getsignal(number))
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)
            ],
            "arrow": pa.cpu_count(),
            "switch": sys.getswitchinterval(),
            "frozen": gc.get_freeze_count(),
        }
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    rows = spark.range(0, 4, 1, 4).mapInArrow(look_around, "found string", barrier=True).collect()
    found = [json.loads(row.found) for row in rows]
    return {worker.pop("pid"): worker for worker in found}


def bids(spark, place: Path, gate: Path) -> ps.Environment:
    env = ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing(place), network=ps.NetworkSettings(transport="tcp")
    )
    hot_auctions(env, GatedBids(gate), place / "out")
    return env


def data_source(spark, place: Path, gate: Path) -> ps.Environment:
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(place))
    source = ps.data_source(documented.Counter, options={"total": 3_000, "gate": gate}, mode="available-now")
    env.read(source).repartition("id").write(ps.data_sink(documented.Files, options={"path": place / "out"}))
    return env


def hosts_of_a_job(spark, place: Path, make) -> set[int]:
    """Run a job to its end; the process ids of its slots."""
    place.mkdir()
    gate = place / "gate"
    job = make(spark, place, gate).start("tidy")
    slots = {slot.pid for slot in wait_until(job, lambda v: v.checkpoints.counts.completed >= 1).slots}
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    return slots


@pytest.mark.parametrize("make", [bids, data_source])
def test_nothing_of_a_job_is_left_in_the_workers_that_spark_uses_again(spark, tmp_path, make):
    """But what a library opens for itself once in a process: an event loop of Polars', and that no second time."""
    before = workers(spark)
    first = hosts_of_a_job(spark, tmp_path / "first", make)
    once = workers(spark)
    hosts = first & set(before) & set(once)
    assert hosts, "Spark started other workers; the test saw nothing"
    for pid in hosts:
        # A worker is held against itself: it may have had a slot of another test, with other libraries.
        opened = Counter(once[pid]["descriptors"]) - Counter(before[pid]["descriptors"])
        assert set(opened) <= {"anon_inode"}
    second = hosts_of_a_job(spark, tmp_path / "second", make)
    twice = workers(spark)
    hosts = second & set(once) & set(twice)
    assert hosts, "Spark started other workers; the test saw nothing"
    for pid in hosts:
        opened = Counter(twice[pid].pop("descriptors")) - Counter(once[pid].pop("descriptors"))
        assert set(opened) <= (set() if pid in first else {"anon_inode"})
        assert twice[pid] == once[pid]
        if pid in before:
            assert without_descriptors(before[pid]) == twice[pid]


def without_descriptors(worker: dict) -> dict:
    return {name: found for name, found in worker.items() if name != "descriptors"}


class StuckWriter(documented.FilesWriter):
    """Says that it was called, and then waits for a file, whatever becomes of its iterator."""

    def __init__(self, options) -> None:
        super().__init__(options)
        self.gate = options["gate"]

    def write(self, iterator):
        documented.note(self.notes, "stuck", True)
        documented.wait_for(self.gate)
        return super().write(iterator)


class Stuck(documented.Files):
    def streamWriter(self, schema, overwrite):  # noqa: N802  # PySpark's name
        return StuckWriter(self.options)


class StuckReader(documented.CounterReader):
    """Gives a row and then waits for a file."""

    def read(self, partition):
        documented.note(self.notes, "stuck", True)
        for row in super().read(partition):
            yield row
            documented.wait_for(self.gate)


class StuckCounter(documented.Counter):
    def streamReader(self, schema):  # noqa: N802  # PySpark's name
        return StuckReader(self.options)


@pytest.mark.parametrize(("source", "sink"), [(StuckCounter, documented.Files), (documented.Counter, Stuck)])
def test_a_worker_in_which_a_data_source_blocks_is_not_used_again_and_the_job_ends_as_asked(
    spark, tmp_path, source, sink
):
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    notes.mkdir()
    # No checkpoint waits for what was written: that would keep the slot from leaving.
    env = ps.Environment(
        spark, parallelism=1, checkpointing=ps.Checkpointing(interval="1h", directory=str(tmp_path / "ckpt"))
    )
    options = {"path": tmp_path / "out", "notes": notes, "gate": gate}
    env.read(ps.data_source(source, options=options)).write(ps.data_sink(sink, options=options))
    job = env.start("stuck")
    wait_until(job, lambda _: noted(notes, "stuck"))
    (slot,) = job.view().slots
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)
    assert job.view().failures == ()
    # On a cluster Spark would try a task again that has failed.
    tracker = spark.sparkContext.statusTracker()
    (number,) = tracker.getJobIdsForGroup(job_group(job.id))
    wait_for_it(lambda: tracker.getJobInfo(number).status != "RUNNING", "Spark's job of the slot is over")
    assert tracker.getJobInfo(number).status == "SUCCEEDED"
    # There is one for each of Spark's cores: with those that Spark would use again, these are all.
    assert slot.pid not in workers(spark)
    wait_for_it(lambda: not Path(f"/proc/{slot.pid}").exists(), "the process has ended")
    gate.touch()
