"""Snapshots that RocksDB wrote in its own format, and in canonical pieces, as tables."""

from __future__ import annotations

import golden_content as content
import pyarrow as pa
import pytest
from state_rig import EVENT_TIME, GROUPS, Step, close_steps
from table_rows import TableRows

import penstock as ps
from penstock.core.graph import OperatorLabel
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind
from penstock.plan.key_groups import range_of
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.comparison import compare
from penstock.savepoints.rows import GivenState
from penstock.savepoints.writing import Draft
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.snapshots import SnapshotWriter


class Mixed:
    count = ps.value_state("count", "bigint")
    tags = ps.list_state("tags", "string")
    scores = ps.map_state("scores", key="string", value="double", ttl=ps.ttl("1s"))
    thing = ps.value_state("thing", object)


def saved(kind, folder, **options):
    """A savepoint of a step on a back end, as its own format or not."""
    store = FileStore(folder)

    class Files(content.Tree):
        def put(self, data):
            return writer.put(data)

        def put_shared(self, data, key):
            return writer.put(data)

    writer = SnapshotWriter(store, "", "step", 100)
    step = Step(kind, Mixed, parallelism=2, store=Files())
    for key in range(50):
        handles = step.at(key)
        handles["count"].set(key)
        handles["tags"].extend(["b", "a", f"{key}"])
        handles["scores"].set("x", key / 2)
        handles["thing"].set({key})
        step.timers(key).add(EVENT_TIME, key)
    files = step.save(**options)
    operator = OperatorId("step")
    subtasks = {
        i: OperatorState(operator=operator, keyed=found, key_groups=range_of(i, parallelism=2, groups=GROUPS))
        for i, found in enumerate(files)
    }
    snapshot = OperatorSnapshot(
        operator=operator,
        vertex=VertexId("step"),
        parallelism=2,
        max_parallelism=GROUPS,
        subtasks=subtasks,
        label=OperatorLabel(name="a step"),
    )
    metadata = CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(1),
        timestamp=Instant(0),
        kind=SnapshotKind.SAVEPOINT,
        operators={operator: snapshot},
    )
    store.write("_metadata", encode_metadata(metadata))
    return SnapshotData(folder), files


@pytest.fixture
def memory(tmp_path):
    return saved("memory", tmp_path / "memory")[0]


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_steps()


@pytest.mark.parametrize("options", [{}, {"canonical": True}], ids=["native", "canonical"])
def test_state_of_rocksdb_reads_like_that_of_the_memory(options, memory, tmp_path):
    found, files = saved("rocksdb", tmp_path / "rocks", **options)
    assert (len(files[0]) > 1) == (not options)
    assert {(info.name, info.kind, info.rows, info.columns) for info in found.states("step")} == {
        (info.name, info.kind, info.rows, info.columns) for info in memory.states("step")
    }
    different = [state for state in compare(memory, found) if state.differs]
    assert different == []


def test_a_state_of_rocksdb_is_changed_and_copied(memory, tmp_path):
    found, _ = saved("rocksdb", tmp_path / "rocks")
    made = Draft(base=found, max_parallelism=GROUPS, parallelism=2)
    copied = SnapshotData(made.write(tmp_path / "copy", now=Instant(0)))
    assert not any(state.differs for state in compare(memory, copied))
    keys = pa.schema([pa.field("k", pa.int64())])
    rows = TableRows(pa.table({"k": [1, 2], "value": [10, 20]}), keys, GROUPS)
    made = made.with_keyed(OperatorId("step"), GivenState(spec=Mixed.count.spec, keys=keys, rows=rows))
    changed = SnapshotData(made.write(tmp_path / "changed", now=Instant(0)))
    (state,) = [state for state in compare(memory, changed) if state.differs]
    assert (state.state, state.changed, state.removed) == ("count", 2, 48)
