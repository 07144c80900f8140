"""A back end without a job, for `penstock bench state`. The benchmark calls the back end as an operator would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.ids import CheckpointId
from penstock.settings import StateSettings

if TYPE_CHECKING:
    from penstock.core.messages import StateFile
    from penstock.state.backend import KeyedBackend, StateWriter

GROUPS = 128
CHUNK = 100_000
"""How many keys are handled at a time."""


class CountedWriter:
    """Writes state files to a store and counts the bytes of all written files. Files that a snapshot only refers to are
    not counted. Implements `StateWriter`."""

    def __init__(self, inner: StateWriter) -> None:
        self._inner = inner
        self.bytes = 0

    def put(self, data: Any) -> StateFile:
        """As the inner writer."""
        self.bytes += memoryview(data).nbytes
        return self._inner.put(data)

    def put_shared(self, data: Any, key: str) -> StateFile:
        """As the inner writer."""
        self.bytes += memoryview(data).nbytes
        return self._inner.put_shared(data, key)


class Keyspace:
    """The value state `v` of keys 0, 1, 2, … on one back end that owns all key groups."""

    def __init__(self, kind: str, work: Path, *, value_type: Any, settings: StateSettings | None = None) -> None:
        import pyarrow as pa

        from penstock.api.state import StateKind, StateSpec
        from penstock.core.ids import Instant
        from penstock.runtime.task.partitioning import key_groups
        from penstock.state.backend import StateContext
        from penstock.state.backends import make_backend
        from penstock.storage.files import FileStore

        self._schema = pa.schema([pa.field("k", pa.int64())])
        self._store = FileStore(str(work / "checkpoints"))
        context = StateContext(
            operator="bench",
            name="bench",
            subtask=0,
            keys=self._schema,
            groups=GROUPS,
            own_groups=(0, GROUPS - 1),
            groups_of=lambda batch: key_groups(batch, ["k"], GROUPS),
            specs=(StateSpec(name="v", kind=StateKind.VALUE, type=value_type),),
            now=lambda: Instant(0),
            settings=replace(settings or StateSettings(), backend=kind, local_directory=str(work)),
        )
        self.backend: KeyedBackend = make_backend(context)
        self._checkpoints = 0

    def put(self, keys: Any, values: Any) -> None:
        """Set the values of some keys; both are arrays."""
        import pyarrow as pa

        from penstock.runtime.task.partitioning import key_groups

        set_key, put = self.backend.set_key, self.backend.value_table("v").put
        for first in range(0, len(keys), CHUNK):
            some = keys[first : first + CHUNK]
            groups = key_groups(pa.RecordBatch.from_arrays([pa.array(some)], schema=self._schema), ["k"], GROUPS)
            found = zip(some.tolist(), groups.tolist(), values[first : first + CHUNK], strict=True)
            for key, group, value in found:
                set_key(key, group)
                put(value)

    def read(self, keys: Any) -> int:
        """Read the values of some keys, given as an array. Returns how many keys have a value."""
        import pyarrow as pa

        from penstock.runtime.task.partitioning import key_groups

        set_key, get = self.backend.set_key, self.backend.value_table("v").get
        groups = key_groups(pa.RecordBatch.from_arrays([pa.array(keys)], schema=self._schema), ["k"], GROUPS)
        found = 0
        for key, group in zip(keys.tolist(), groups.tolist(), strict=True):
            set_key(key, group)
            found += get() is not None
        return found

    def checkpoint(self) -> tuple[tuple[StateFile, ...], int]:
        """Take a checkpoint, which completes at once. Returns its files, and how many bytes were uploaded."""
        result = self.begin_checkpoint()()
        self.backend.completed(CheckpointId(self._checkpoints))
        return result

    def begin_checkpoint(self) -> Callable[[], tuple[tuple[StateFile, ...], int]]:
        """Do the synchronous part of a checkpoint. Returns the asynchronous part, which any thread may run."""
        from penstock.core.elements import CheckpointOptions
        from penstock.storage.snapshots import SnapshotWriter

        self._checkpoints += 1
        checkpoint = CheckpointId(self._checkpoints)
        plain = SnapshotWriter(self._store, f"chk-{checkpoint}", "bench", 0, shared_folder="shared")
        writer = CountedWriter(plain)
        write = self.backend.snapshot(checkpoint, CheckpointOptions())
        return lambda: (write(writer), writer.bytes)

    def restore(self, files: tuple[StateFile, ...]) -> None:
        """Restore the files of a checkpoint that another keyspace took."""
        from penstock.storage.snapshots import SnapshotReader

        self.backend.restore([files], SnapshotReader(self._store))


@contextmanager
def keyspace(kind: str, work: Path, value_type: Any, *, settings: StateSettings | None = None) -> Iterator[Keyspace]:
    """A keyspace with its files below `work`. The back end is closed when the block ends. `settings` limits the memory
    of the back end."""
    made = Keyspace(kind, work, value_type=value_type, settings=settings)
    try:
        yield made
    finally:
        made.backend.close()
