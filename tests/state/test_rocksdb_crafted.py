"""Native snapshots that lie about what they hold: nothing is unpickled, and the error names the state."""

from __future__ import annotations

import json
import pickle
import struct

import pyarrow as pa
import pytest
from state_rig import Step, close_steps

import penstock as ps
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind
from penstock.runtime.master.pickled_state import refuse_pickles
from penstock.savepoints.catalog import SnapshotData
from penstock.state.rocksdb.native import MAGIC
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.snapshots import SnapshotReader, SnapshotWriter

UNPICKLED: list[str] = []
_PREFIX = struct.Struct(">4sHI")


def note(what: str) -> str:
    UNPICKLED.append(what)
    return what


class Bomb:
    """Tells when it is unpickled."""

    def __reduce__(self):
        return note, ("boom",)


class Objects:
    """What the attacker's program declares; its database is then said to hold something else."""

    thing = ps.value_state("thing", object)
    things = ps.list_state("things", object)
    by_thing = ps.map_state("by thing", key=object, value="bigint")
    to_thing = ps.map_state("to thing", key="string", value=object)


class Typed:
    """The same names, with types."""

    thing = ps.value_state("thing", "bigint")
    things = ps.list_state("things", "string")
    by_thing = ps.map_state("by thing", key="string", value="bigint")
    to_thing = ps.map_state("to thing", key="string", value="double")


class Nothing:
    """The program of one who has not declared anything yet."""


@pytest.fixture(autouse=True)
def _clean():
    UNPICKLED.clear()
    yield
    close_steps()


