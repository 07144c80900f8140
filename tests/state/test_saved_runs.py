"""Runs are written once, and later checkpoints refer to them: which files a snapshot has, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.state.runs import LiveRun, Run, RunFiles, RunSnapshot, encode_index, is_runs

ONE, TWO, THREE, FOUR = (CheckpointId(number) for number in range(1, 5))
CHECKPOINT, SAVEPOINT, FULL = CheckpointOptions(), CheckpointOptions(savepoint=True), CheckpointOptions(full=True)


class Files:
    """A place for state that remembers what was written."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.written: list[str] = []

    def put(self, data: Any) -> StateFile:
        return self._put(data, f"own-{len(self.contents)}", None)

    def put_shared(self, data: Any, key: str) -> StateFile:
        assert key not in self.contents
        self.written.append(key)
        return self._put(data, key, key)

    def _put(self, data: Any, path: str, key: str | None) -> StateFile:
        content = bytes(memoryview(data))
        self.contents[path] = content
        checksum = xxhash.xxh3_64_intdigest(content)
        return StateFile(path=path, size=len(content), checksum=checksum, shared_key=key)


def run(*numbers: int, block: int = 2) -> Run:
    return Run(pa.table({"n": pa.array(numbers, pa.int64())}).to_batches(max_chunksize=block))


def files() -> RunFiles:
    return RunFiles("name", groups=8, own_groups=(0, 7))


def numbers(found: RunSnapshot, place: Files) -> list[list[int]]:
    """What is left of each run."""
    left = []
    for number, (file, entry, gone) in enumerate(zip(found.files, found.index.runs, found.gone, strict=True)):
        blocks = found.blocks(number, pa.py_buffer(place.contents[str(file.path)]), block_rows=2)
        every = pa.Table.from_batches(blocks).column("n").to_numpy()
        kept = np.ones(entry.rows, bool) if gone is None else ~gone
        left.append(every[entry.first :][kept[entry.first :]].tolist())
    return left


def read(handles: tuple[StateFile, ...], place: Files) -> RunSnapshot:
    index = place.contents[str(handles[0].path)]
    assert is_runs(index)
    return RunSnapshot(index, handles, what="the state")


def test_a_run_is_written_once_and_what_it_has_lost_stands_in_the_index():
    place, kept, one, two = Files(), files(), run(1, 2, 3), run(4, 5)
    handles = kept.snapshot(ONE, [LiveRun(one), LiveRun(two)], CHECKPOINT)(place, [b"rest"])
    assert place.written == ["name-1-0", "name-1-1"]
    kept.completed(ONE)
    gone = np.array([False, True])
    three = run(6)
    again = kept.snapshot(TWO, [LiveRun(one, 1), LiveRun(two, gone=gone), LiveRun(three)], CHECKPOINT)(place, [])
    assert place.written[2:] == ["name-2-2"]
    assert [file.placeholder for file in again] == [False, True, True, False]
    assert [file.path for file in again[1:3]] == [file.path for file in handles[1:]]
    found = read(again, place)
    assert numbers(found, place) == [[2, 3], [4], [6]]
    assert found.sections == []
    assert read(handles, place).sections == [b"rest"]


def test_only_files_of_completed_checkpoints_are_referred_to():
    place, kept, one = Files(), files(), run(1)
    kept.snapshot(ONE, [LiveRun(one)], CHECKPOINT)(place, [])
    kept.snapshot(TWO, [LiveRun(one)], CHECKPOINT)(place, [])
    assert place.written == ["name-1-0", "name-2-0"]
    kept.aborted(ONE)
    kept.snapshot(THREE, [LiveRun(one)], CHECKPOINT)(place, [])
    assert place.written[-1] == "name-3-0"
    kept.completed(TWO)
    handles = kept.snapshot(FOUR, [LiveRun(one)], CHECKPOINT)(place, [])
    assert handles[1].path == "name-2-0"
    assert handles[1].placeholder


def test_a_checkpoint_that_is_written_after_its_abort_leaves_nothing_to_refer_to():
    place, kept, one = Files(), files(), run(1)
    late = kept.snapshot(ONE, [LiveRun(one)], CHECKPOINT)
    kept.aborted(ONE)
    late(place, [])
    kept.snapshot(TWO, [], CHECKPOINT)(place, [])
    kept.completed(TWO)
    assert not kept.snapshot(THREE, [LiveRun(one)], CHECKPOINT)(place, [])[1].placeholder


