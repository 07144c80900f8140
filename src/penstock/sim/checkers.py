"""What is checked in a world, while it runs and when it is over.

Checkers look from outside: at the messages on the network, the files on the disk, the rows in the external system. They
ask no driver what it thinks it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from penstock.core.ids import CheckpointId, JobId
from penstock.core.messages import Deploy, NotifyComplete, Run, TriggerCheckpoint
from penstock.core.recovery import layout
from penstock.sim.disk import Disk, is_below
from penstock.sim.external import ExternalSystem, Transaction
from penstock.sim.jobs import Row, Shape, Workload, rows_of
from penstock.sim.rules import Rule
from penstock.sim.world import World
from penstock.storage.metadata import decode_metadata
from penstock.wire.codec import decode_to_slot
from penstock.wire.frames import Kind, unpack


class Ledger:
    """Which checkpoints have become durable, by what lies on the disk."""

    def __init__(self, world: World, disk: Disk, job: JobId) -> None:
        self._world = world
        self._disk = disk
        self._job = layout.job_folder(job)
        self.durable: dict[CheckpointId, bytes] = {}
        """The metadata of each, as it was when its pointer was written."""
        self.on_durable: Callable[[], None] = lambda: None
        disk.taps.append(self._on_write)

    def contains(self, token: bytes) -> bool:
        """Whether a durable checkpoint has this committable in its state."""
        return any(token in metadata for metadata in reversed(self.durable.values()))

    def retained(self, count: int) -> list[CheckpointId]:
        """Those that a job which keeps `count` of them must have kept."""
        if not self._disk.errors:
            return sorted(self.durable)[-count:]
        # The master may not have known for certain what it had recorded, and kept more, or an older one.
        return [c for c in sorted(self.durable) if layout.metadata_file(self._job, c) in self._disk.files]

    def _on_write(self, path: str, _data: bytes) -> None:
        checkpoint = layout.number_of(layout.completed_folder(self._job), path)
        if checkpoint is None:
            return
        newest = max(self.durable, default=CheckpointId(0))
        if checkpoint < newest:
            self._world.violate(Rule.CHECKPOINT_IDS, f"checkpoint {checkpoint} completed after checkpoint {newest}")
        metadata = self._disk.files.get(layout.metadata_file(self._job, checkpoint))
        if metadata is None:
            self._world.violate(Rule.RESTORABLE, f"checkpoint {checkpoint} was recorded without its metadata")
            return
        self._world.note("disk", f"checkpoint {checkpoint} is durable")
        self.durable[checkpoint] = metadata
        self.on_durable()
        for missing in missing_files(self._disk.files, metadata):
            self._world.violate(Rule.RESTORABLE, f"checkpoint {checkpoint} was recorded without its file {missing}")


class MessageChecker:
    """What the master tells slots about checkpoints."""

    def __init__(self, world: World, ledger: Ledger, *, master: str) -> None:
        self._world = world
        self._ledger = ledger
        self._master = master
        self._newest = CheckpointId(0)
        self._newest_epoch = 0
        self.attempts = 0
        """The highest epoch that was deployed."""
        self.restores = 0
        """How many attempts began from a checkpoint."""
        self.ever_ran = False

    def __call__(self, sender: str, _receiver: str, frames: list[bytes]) -> None:
        """Look at one message."""
        if sender != self._master:
            return
        for header, payload in unpack(frames):
            if header.kind is not Kind.CONTROL:
                continue
            match decode_to_slot(payload):
                case TriggerCheckpoint(checkpoint=checkpoint, epoch=epoch):
                    self._triggered(checkpoint, epoch)
                case Deploy(epoch=epoch, restored_checkpoint=restored):
                    if epoch > self.attempts:
                        self.attempts = epoch
                        self.restores += restored is not None
                case Run():
                    self.ever_ran = True
                case NotifyComplete(checkpoint=checkpoint):
                    if checkpoint not in self._ledger.durable:
                        self._world.violate(
                            Rule.EARLY_COMMIT, f"checkpoint {checkpoint} was announced before it was durable"
                        )
                case _:
                    pass

    def _triggered(self, checkpoint: CheckpointId, epoch: int) -> None:
        # The same id goes to several tasks, but never to tasks of two attempts, and never again after a newer one.
        if checkpoint < self._newest or (checkpoint == self._newest and epoch != self._newest_epoch):
            self._world.violate(
                Rule.CHECKPOINT_IDS,
                f"checkpoint {checkpoint} of epoch {epoch} was triggered after {self._newest} of {self._newest_epoch}",
            )
        self._newest, self._newest_epoch = max(checkpoint, self._newest), epoch


class CommitChecker:
    """Whether what becomes visible was allowed to."""

    def __init__(self, world: World, ledger: Ledger, messages: MessageChecker, external: ExternalSystem) -> None:
        self._world = world
        self._ledger = ledger
        self._messages = messages
        external.on_commit = self._committed
        external.on_refused = self._refused

    def _committed(self, transaction: Transaction) -> None:
        if self._ledger.contains(transaction.token):
            return
        if transaction.epoch < self._messages.attempts:
            self._world.violate(
                Rule.FENCING,
                f"{transaction.name} was committed, is in no durable checkpoint, and belongs to epoch "
                f"{transaction.epoch} while epoch {self._messages.attempts} runs",
            )
        else:
            self._world.violate(Rule.EARLY_COMMIT, f"{transaction.name} was committed and is in no durable checkpoint")

    def _refused(self, transaction: Transaction) -> None:
        self._world.violate(Rule.FENCING, f"{transaction.name} was to be committed, but a later attempt has dropped it")


def check_output(world: World, committed: Iterable[Transaction], expected: Counter[Row], *, complete: bool) -> None:
    """Compare the visible rows with what they must be; with `complete` none may be missing."""
    actual: Counter[Row] = Counter()
    for transaction in committed:
        for batch in transaction.batches:
            actual.update(rows_of(batch))
    surplus, missing = actual - expected, expected - actual
    if surplus:
        known = sum(1 for row in surplus if row in expected)
        world.violate(
            Rule.EXACTLY_ONCE,
            f"{surplus.total()} rows too many ({known} kinds are repeated, {len(surplus) - known} are wrong), "
            f"such as {_first(surplus)}",
        )
    if missing and complete:
        world.violate(Rule.EXACTLY_ONCE, f"{missing.total()} rows are missing, such as {_first(missing)}")


def check_order(world: World, committed: Iterable[Transaction], workload: Workload) -> None:
    """The rows of a key must be visible in the order of the input."""
    if workload.shape is not Shape.KEYED:
        return
    last: dict[int, int] = {}
    seen: dict[tuple[int, int], None] = {}
    for transaction in committed:
        for batch in transaction.batches:
            for key, seq, *_ in rows_of(batch):
                if (key, seq) in seen:
                    # A repeated record is for another checker.
                    continue
                seen[key, seq] = None
                if seq < last.get(key, -1):
                    world.violate(
                        Rule.KEY_ORDER, f"record {seq} of key {key} came after record {last[key]} ({transaction.name})"
                    )
                    return
                last[key] = seq


def check_files(world: World, disk: Disk, job: JobId, *, kept: Sequence[CheckpointId]) -> None:
    """Nothing may be left but the checkpoints that are `kept`, and these must be whole. Storage that failed is no
    excuse: it was well again in time, and deletions are tried again."""
    folder = layout.job_folder(job)
    allowed: dict[str, None] = {}
    for checkpoint in kept:
        allowed |= dict.fromkeys(_files_of(world, disk, folder, checkpoint))
    if kept:
        # Whoever takes the job up again must not give away the ids of what it kept.
        counters = layout.counter_folder(folder)
        allowed |= {path: None for path in disk.files if layout.number_of(counters, path) is not None}
    excused = _excused(disk, folder)
    orphans = [
        path
        for path in disk.files
        if path not in allowed and not any(path == place or is_below(path, place) for place in excused)
    ]
    if orphans:
        world.violate(Rule.NO_ORPHANS, f"{len(orphans)} files are left over: {', '.join(orphans[:5])}")


def _excused(disk: Disk, folder: layout.JobFolder) -> list[str]:
    """Folders that may be left because the storage was out of order when a checkpoint was recorded."""
    pointers = [layout.number_of(layout.completed_folder(folder), path) for path in disk.unwritten]
    # Nobody knows whether such a checkpoint was recorded: it is kept, since a restore might look for it.
    return [layout.checkpoint_folder(folder, checkpoint) for checkpoint in pointers if checkpoint is not None]


def _files_of(world: World, disk: Disk, folder: layout.JobFolder, checkpoint: CheckpointId) -> list[str]:
    path = layout.metadata_file(folder, checkpoint)
    metadata = disk.files.get(path)
    if metadata is None:
        world.violate(Rule.RESTORABLE, f"the metadata of retained checkpoint {checkpoint} is gone")
        return []
    for missing in missing_files(disk.files, metadata):
        world.violate(Rule.RESTORABLE, f"file {missing} of retained checkpoint {checkpoint} is gone")
    return [layout.completed_file(folder, checkpoint), path, *referred_files(metadata)]


def referred_files(metadata: bytes) -> list[str]:
    """Paths that a metadata file refers to."""
    return [file.path for file in decode_metadata("_metadata", metadata).files if file.path is not None]


def missing_files(files: dict[str, bytes], metadata: bytes) -> list[str]:
    """Those of them that do not exist."""
    return [path for path in referred_files(metadata) if path not in files]


def _first(rows: Counter[Row]) -> str:
    return ", ".join(str(row) for row in sorted(rows)[:3])
