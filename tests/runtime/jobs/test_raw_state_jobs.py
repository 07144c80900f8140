"""A job with raw state stops with a savepoint, and goes on from it with more subtasks and with fewer."""

from __future__ import annotations

import json
import struct
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from json_splits import SplitReader, SplitSource

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.api.steps import KeyedProcessStep, ProcessStep, ReadStep, WriteStep
from penstock.cli.state import state
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import Instant, OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, MatchingRules, restored_from
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.runtime.master.driver import SnapshotRequest
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.comparison import compare
from penstock.savepoints.writing import Draft
from penstock.settings import CheckpointSettings, JobSettings, Retention, StateSettings
from penstock.storage.files import FileStore
from penstock.storage.restoring import find_snapshot
from penstock.storage.verification import verify_savepoint

COUNTED = struct.Struct(">qq")
SPLITS, ROWS, KEYS, GROUPS = 4, 300, 50, 32
SCHEMA = pa.schema([("split", pa.int64()), ("n", pa.int64())])


class Reader(SplitReader):
    """Numbers from 0 on, split by split in turn. Stops half way until the gate opens."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        split = self._splits.pop(0)
        self._splits.append(split)
        end = ROWS if self._gate.exists() else ROWS // 2
        rows = min(max_rows, 20, end - split["at"])
        if rows <= 0:
            return Pause(1)
        numbers = range(split["at"], split["at"] + rows)
        split["at"] += rows
        if split["at"] >= ROWS:
            self._splits.remove(split)
        return pa.record_batch({"split": [split["number"]] * rows, "n": list(numbers)}, schema=SCHEMA)


def stop_into(folder, answers: list):
    """Stop with a savepoint after the first checkpoint."""

    def each_turn(running):
        if not answers and running.driver.view().checkpoints.counts.completed >= 2:
            answers.append(None)
            running.driver.request(SnapshotRequest(kind=RequestKind.STOP, target=str(folder)), answers.append)

    return each_turn


def start_from(folder) -> CompletedCheckpoint:
    found = find_snapshot(FileStore(folder), str(folder))
    return restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=found.metadata_size,
        claim=Claim.NO_CLAIM,
        retention=Retention.KEEP,
        rules=MatchingRules(),
    )


class Keyed(ps.KeyedFunction):
    """Counts by key, in attributes."""

    counts = ps.raw_keyed_state("counts")

    def open(self, context):
        self.by_group = {group: Counter(dict(COUNTED.iter_unpack(data))) for group, data in self.counts.items()}

    def on_row(self, row, context):
        self.by_group.setdefault(context.key_group, Counter())[context.key] += 1

    def on_snapshot(self, checkpoint):
        for group, counts in self.by_group.items():
            self.counts.set(group, b"".join(COUNTED.pack(*found) for found in counts.items()))

    def on_end(self, context):
        return ({"split": key, "n": n} for counts in self.by_group.values() for key, n in counts.items())


class Counting(ps.ProcessFunction):
    """Counts all rows, in an attribute; what several subtasks counted is added up by whoever is given it."""

    counted = ps.raw_split_list_state("counted")

    def open(self, context):
        self.n = sum(int(part) for part in self.counted.get())

    def on_row(self, row, context):
        self.n += 1
        return {"split": row["split"], "n": row["n"] % KEYS}

    def on_snapshot(self, checkpoint):
        self.counted.set([b"%d" % self.n])

    def on_end(self, context):
        return {"split": -1, "n": self.n}


def plan_of(out, gate, parallelism: int) -> Plan:
    source = SplitSource(SCHEMA, [{"number": i, "at": 0} for i in range(SPLITS)], Reader, gate)
    steps = [
        ("source", ReadStep(source=source, splits=tuple(source.splits(parallelism))), ()),
        (
            "counting",
            ProcessStep(function=Counting(), schema=SCHEMA),
            (Input(node=0, partitioning=Partitioning.REBALANCE),),
        ),
        (
            "keyed",
            KeyedProcessStep(function=Keyed(), keys=("n",), key_schema=pa.schema([("n", pa.int64())]), schema=SCHEMA),
            (Input(node=1, partitioning=Partitioning.HASH, keys=("n",)),),
        ),
        ("sink", WriteStep(sink=parquet(str(out)), schema=SCHEMA), (Input(node=2),)),
    ]
    nodes = tuple(
        Node(number=i, operator=OperatorId(name), name=name, step=step, inputs=come, is_source=not i)
        for i, (name, step, come) in enumerate(steps)
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=GROUPS)


def chosen(parallelism, backend, tmp_path) -> JobSettings:
    return JobSettings(
        parallelism=parallelism,
        checkpoint=CheckpointSettings(interval_ms=30, retention=Retention.KEEP, inline_threshold_bytes=0),
        state=StateSettings(backend=backend, local_directory=str(tmp_path / "local")),
    )


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_raw_state_follows_its_key_groups_to_another_parallelism(threaded_job, tmp_path, backend):
    gate, out = tmp_path / "gate", tmp_path / "out"
    record, path = None, None
    for number, parallelism in enumerate((2, 3)):
        answers: list = []
        job = threaded_job(
            plan_of(out, gate, parallelism),
            chosen(parallelism, backend, tmp_path),
            job=f"job-{number}",
            started_from=record,
        )
        assert job.run(stop_into(tmp_path / f"saved-{number}", answers)) is JobState.FINISHED, (
            job.driver.view().failures
        )
        job.close()
        path = answers[1].location
        found = SnapshotData(path)
        (info,) = found.states("keyed")
        assert (info.kind, info.type, info.is_raw) == ("raw-keyed", "raw", True)
        assert info.size_bytes == KEYS * COUNTED.size
        (lists,) = found.states("counting")
        assert (lists.kind, lists.type, lists.rows) == ("split-list", "raw", parallelism)
        record = start_from(tmp_path / path)
    gate.touch()
    last = threaded_job(plan_of(out, gate, 1), chosen(1, backend, tmp_path), job="last", started_from=record)
    assert last.run() is JobState.FINISHED, last.driver.view().failures
    table = pa.concat_tables([pq.read_table(f) for f in sorted(out.glob("part-*.parquet"))])
    rows = dict(zip(table["split"].to_pylist(), table["n"].to_pylist(), strict=True))
    # The rows that were counted, and for each subtask of the last job one with a count, all by key.
    assert sum(rows.values()) == SPLITS * ROWS + 1
    assert all(rows[key] in (SPLITS * ROWS // KEYS, SPLITS * ROWS // KEYS + 1) for key in range(KEYS))
    assert SPLITS * ROWS in rows, "the row with the count came to the step by key as a key"


def saved(threaded_job, tmp_path) -> str:
    gate, out, answers = tmp_path / "gate", tmp_path / "out", []
    job = threaded_job(plan_of(out, gate, 2), chosen(2, "memory", tmp_path), job="first")
    assert job.run(stop_into(tmp_path / "saved", answers)) is JobState.FINISHED, job.driver.view().failures
    return str(answers[1].location)


def test_tools_show_raw_state_without_interpreting_it(threaded_job, tmp_path, monkeypatch):
    path = saved(threaded_job, tmp_path)
    monkeypatch.setattr("penstock.cli.state_output.unpickled", lambda *given, **named: pytest.fail("it was unpickled"))
    for chosen_state in (("keyed", "counts"), ("counting", "counted")):
        shown = CliRunner().invoke(state, ["show", path, *chosen_state, "--unpickle", "--limit", "3"])
        assert shown.exit_code == 0, shown.output
        assert "<raw, " in shown.output
        out = tmp_path / f"{chosen_state[0]}.json"
        exported = CliRunner().invoke(state, ["export", path, *chosen_state, str(out), "--unpickle"])
        assert exported.exit_code == 0, exported.output
        assert json.loads(out.read_text().splitlines()[0])["value"]
    listed = json.loads(CliRunner().invoke(state, ["list", path, "--json"]).output)
    types = {(s["name"], s["kind"], s["type"]) for o in listed["operators"] for s in o["states"] if o["id"] != "source"}
    assert types == {("counts", "raw-keyed", "raw"), ("counted", "split-list", "raw")}
    report = verify_savepoint(FileStore(path), path)
    assert not report.problems
    assert [snapshot.problems for snapshot in report.snapshots] == [()]


def test_a_savepoint_that_is_written_again_has_its_raw_state(threaded_job, tmp_path):
    path = saved(threaded_job, tmp_path)
    base = SnapshotData(path)
    again = Draft(base=base, max_parallelism=GROUPS, parallelism=2).write(tmp_path / "again", now=Instant(1))
    for difference in compare(base, SnapshotData(again)):
        assert not difference.differs
    (same,) = compare(base, SnapshotData(again), operator="keyed")
    assert same.same > 0
    copied = SnapshotData(again).metadata
    assert all(str(tmp_path / "again") in file.path for file in copied.files)