class Saved:
    """A snapshot in a folder."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.store = FileStore(folder)
        self._writer = SnapshotWriter(self.store, "", "step", 0)
        self._reader = SnapshotReader(self.store)

    def put(self, data):
        return self._writer.put(data)

    def put_shared(self, data, key):
        return self._writer.put(data)

    def get(self, file):
        return self._reader.get(file)

    def pieces(self, file):
        return self._reader.pieces(file)

    def metadata(self, files) -> CheckpointMetadata:
        operator = OperatorId("step")
        state = OperatorState(operator=operator, keyed=files, key_groups=(0, 127))
        snapshot = OperatorSnapshot(
            operator=operator, vertex=VertexId("step"), parallelism=1, max_parallelism=128, subtasks={0: state}
        )
        return CheckpointMetadata(
            job=JobId("job"),
            checkpoint=CheckpointId(7),
            timestamp=Instant(1),
            kind=SnapshotKind.SAVEPOINT,
            operators={operator: snapshot},
        )

    def changed(self, files, change):
        """The same files with another index."""
        data = self.get(files[0])
        magic, version, size = _PREFIX.unpack_from(data)
        assert magic == MAGIC
        index = json.loads(data[_PREFIX.size : _PREFIX.size + size])
        change(index)
        header = json.dumps(index).encode()
        small = data[_PREFIX.size + size :]
        return (self.put(_PREFIX.pack(magic, version, len(header)) + header + small), *files[1:])


def objects(folder):
    """What a job with objects saves."""
    saved = Saved(folder)
    step = Step("rocksdb", Objects, store=saved)
    for key in range(20):
        handles = step.at(key)
        handles["thing"].set(Bomb())
        handles["things"].add(Bomb())
        handles["by_thing"].set("x", 1)
        handles["to_thing"].set("x", Bomb())
    (files,) = step.save()
    assert len(files) > 1
    return saved, files


def typed_states():
    """What the index says about `Typed`."""
    saved = {}

    def keep(index):
        saved.update({entry["name"]: entry for entry in index["states"]})

    return saved, keep


def looked_at(saved, files) -> None:
    """What a start with `unpickle=False` does first."""
    refuse_pickles(saved.metadata(files), _NoPlan(), SnapshotReader(saved.store))


class _NoPlan:
    vertices = ()


def test_objects_in_a_native_snapshot_are_refused_with_the_step_and_not_unpickled(tmp_path):
    saved, files = objects(tmp_path)
    with pytest.raises(
        UsageError, match="savepoint 7 has pickled state: 'thing' of step, 'things' of step, 'by thing'"
    ):
        looked_at(saved, files)
    assert not UNPICKLED


def test_typed_state_in_a_native_snapshot_is_not_refused_and_comes_back(tmp_path):
    saved = Saved(tmp_path)
    step = Step("rocksdb", Typed, store=saved)
    step.at(3)["thing"].set(17)
    step.at(3)["to_thing"].set("x", 0.5)
    (files,) = step.save()
    looked_at(saved, files)
    again = Step("rocksdb", Typed, store=saved, restored=[files], parallelism=2)
    assert again.at(3)["thing"].get() == 17
    assert again.at(3)["to_thing"]["x"] == 0.5


def said_to_be_typed(folder):
    saved, files = objects(folder)
    typed, keep = typed_states()
    plain = Step("rocksdb", Typed, store=saved)
    plain.at(1)["thing"].set(1)
    (others,) = plain.save()
    saved.changed(others, keep)

    def lie(index):
        numbers = {entry["name"]: entry["number"] for entry in index["states"]}
        index["states"] = [{**entry, "number": numbers[name]} for name, entry in typed.items()]

    return saved, saved.changed(files, lie)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_index_that_says_typed_has_its_pickles_read_as_the_type_and_never_unpickled(tmp_path, parallelism):
    saved, files = said_to_be_typed(tmp_path)
    looked_at(saved, files)
    step = Step("rocksdb", Typed, store=saved, restored=[files], parallelism=parallelism)
    with pytest.raises(CorruptFile, match=r"an entry of state 'thing' cannot be read as value<int64>"):
        step.at(3)["thing"].get()
    with pytest.raises(CorruptFile, match=r"an entry of state 'things' cannot be read as list<string>"):
        step.at(3)["things"].get()
    for handle in (step.at(3)["by_thing"], step.at(3)["to_thing"]):
        with pytest.raises(CorruptFile, match="an entry of state"):
            list(handle.items())
    with pytest.raises(CorruptFile, match="an entry of state"):
        step.save(canonical=True)
    assert not UNPICKLED


@pytest.mark.parametrize("parallelism", [1, 3])
def test_state_that_the_program_has_as_objects_is_not_taken_from_an_index_that_says_typed(tmp_path, parallelism):
    saved, files = said_to_be_typed(tmp_path)
    with pytest.raises(UsageError, match=r"was .* when the snapshot was taken; the program declares"):
        Step("rocksdb", Objects, store=saved, restored=[files], parallelism=parallelism)
    assert not UNPICKLED


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("declares", [Objects, Nothing])
def test_rows_that_the_index_does_not_name_do_not_wait_for_a_state_with_their_number(tmp_path, parallelism, declares):
    saved, files = objects(tmp_path)
    files = saved.changed(files, lambda index: index.update(states=[]))
    looked_at(saved, files)
    with pytest.raises(
        CorruptFile,
        match=r"with rows of state number 16 in key group .*, which the index does not name",
    ):
        Step("rocksdb", declares, store=saved, restored=[files], parallelism=parallelism)
    assert not UNPICKLED


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda index: index["states"][1].update(name="thing"), "'thing' with number 17: another state"),
        (lambda index: index["states"][1].update(number=16), "'things' with number 16: another state"),
        (lambda index: index["states"][0].update(number=1), "'thing' with number 1: another state"),
        (lambda index: index["states"][0].update(number=1 << 16), "with number 65536: another state"),
        (lambda index: index["states"][0].update(kind="timers"), "'thing' of kind 'timers'"),
        (lambda index: index["states"][0].update(kind="broadcast"), "'thing' of kind 'broadcast'"),
        (lambda index: index.update(own_groups=[0, 200]), "key groups 0 to 200 of"),
        (lambda index: index.update(own_groups=[5, 4]), "key groups 5 to 4 of"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path, change, told):
    saved, files = objects(tmp_path)
    files = saved.changed(files, change)
    with pytest.raises(CorruptFile, match=told):
        looked_at(saved, files)
    with pytest.raises(CorruptFile, match=told):
        Step("rocksdb", Objects, store=saved, restored=[files])
    assert not UNPICKLED


def test_rows_of_key_groups_that_the_subtask_did_not_have_are_refused(tmp_path):
    saved, files = objects(tmp_path)
    files = saved.changed(files, lambda index: index.update(own_groups=[0, 3]))
    with pytest.raises(CorruptFile, match="which the index does not name"):
        Step("rocksdb", Objects, store=saved, restored=[files])


def test_a_database_whose_values_the_library_would_unpickle_by_itself_is_refused(tmp_path):
    """The library keeps a file beside its database with how values are to be read."""
    saved, files = objects(tmp_path)
    data = saved.get(files[0])
    _, _, size = _PREFIX.unpack_from(data)
    index, rest, place = json.loads(data[_PREFIX.size : _PREFIX.size + size]), b"", _PREFIX.size + size
    sizes = {}
    for name, length in index["small_files"]:
        content = data[place : place + length].replace(b'"raw_mode":true', b'"raw_mode":false')
        sizes[name], rest, place = len(content), rest + content, place + length
    index["small_files"] = list(sizes.items())
    header = json.dumps(index).encode()
    crafted = (saved.put(_PREFIX.pack(MAGIC, 1, len(header)) + header + rest), *files[1:])
    assert "rocksdict-config.json" in sizes
    with pytest.raises(CorruptFile, match="tells the database library to unpickle values"):
        looked_at(saved, crafted)
    with pytest.raises(CorruptFile, match="tells the database library to unpickle values"):
        Step("rocksdb", Objects, store=saved, restored=[crafted])
    assert not UNPICKLED


@pytest.mark.parametrize("name", ["rocksdict-config.json", "CURRENT", "x.sst", "../000008.sst", "LOG", ""])
def test_files_that_are_none_of_a_database_do_not_come_into_its_folder(tmp_path, name):
    saved, files = objects(tmp_path)
    files = saved.changed(files, lambda index: index.update(tables=[name, *index["tables"][1:]]))
    with pytest.raises(CorruptFile, match="names a file"):
        looked_at(saved, files)


def test_tools_show_objects_of_a_native_snapshot_without_unpickling_them(tmp_path):
    saved, files = objects(tmp_path)
    saved.store.write("_metadata", encode_metadata(saved.metadata(files)))
    found = SnapshotData(tmp_path)
    infos = {info.name: info for info in found.states("step")}
    assert sorted(infos) == ["by thing", "thing", "things", "to thing"]
    for name, info in infos.items():
        table = pa.concat_tables(found.tables("step", f"{info.kind}:{name}"))
        assert table.num_rows == 20
        pickles = [column for column in ("map_key", "value") if column in table.schema.names]
        values = [v for column in pickles for v in table.column(column).to_pylist() if isinstance(v, bytes)]
        assert values
        assert all(pickle.dumps(Bomb(), protocol=5) == v or v == pickle.dumps("x", protocol=5) for v in values)
    assert not UNPICKLED
