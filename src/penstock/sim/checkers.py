"""What is checked in a world, while it runs and when it is over.

Checkers look from outside: at the messages on the network, the files on the disk, the rows in the external system. They
do not ask the drivers. Rows are compared in `comparison`; the answers that the user gets are checked in `user`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.core import errors
from penstock.core.errors import LinkBroken, MalformedMessage
from penstock.core.ids import CheckpointId, JobId, TaskId
from penstock.core.messages import (
    CancelTasks,
    Deploy,
    Leave,
    NotifyComplete,
    Run,
    TaskFailed,
    TaskFinished,
    ToMaster,
    ToSlot,
    TriggerCheckpoint,
)
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import EPOCHS_PER_TERM
from penstock.sim.disk import Disk, is_below
from penstock.sim.external import ExternalSystem, Transaction
from penstock.sim.faults import Fault, breaks_links
from penstock.sim.rules import Rule
from penstock.sim.world import Actor, World
from penstock.storage.completed import decode_pointer
from penstock.storage.metadata import decode_metadata
from penstock.storage.tenure import inheritance_format
from penstock.wire.codec import decode_to_master, decode_to_slot
from penstock.wire.frames import Kind, unpack


class Ledger:
    """Which checkpoints have become durable, as the files on the disk show."""

    def __init__(self, world: World, disk: Disk, job: JobId) -> None:
        self._world = world
        self._disk = disk
        self._job = layout.job_folder(job)
        self.durable: dict[CheckpointId, bytes] = {}
        """The metadata of each durable checkpoint, as it was when the pointer was written."""
        self.records: dict[CheckpointId, CompletedCheckpoint] = {}
        """The content of the pointer to each durable checkpoint."""
        self.started_from = b""
        """The metadata of the snapshot that the job began with."""
        self.on_durable: list[Callable[[], None]] = []
        self._gone: dict[CheckpointId, None] = {}
        """Checkpoints that went with the end of a run of the program."""
        self._claims: dict[str, Actor | None] = {}
        """By the path of each record with which a driver claims the job: the process that wrote the record."""
        self._late: dict[CheckpointId, tuple[str, bytes]] = {}
        """Pointers that a driver wrote after another driver had claimed the job. Such a pointer counts if the other
        driver finds it."""
        disk.taps.append(self._on_write)
        disk.undo_taps.append(self._on_undo)

    def contains(self, token: bytes) -> bool:
        """Whether a durable checkpoint, or the snapshot that the job began with, has this committable in its state."""
        known = (self.started_from, *self.durable.values())
        return any(token in metadata for metadata in reversed(known))

    def is_held_by(self, driver: Actor | None) -> bool:
        """Whether `driver` is the last driver that claimed the job; true if no driver has claimed the job."""
        return not self._claims or self._claims[max(self._claims)] is driver

    def retained(self, count: int) -> list[CheckpointId]:
        """The checkpoints that a job which keeps `count` checkpoints must have kept. Savepoints are left out: they
        belong to the user."""
        if self._disk.errors:
            # After an error of the storage the master may not know for certain which checkpoints it has recorded. Then
            # the master may keep more checkpoints, or older checkpoints.
            return [c for c in sorted(self.durable) if layout.metadata_file(self._job, c) in self._disk.files]
        kept: list[CompletedCheckpoint] = []
        for newcomer in [record for c, record in sorted(self.records.items()) if c not in self._gone]:
            kept.append(newcomer)
            plain = [c for c in kept if not c.kind.is_savepoint]
            # The newest plain checkpoint is spared, unless the job ends with this savepoint: nothing else is needed
            # then.
            spared = None if newcomer.kind.is_synchronous or not plain else plain[-1]
            removable = [c for c in kept[:-1] if c is not spared]
            gone = removable[: max(0, len(kept) - count)]
            kept = [c for c in kept if c not in gone]
        return [c.checkpoint for c in kept if not c.kind.is_savepoint]

    def run_ended(self, kept: Iterable[CheckpointId]) -> None:
        """A run of the program has ended and kept these: the next run has no other checkpoint, savepoints aside."""
        left = tuple(kept)
        self._gone |= {c: None for c, record in self.records.items() if not record.kind.is_savepoint and c not in left}

    def _on_write(self, path: str, data: bytes) -> None:
        if layout.number_of(layout.drivers_folder(self._job), path) is not None:
            self._claims[path] = self._world.acting
            return
        if layout.number_of(layout.tenures_folder(self._job), path) is not None:
            for found in inheritance_format.decode(path, data).completed:
                if found.checkpoint in self._late:
                    self._became_durable(found.checkpoint, *self._late.pop(found.checkpoint))
            return
        checkpoint = layout.number_of(layout.completed_folder(self._job), path)
        if checkpoint is None:
            return
        if not self.is_held_by(self._world.acting):
            self._late[checkpoint] = (path, data)
            return
        self._became_durable(checkpoint, path, data)

    def _became_durable(self, checkpoint: CheckpointId, path: str, data: bytes) -> None:
        newest = max(self.durable, default=CheckpointId(0))
        if checkpoint < newest:
            self._world.violate(Rule.CHECKPOINT_IDS, f"checkpoint {checkpoint} completed after checkpoint {newest}")
        record = msgspec.msgpack.decode(decode_pointer(path, checkpoint, data), type=CompletedCheckpoint)
        if record.claim is not None:
            # The snapshot that the job was started from: the snapshot was durable before this record was written.
            return
        metadata = self._disk.files.get(record.path)
        if metadata is None:
            self._world.violate(Rule.RESTORABLE, f"checkpoint {checkpoint} was recorded without its metadata")
            return
        self._world.note("disk", f"checkpoint {checkpoint} is durable")
        self.durable[checkpoint] = metadata
        self.records[checkpoint] = record
        for tell in self.on_durable:
            tell()
        for missing in missing_files(self._disk.files, metadata, root=root_of(record)):
            self._world.violate(Rule.RESTORABLE, f"checkpoint {checkpoint} was recorded without its file {missing}")

    def _on_undo(self, path: str) -> None:
        self._claims.pop(path, None)
        checkpoint = layout.number_of(layout.completed_folder(self._job), path)
        if checkpoint is not None:
            self._world.note("disk", f"checkpoint {checkpoint} was not durable after all")
            self._late.pop(checkpoint, None)
            self.durable.pop(checkpoint, None)
            self.records.pop(checkpoint, None)


class MessageChecker:
    """Checks the messages between the master and the slots: checkpoints, attempts, failures."""

    def __init__(self, world: World, ledger: Ledger, *, master: str, faults: Iterable[Fault] = ()) -> None:
        self._world = world
        self._ledger = ledger
        self._master = master
        self._links_hold = not any(breaks_links(fault) for fault in faults)
        self._newest = CheckpointId(0)
        self._newest_epoch = 0
        self._announced = CheckpointId(0)
        self.relied_on: dict[CheckpointId, None] = {}
        """Checkpoints that were announced as complete, that an attempt began from, or that the driver committed."""
        self.epoch = 0
        """The highest epoch that was deployed."""
        self._epochs: dict[TaskId, int] = {}
        self._finished: dict[tuple[TaskId, int], None] = {}
        """The tasks that said that they have finished, with their epochs."""
        self.attempts = 0
        self.repairs = 0
        """How many attempts were of some tasks only, while other tasks went on."""
        self.restores = 0
        """How many attempts began from a checkpoint."""
        self.on_ending: Callable[[], None] = lambda: None
        """Called when a slot is told to leave for good."""
        self.ever_ran = False
        """Whether the newest driver has found a completed checkpoint, or has told tasks to run."""
        self.on_attempt: Callable[[CheckpointId | None, int], None] = lambda _restored, _parallelism: None
        """Called when an attempt of all tasks begins, with the checkpoint that is restored and the number of slots."""
        self.on_run: Callable[[], None] = lambda: None
        """Called when an attempt begins to run."""
        self.program_errors: list[int] = []
        """For each error of the program that a task reported: how many checkpoints were durable then."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the tasks of an attempt are cancelled."""
        self._run_epoch = 0
        self._cancelled_epoch = 0

    def go_on_from(self, before: MessageChecker, *, kept: bool) -> None:
        """The same job goes on in another run of its program. `kept` says whether the run before left a snapshot to go
        on from."""
        self.epoch = before.epoch
        self._epochs = dict(before._epochs)
        self._newest, self._newest_epoch = before._newest, before._newest_epoch
        self._announced = before._announced if kept else CheckpointId(0)

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:
        """Look at one message."""
        for header, payload in unpack(frames):
            if header.kind is not Kind.CONTROL:
                continue
            if sender == self._master:
                self._ordered(decode_to_slot(payload))
            elif receiver == self._master:
                self._told(decode_to_master(payload))

    def _told(self, message: ToMaster) -> None:
        if isinstance(message, TaskFinished):
            if (message.task, message.epoch) in self._finished:
                self._world.violate(Rule.NO_LIVELOCK, f"{message.task} said twice that it has finished")
            self._finished[message.task, message.epoch] = None
        elif isinstance(message, TaskFailed):
            if self._links_hold and message.error.startswith(LinkBroken.__name__):
                self._world.violate(Rule.LINKS, f"{message.slot} reported: {message.error}")
            elif message.error.startswith(MalformedMessage.__name__):
                self._world.violate(Rule.NO_BUG, f"{message.slot} reported: {message.error}")
            if message.fault is errors.Fault.PROGRAM:
                self.program_errors.append(len(self._ledger.durable))

    def _ordered(self, message: ToSlot) -> None:
        match message:
            case TriggerCheckpoint(checkpoint=checkpoint, epoch=epoch, task=task):
                self._triggered(checkpoint, task, epoch)
            case Deploy(
                epoch=epoch, restored_checkpoint=restored, tasks=tasks, peers=peers, beside_others=beside_others
            ):
                # A driver whose job was taken over may still deploy its own slots, in lower epochs.
                self._epochs |= {task: max(epoch, self._epochs.get(task, 0)) for task in tasks}
                if epoch > self.epoch:
                    self._began(epoch, restored)
                    if beside_others:
                        self.repairs += 1
                    else:
                        self.on_attempt(restored, len(peers))
            case Run(epoch=epoch):
                self.ever_ran = True
                if epoch > self._run_epoch:
                    self._run_epoch = epoch
                    self.on_run()
            case Leave():
                self.on_ending()
            case CancelTasks(epoch=epoch):
                if epoch > self._cancelled_epoch:
                    self._cancelled_epoch = epoch
                    self.on_failure()
            case NotifyComplete(checkpoint=checkpoint):
                if checkpoint not in self._ledger.durable:
                    self._world.violate(
                        Rule.EARLY_COMMIT, f"checkpoint {checkpoint} was announced before it was durable"
                    )
                self._announced = max(self._announced, checkpoint)
                self.relied_on[checkpoint] = None
            case _:
                pass

    def _began(self, epoch: int, restored: CheckpointId | None) -> None:
        self.epoch = epoch
        self.attempts += 1
        self.restores += restored is not None
        if restored is not None:
            self.relied_on[restored] = None
        if (restored or 0) < self._announced:
            self._world.violate(
                Rule.NEWEST,
                f"the attempt of epoch {epoch} began from checkpoint {restored}, although checkpoint "
                f"{self._announced} had been announced",
            )

    def _triggered(self, checkpoint: CheckpointId, task: TaskId, epoch: int) -> None:
        if epoch // EPOCHS_PER_TERM < self.epoch // EPOCHS_PER_TERM:
            # A driver that does not know yet that its job was taken over goes on with its own checkpoint ids.
            return
        # A checkpoint is triggered in several tasks. But it is not triggered again after tasks were deployed, nor after
        # a newer checkpoint was triggered.
        if checkpoint < self._newest or (checkpoint == self._newest and self.epoch != self._newest_epoch):
            self._world.violate(
                Rule.CHECKPOINT_IDS,
                f"checkpoint {checkpoint} was triggered in epoch {self.epoch}, after checkpoint {self._newest} in "
                f"epoch {self._newest_epoch}",
            )
        if epoch != self._epochs.get(task):
            self._world.violate(
                Rule.CHECKPOINT_IDS, f"a checkpoint of epoch {epoch} was triggered in {task}, which is in another epoch"
            )
        self._newest, self._newest_epoch = max(checkpoint, self._newest), self.epoch


