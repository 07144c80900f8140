"""What the golden snapshot in RocksDB's own format holds: a checkpoint that builds on one before it.

It also has what sinks have prepared.

`files()` writes it anew with the code of today; what lies in `tests/golden` was written once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash
from golden_content import (
    DIRECTORY,
    GROUPS,
    JOB,
    KEYS,
    PARALLELISM,
    Every,
    Tree,
    completed,
    fill,
)
from state_rig import EVENT_TIME, PROCESSING_TIME, Step

from penstock.core.graph import OperatorLabel
from penstock.core.ids import CheckpointId, Instant, OperatorId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    CompletedCheckpoint,
    OperatorSnapshot,
    SharedFile,
    SnapshotKind,
)
from penstock.plan.key_groups import range_of
from penstock.storage.completed import FileCompletedStore, checkpoint_ids
from penstock.storage.metadata import decode_metadata, encode_metadata

NATIVE_CHECKPOINT = CheckpointId(2)
GONE = tuple(range(100, 110))
"""Keys that the first checkpoint has, and the second has not."""
COMMITTABLES = {
    0: (msgspec.msgpack.encode([(1, b"one"), (2, b"two")]),),
    1: (msgspec.msgpack.encode((2, b"three")),),
}
"""What the sink of each subtask has prepared: all in one part, or one piece by itself."""


def saved_twice() -> tuple[Step, list[list[StateFile]]]:
    """A step on RocksDB with every kind of state, and the files of its second checkpoint, by subtask."""
    step = Step("rocksdb", Every, parallelism=PARALLELISM)
    fill(step, (*KEYS[:6], *GONE))
    first = [{file.shared_key: file for file in files} for files in step.save()]
    for key in GONE:
        for handle in step.at(key).values():
            handle.clear()
        for kind in (EVENT_TIME, PROCESSING_TIME):
            for time_us in step.timers(key).of_key(kind):
                step.timers(key).remove(kind, time_us)
    fill(step, KEYS[6:])
    second = step.save()
    return step, [
        [own[file.shared_key] if file.placeholder else file for file in files]
        for own, files in zip(first, second, strict=True)
    ]


def files() -> dict[str, bytes]:
    """Every golden file, by its path, as today's code writes it."""
    step, saved = saved_twice()
    tree, folder = Tree(), layout.job_folder(JOB)
    own = layout.checkpoint_folder(folder, NATIVE_CHECKPOINT)
    subtasks, shared = {}, {}
    for subtask, found in enumerate(saved):
        handles = []
        for file in found:
            data = step.store.get(file)
            name = f"{own}/every-{subtask}-0"
            if file.shared_key is not None:
                name = f"{folder}/shared/{xxhash.xxh3_64_hexdigest(data)}"
            tree.write(name, data)
            handles.append(msgspec.structs.replace(file, path=name))
            if file.shared_key is not None:
                shared[name] = SharedFile(file=handles[-1], created_by=CheckpointId(1))
        subtasks[subtask] = OperatorState(
            operator=OperatorId("every"),
            keyed=tuple(handles),
            key_groups=range_of(subtask, parallelism=PARALLELISM, groups=GROUPS),
        )
    step.close()
    sinks = {
        subtask: OperatorState(operator=OperatorId("sink"), split_lists={"committables": parts})
        for subtask, parts in COMMITTABLES.items()
    }
    metadata = _metadata({"every": subtasks, "sink": sinks})
    content = encode_metadata(metadata)
    tree.write(layout.metadata_file(folder, NATIVE_CHECKPOINT), content)
    record: CompletedCheckpoint = msgspec.structs.replace(
        completed(metadata, len(content)),
        checkpoint=NATIVE_CHECKPOINT,
        location=own,
        path=layout.metadata_file(folder, NATIVE_CHECKPOINT),
        shared_files=tuple(shared.values()),
    )
    FileCompletedStore(tree, folder).record(NATIVE_CHECKPOINT, msgspec.msgpack.encode(record))
    checkpoint_ids(tree, folder).advance(NATIVE_CHECKPOINT + 1)
    return {f"{DIRECTORY}/{path}": data for path, data in tree.contents.items()}


def decode(path: Path) -> CheckpointMetadata:
    """The metadata of a golden checkpoint, with the paths that are written in it."""
    return decode_metadata(str(path), path.read_bytes())


def _metadata(subtasks: dict[str, dict[int, OperatorState]]) -> CheckpointMetadata:
    kinds = {"every": "process", "sink": "write"}
    return CheckpointMetadata(
        job=JOB,
        checkpoint=NATIVE_CHECKPOINT,
        timestamp=Instant(1_790_000_000_000),
        kind=SnapshotKind.CHECKPOINT,
        operators={
            OperatorId(name): OperatorSnapshot(
                operator=OperatorId(name),
                vertex=VertexId(name),
                parallelism=PARALLELISM,
                max_parallelism=GROUPS,
                subtasks=found,
                label=OperatorLabel(name=name.title(), kind=kinds[name]),
            )
            for name, found in subtasks.items()
        },
    )
