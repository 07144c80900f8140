"""A snapshot is found, checked against the program, and put on the job's record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.api.restoring import restore
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.assign import NOTHING_RESTORED
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    Claim,
    CompletedCheckpoint,
    OperatorSnapshot,
    SnapshotKind,
)
from penstock.core.recovery.restore_plan import OperatorFate
from penstock.core.recovery.tenure import Tenure
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Node, build_plan
from penstock.runtime.master.starting import record_start, restore_newest, starting_point
from penstock.settings import JobSettings
from penstock.storage.completed import FileCompletedStore
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.records import FileRecords
from penstock.storage.tenure import take_over


def plan_of(*names: str, parallelism: int = 2, max_parallelism: int | None = None):
    nodes = tuple(
        Node(number=i, operator=OperatorId(name), name=name, step=object(), is_source=True)
        for i, name in enumerate(names)
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=max_parallelism)


def write_savepoint(folder: Path, *names: str, groups: int = 16) -> None:
    operators = {}
    for name in names:
        state = OperatorState(
            operator=OperatorId(name),
            keyed=(StateFile(path=f"{name}-0", size=5, checksum=0),),
            key_groups=(0, groups - 1),
        )
        operators[OperatorId(name)] = OperatorSnapshot(
            operator=OperatorId(name),
            vertex=VertexId(name),
            parallelism=1,
            max_parallelism=groups,
            subtasks={0: state},
        )
    metadata = CheckpointMetadata(
        job=JobId("old"),
        checkpoint=CheckpointId(9),
        timestamp=Instant(0),
        kind=SnapshotKind.SAVEPOINT,
        operators=operators,
    )
    FileStore(folder).write("_metadata", encode_metadata(metadata))


def test_the_plan_takes_over_the_key_groups_of_the_snapshot(tmp_path):
    write_savepoint(tmp_path, "count", groups=16)
    point = starting_point(FileStore(tmp_path), restore(tmp_path), plan_of("count"), JobSettings(parallelism=2))
    assert point.plan.max_parallelism == 16
    assert point.plan.vertex(VertexId("count")).parallelism == 2
    assert [share.key_groups for share in point.restore_plan.operators[0].shares] == [(0, 7), (8, 15)]


def test_key_groups_that_were_asked_for_must_be_those_of_the_snapshot(tmp_path):
    write_savepoint(tmp_path, "count", groups=16)
    settings = JobSettings(parallelism=2, max_parallelism=64)
    with pytest.raises(UsageError, match="max_parallelism 16, the job has 64"):
        starting_point(FileStore(tmp_path), restore(tmp_path), plan_of("count", max_parallelism=64), settings)


def test_sources_that_the_snapshot_does_not_know_or_that_are_dropped_begin_at_their_beginning(tmp_path):
    write_savepoint(tmp_path, "count", "top")
    chosen = restore(tmp_path, drop=["top"])
    point = starting_point(FileStore(tmp_path), chosen, plan_of("count", "top", "new"), JobSettings(parallelism=2))
    assert point.fresh == ("top", "new")
    fates = {o.operator: o.fate for o in point.restore_plan.operators}
    assert fates == {"count": OperatorFate.RESTORED, "top": OperatorFate.DROPPED, "new": OperatorFate.FRESH}


def test_state_that_nobody_wants_is_refused_before_anything_starts(tmp_path):
    write_savepoint(tmp_path, "count")
    with pytest.raises(UsageError, match="state of 1 step that the program does not have: count"):
        starting_point(FileStore(tmp_path), restore(tmp_path), plan_of("new"), JobSettings(parallelism=2))


def test_another_driver_would_find_the_snapshot_and_how_it_is_owned(tmp_path):
    write_savepoint(tmp_path / "save", "count")
    chosen = restore(tmp_path / "save", claim="claim", unmatched="ignore")
    point = starting_point(FileStore(tmp_path), chosen, plan_of("count"), JobSettings(parallelism=2))
    store = FileStore(tmp_path / "root")
    folder = layout.job_folder(JobId("new"))
    record_start(FileRecords(store, folder, term=None), point)
    (entry,) = FileCompletedStore(store, layout.job_folder(JobId("new"))).load()
    found = msgspec.msgpack.decode(entry.data, type=CompletedCheckpoint)
    assert found == point.record
    assert (found.checkpoint, found.claim, found.rules) == (9, Claim.CLAIM, chosen.rules)
    assert found.private_files == (f"{tmp_path}/save/count-0",)
    assert take_over(store, layout.job_folder(JobId("new"))).completed == (point.record,)


def test_an_attempt_starts_from_the_newest_record_when_doubtful_ones_are_withdrawn(tmp_path):
    write_savepoint(tmp_path / "save", "count")
    plan = plan_of("count")
    point = starting_point(FileStore(tmp_path), restore(tmp_path / "save"), plan, JobSettings(parallelism=2))
    store, folder = FileStore(tmp_path / "root"), layout.job_folder(JobId("new"))
    pointers = FileCompletedStore(store, folder)
    pointers.record(CheckpointId(30), b"in doubt")
    records = FileRecords(store, folder, term=None)
    graph = checkpoint_graph(point.plan)
    assert (
        restore_newest(store, records, point.record, (CheckpointId(30),), graph, Tenure()).tasks
        == point.restore_plan.tasks
    )
    assert pointers.load() == []
    assert restore_newest(store, records, None, (), graph, Tenure()) == NOTHING_RESTORED