@pytest.mark.parametrize("options", [SAVEPOINT, FULL])
def test_what_must_hold_alone_refers_to_no_earlier_file(options: CheckpointOptions):
    place, kept, one = Files(), files(), run(1)
    kept.snapshot(ONE, [LiveRun(one)], CHECKPOINT)(place, [])
    kept.completed(ONE)
    assert not kept.snapshot(TWO, [LiveRun(one)], options)(place, [])[1].placeholder
    kept.completed(TWO)
    assert kept.snapshot(THREE, [LiveRun(one)], CHECKPOINT)(place, [])[1].placeholder


def test_a_restored_run_is_referred_to_unless_its_file_belongs_to_a_savepoint():
    place, kept, shared, own = Files(), files(), run(1), run(2)
    file = StateFile(path="x", size=1, checksum=1, shared_key="x")
    kept.adopt(shared, file)
    kept.adopt(own, msgspec.structs.replace(file, shared_key=None))
    handles = kept.snapshot(ONE, [LiveRun(shared), LiveRun(own)], CHECKPOINT)(place, [])
    assert [handle.placeholder for handle in handles] == [False, True, False]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=20), max_size=4), st.data())
def test_every_index_is_read_as_it_was_written(marks: list[list[bool]], data: Any):
    place, kept, live = Files(), files(), []
    for gone in marks:
        first = data.draw(st.integers(0, len(gone)))
        live.append(LiveRun(run(*range(len(gone))), first, np.array(gone) if any(gone) else None))
    handles = kept.snapshot(ONE, live, CHECKPOINT)(place, [b"a", b"", b"bc"])
    found = read(handles, place)
    assert found.sections == [b"a", b"", b"bc"]
    expected = [
        [n for n, lost in enumerate(gone) if not lost and n >= one.first] for gone, one in zip(marks, live, strict=True)
    ]
    assert numbers(found, place) == expected


HANDLE = StateFile(path="index", size=1, checksum=1)
RUN = StateFile(path="run", size=1, checksum=1)


def index(**changes: Any) -> bytes:
    data = encode_index([LiveRun(run(1, 2, 3))], [b"section"], groups=8, own_groups=(0, 7))
    size = struct.unpack_from(">I", data, 6)[0]
    header = msgspec.json.encode(msgspec.json.decode(data[10 : 10 + size]) | changes)
    return data[:6] + struct.pack(">I", len(header)) + header + data[10 + size :]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (index()[:5], "is cut short"),
        (index()[:-1], "bytes behind its header instead of"),
        (index() + b"x", "bytes behind its header instead of"),
        (index()[:4] + b"\0\x09" + index()[6:], "format version 9"),
        (index(groups="x"), "header that cannot be read"),
        (index(own_groups=[3, 8]), "impossible key groups"),
        (index(runs=[]), "names 0 runs"),
        (index(runs=[{"rows": 3, "first": 4}]), "has lost more rows"),
        (index(runs=[{"rows": 3, "first": -1}]), "has lost more rows"),
        (index(runs=[{"rows": 3, "marks": True}]), "bytes behind its header instead of"),
        (index(sections=[9, -2]), "less than no bytes"),
    ],
)
def test_an_index_that_nobody_wrote_is_refused(data: bytes, text: str):
    with pytest.raises(CorruptFile, match=text):
        RunSnapshot(data, [HANDLE, RUN], what="the state")


def test_a_file_that_is_named_twice_is_refused():
    with pytest.raises(CorruptFile, match="twice"):
        RunSnapshot(index(), [HANDLE, HANDLE], what="the state")


@pytest.mark.parametrize("data", [b"", b"no arrow", run(1, 2).encoded(), pa.ipc.new_stream])
def test_a_run_that_is_no_run_of_the_index_is_refused(data: Any):
    if callable(data):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with data(sink, pa.schema([("n", pa.int64())]), options=options) as stream:
            stream.write_batch(pa.record_batch({"n": [0] * 3}))
        data = sink.getvalue()
    found = RunSnapshot(index(), [HANDLE, RUN], what="the state")
    with pytest.raises(CorruptFile):
        found.blocks(0, pa.py_buffer(data), block_rows=2)