class CommitChecker:
    """Checks that a transaction that becomes visible was allowed to become visible."""

    def __init__(self, world: World, ledger: Ledger, messages: MessageChecker, external: ExternalSystem) -> None:
        self._world = world
        self._ledger = ledger
        self._messages = messages
        external.on_commit = self._committed
        external.on_refused = self._refused

    def _committed(self, transaction: Transaction) -> None:
        if self._ledger.contains(transaction.token):
            return
        if transaction.epoch < self._messages.epoch:
            self._world.violate(
                Rule.FENCING,
                f"{transaction.name} was committed, is in no durable checkpoint, and belongs to epoch "
                f"{transaction.epoch} while epoch {self._messages.epoch} runs",
            )
        else:
            self._world.violate(Rule.EARLY_COMMIT, f"{transaction.name} was committed and is in no durable checkpoint")

    def _refused(self, transaction: Transaction) -> None:
        self._world.violate(Rule.FENCING, f"{transaction.name} was to be committed, but a later attempt had dropped it")


def check_files(
    world: World, disk: Disk, job: JobId, *, kept: Sequence[CheckpointId], allowed: Iterable[str], keeps_ids: bool
) -> None:
    """Check the files that are left when a job has ended: the checkpoints in `kept`, which must be whole, the files in
    `allowed` and, with `keeps_ids`, the counters of checkpoint ids and of drivers. No other file may be left. Errors of
    the storage are no excuse: the storage is in order again before the job ends, and deletions are tried again."""
    folder = layout.job_folder(job)
    expected: dict[str, None] = dict.fromkeys(allowed)
    for checkpoint in kept:
        expected |= dict.fromkeys(_files_of(world, disk, folder, checkpoint))
    if keeps_ids:
        for counters in (layout.counter_folder(folder), layout.drivers_folder(folder)):
            expected |= {path: None for path in disk.files if layout.number_of(counters, path) is not None}
    counters = layout.counter_folder(folder)
    parents = {path: path.rpartition("/")[0] for path in disk.files}
    expected |= {
        p: None for p, place in parents.items() if layout.outlives_the_job(folder, place) and place != counters
    }
    excused = _excused(disk, folder)
    orphans = [
        path
        for path in disk.files
        if path not in expected and not any(path == place or is_below(path, place) for place in excused)
    ]
    if orphans:
        world.violate(Rule.NO_ORPHANS, f"{len(orphans)} files are left over: {', '.join(orphans[:5])}")


def _excused(disk: Disk, folder: layout.JobFolder) -> list[str]:
    """The folders of checkpoints that may be left because the storage failed when the checkpoint was recorded."""
    pointers = [layout.number_of(layout.completed_folder(folder), path) for path in disk.unwritten]
    # No driver knows whether such a checkpoint was recorded. The checkpoint is kept, since a restore might look for it.
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


def root_of(record: CompletedCheckpoint) -> str:
    """Where the paths in the metadata of a snapshot begin: paths of a savepoint begin in the savepoint's folder."""
    return f"{record.location}/" if record.kind.is_savepoint else ""


def referred_files(metadata: bytes, *, root: str = "") -> list[str]:
    """The paths on the disk that a metadata file refers to. A file of a claimed snapshot that was moved has a full
    path, which begins at the root of the disk."""
    paths = [file.path for file in decode_metadata("_metadata", metadata).files if file.path is not None]
    return [path[1:] if path.startswith("/") else root + path for path in paths]


def missing_files(files: dict[str, bytes], metadata: bytes, *, root: str = "") -> list[str]:
    """The paths that a metadata file refers to and that do not exist."""
    return [path for path in referred_files(metadata, root=root) if path not in files]
