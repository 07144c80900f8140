"""Jobs that start from savepoints that no job has taken as they are: changed ones, and ones made of tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from table_rows import TableRows
from threaded_jobs import with_splits

import penstock as ps
from penstock.api.connector import End, Pause, Source, SourceReader
from penstock.api.program import Program
from penstock.api.restoring import restore
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import Instant, OperatorId
from penstock.core.job.events import JobState
from penstock.runtime.master.driver import SnapshotRequest
from penstock.runtime.master.starting import starting_point
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.rows import GivenState
from penstock.savepoints.writing import Draft
from penstock.settings import CheckpointSettings, JobSettings
from penstock.spark.savepoints import SavepointWriter
from penstock.storage.files import FileStore

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
BY_USER = pa.schema([pa.field("user", pa.string())])
USERS = 7
ROWS = 70


class Reader(SourceReader):
    """Counts, one row at a time; holds the last ones back until the gate opens."""

    def __init__(self, at: int, gate: Path) -> None:
        self._at = at
        self._gate = gate

    def poll(self, max_rows: int, now_ms: int):
        if self._at >= ROWS:
            return End()
        if self._at >= ROWS // 2 and not self._gate.exists():
            return Pause(1)
        self._at += 1
        return pa.record_batch({"user": [f"u{self._at % USERS}"], "n": [self._at]}, schema=SCHEMA)

    def snapshot(self) -> list[bytes]:
        return [json.dumps(self._at).encode()]


class Empty(SourceReader):
    """Has no split."""

    def poll(self, max_rows: int, now_ms: int):
        return End()

    def snapshot(self) -> list[bytes]:
        return []


class Rows(Source):
    """One split of rows."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        return [b"0"]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        return Reader(json.loads(splits[0]), self._gate) if splits else Empty()


class Count(ps.KeyedFunction):
    """How many rows a user had."""

    seen = ps.value_state("seen", "bigint", default=0)
    names = ps.list_state("names", "string")

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        return {"user": row["user"], "n": self.seen.get(), "names": len(self.names.get())}


SETTINGS = JobSettings(parallelism=2, max_parallelism=32, checkpoint=CheckpointSettings(interval_ms=20))


def plan_of(out: Path, gate: Path, settings: JobSettings = SETTINGS, *, name: str = "counts"):
    program = Program(settings)
    counted = program.read(Rows(gate), name="rows").key_by("user")
    counted.process(Count(), schema="user string, n bigint, names bigint", name=name).write(parquet(str(out)))
    return program.plan()


def last_counts(out: Path) -> dict[str, tuple[int, int]]:
    rows = pa.concat_tables([pq.read_table(file) for file in sorted(out.glob("part-*.parquet"))]).to_pylist()
    return {
        user: max((r["n"], r["names"]) for r in rows if r["user"] == user) for user in sorted({r["user"] for r in rows})
    }


def given(spec, rows):
    return GivenState(spec=spec, keys=BY_USER, rows=TableRows(pa.Table.from_pylist(rows), BY_USER, 32))


def test_a_job_starts_from_state_that_was_made_of_tables(threaded_job, tmp_path):
    gate, out = tmp_path / "gate", tmp_path / "out"
    gate.touch()
    made = Draft(max_parallelism=32, parallelism=3)
    made = made.with_keyed(
        OperatorId("counts"), given(Count.seen.spec, [{"user": f"u{n}", "value": 1_000 * n} for n in range(USERS)])
    )
    names = [{"user": "u1", "value": "a"}, {"user": "u1", "value": "b"}]
    made = made.with_keyed(OperatorId("counts"), given(Count.names.spec, names))
    path = made.write(tmp_path / "made", now=Instant(0))
    point = starting_point(FileStore(path), restore(path), plan_of(out, gate), SETTINGS)
    assert "counts" not in point.fresh
    job = threaded_job(with_splits(point.plan), SETTINGS, started_from=point.record)
    assert job.run() is JobState.FINISHED, job.driver.view().failures
    each = ROWS // USERS
    assert last_counts(out) == {f"u{n}": (1_000 * n + each, 2 if n == 1 else 0) for n in range(USERS)}


def test_a_job_goes_on_from_its_savepoint_with_a_state_changed_and_another_name(threaded_job, tmp_path):
    gate, out, answers = tmp_path / "gate", tmp_path / "out", []

    def stop(running):
        if not answers and running.driver.view().checkpoints.counts.completed >= 3:
            answers.append(None)
            running.driver.request(
                SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved")), answers.append
            )

    first = threaded_job(with_splits(plan_of(out, gate)), SETTINGS, job="first")
    assert first.run(stop) is JobState.FINISHED, first.driver.view().failures
    first.close()
    (saved,) = (tmp_path / "saved").iterdir()
    data = SnapshotData(saved)
    rows = [row for table in data.tables("counts", "seen") for row in table.to_pylist()]
    before = {row["user"]: row["value"] for row in rows}
    changed = [{"user": row["user"], "value": row["value"] + 500} for row in rows]
    made = Draft(base=data, max_parallelism=32, parallelism=2).with_keyed(
        OperatorId("counts"), given(Count.seen.spec, changed)
    )
    path = made.with_id(OperatorId("counts"), OperatorId("totals")).write(tmp_path / "changed", now=Instant(0))

    gate.touch()
    again, wider = tmp_path / "again", replace(SETTINGS, parallelism=3)
    plan = plan_of(again, gate, wider, name="totals")
    point = starting_point(FileStore(path), restore(path, drop=["rows.to-parquet"]), plan, wider)
    second = threaded_job(point.plan, wider, job="second", started_from=point.record)
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    each = ROWS // USERS
    assert sum(before.values()) < ROWS
    assert {user: n for user, (n, _) in last_counts(again).items()} == dict.fromkeys(before, each + 500)


class Marked(ps.KeyedFunction):
    """Has one state that is the same in all subtasks."""

    first = ps.broadcast_state("first", key="string", value="bigint")

    def on_row(self, row, context):
        self.first["rate"] = 7
        return {"user": row["user"], "subtask": context.subtask, "first": 0, "second": 0}


class MarkedTwice(ps.KeyedFunction):
    """Has another one besides, which nobody ever writes."""

    first = ps.broadcast_state("first", key="string", value="bigint")
    second = ps.broadcast_state("second", key="string", value="bigint")

    def on_row(self, row, context):
        found = {"first": self.first.get("rate", -1), "second": self.second.get("limit", -1)}
        return {"user": row["user"], "subtask": context.subtask, **found}


def marked_plan(function, out: Path, gate: Path, settings: JobSettings):
    program = Program(settings)
    rows = program.read(Rows(gate), name="rows").key_by("user")
    schema = "user string, subtask int, first bigint, second bigint"
    rows.process(function, schema=schema, name="marks").write(parquet(str(out)))
    return program.plan()


def test_a_second_broadcast_state_that_was_added_to_a_savepoint_is_in_every_subtask(threaded_job, tmp_path):
    gate, answers = tmp_path / "gate", []

    def stop(running):
        if not answers and running.driver.view().checkpoints.counts.completed >= 3:
            answers.append(None)
            running.driver.request(
                SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved")), answers.append
            )

    first = threaded_job(with_splits(marked_plan(Marked(), tmp_path / "out", gate, SETTINGS)), SETTINGS, job="first")
    assert first.run(stop) is JobState.FINISHED, first.driver.view().failures
    first.close()
    (saved,) = (tmp_path / "saved").iterdir()
    draft = Draft(base=SnapshotData(saved), max_parallelism=32, parallelism=2)
    path = SavepointWriter(draft).with_operator_state("marks", MarkedTwice.second, {"limit": 9}).write(tmp_path / "two")

    gate.touch()
    again, wider = tmp_path / "again", replace(SETTINGS, parallelism=3)
    plan = marked_plan(MarkedTwice(), again, gate, wider)
    point = starting_point(FileStore(path), restore(path), plan, wider)
    second = threaded_job(point.plan, wider, job="second", started_from=point.record)
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    rows = [row for file in again.glob("part-*.parquet") for row in pq.read_table(file).to_pylist()]
    assert {row["subtask"] for row in rows} == {0, 1, 2}
    assert {(row["first"], row["second"]) for row in rows} == {(7, 9)}
