"""A second job in the same world, which goes on from a snapshot that the first job left: a savepoint, or a retained
checkpoint.

The second job may have another parallelism, and may claim the snapshot. The user may have moved the snapshot before.
The rows that both jobs have shown together must be the rows that one job would have shown. The files that the second
job did not claim must be as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa

from penstock.core.ids import CheckpointId
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CheckpointMetadata, Claim, CompletedCheckpoint
from penstock.sim.changing_joins import check_tables
from penstock.sim.comparison import Standard, check_changes, check_output, check_parts, shown_of, without_early
from penstock.sim.disk import Disk, is_below
from penstock.sim.expected import Stage, expected_of_stages
from penstock.sim.external import Transaction
from penstock.sim.faults import Fault, SlotCrash, draw_faults
from penstock.sim.jobs import Shape, Workload
from penstock.sim.rules import Rule
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish
from penstock.sim.world import World
from penstock.storage.metadata import decode_metadata

MOVED = "moved"
"""The folder that snapshots are moved to."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """How a second job goes on after the first job has ended."""

    parallelism: int
    claim: Claim
    moved: bool
    """Whether the user moves the snapshot before the second job starts."""
    safety_ms: int
    faults: tuple[Fault, ...] = ()
    """The faults of the second job; their times count from its start."""
    requests: tuple[UserRequest, ...] = ()
    """The requests to the second job; their times count from its start."""
    gives_up: bool = False
    """Whether the first failure of the second job ends the job."""


def draw_again(random: Random, *, parallelism: int, safety_ms: int, lasting: bool) -> Again | None:
    """How a second job goes on; None if the world has no second job."""
    if random.random() < 0.25:
        return None
    chosen = random.choice((parallelism, *range(1, 7), *range(1, 4)))
    return Again(
        parallelism=chosen,
        claim=random.choice((Claim.NO_CLAIM, Claim.CLAIM)),
        moved=random.random() < 0.3,
        safety_ms=safety_ms,
        faults=draw_faults(random, parallelism=chosen, safety_ms=safety_ms, lasting=lasting),
    )


def draw_early_end(random: Random, again: Again) -> Again:
    """The same second job, which ends soon after it has begun: the user cancels the job, or a slot dies and the job
    fails."""
    delay_ms = random.choice((0, random.randint(0, 40), random.randint(0, 200)))
    if random.random() < 0.5:
        moment = random.choice((Moment.THEN, Moment.RUN))
        return replace(again, requests=(UserRequest(at_ms=0, wish=Wish.CANCEL, moment=moment, delay_ms=delay_ms),))
    crash = SlotCrash(at_ms=20 + delay_ms, slot=0, notice=random.choice(tuple(Notice)))
    return replace(again, gives_up=True, faults=(*again.faults, crash))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The snapshot that the second job starts from."""

    folder: str
    """The folder of the snapshot, from the root of the disk."""
    claim: Claim
    metadata: bytes
    content_of_files: dict[str, bytes]
    """The files of the snapshot, by path."""
    others: dict[str, bytes]
    """All other files that lay on the disk before the second job began, by path."""

    @property
    def content(self) -> CheckpointMetadata:
        """The decoded metadata."""
        return decode_metadata(self.folder, self.metadata)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files of the snapshot."""
        return tuple(self.content_of_files)

    @property
    def is_drained(self) -> bool:
        """Whether the first job closed all its windows before its end."""
        return self.content.is_drained


def find_origin(
    disk: Disk, job: layout.JobFolder, *, kept: Sequence[CheckpointId], savepoints: Sequence[CompletedCheckpoint]
) -> tuple[CheckpointId, str] | None:
    """The newest snapshot that the first job left, and the folder of the snapshot. The snapshot is a checkpoint that
    the job `kept`, or a savepoint. None if the first job left no snapshot."""
    found = {checkpoint: layout.checkpoint_folder(job, checkpoint) for checkpoint in kept}
    found |= {record.checkpoint: record.location for record in savepoints}
    there = [c for c, folder in found.items() if f"{folder}/{layout.METADATA_NAME}" in disk.files]
    return (max(there), found[max(there)]) if there else None


def take_origin(disk: Disk, folder: str, again: Again) -> Origin:
    """Read a snapshot before the second job begins. A snapshot that is to be moved is moved first: a savepoint alone, a
    checkpoint with the folder of its job."""
    if again.moved:
        above = folder.rpartition("/")[0] if layout.checkpoint_number(folder.rpartition("/")[2]) is not None else folder
        for path in [path for path in disk.files if is_below(path, above)]:
            disk.files[f"{MOVED}/{path}"] = disk.files.pop(path)
        folder = f"{MOVED}/{folder}"
    metadata = disk.files[f"{folder}/{layout.METADATA_NAME}"]
    # The files that a checkpoint shares with other checkpoints lie outside the checkpoint's folder.
    root = folder.rpartition("/")[0].rpartition("/")[0]
    above = f"{root}/" if root else ""
    referred = {f"{above}{file.path}" for file in decode_metadata(folder, metadata).files if file.path is not None}
    own = tuple(path for path in disk.files if is_below(path, folder) or path in referred)
    return Origin(
        folder=folder,
        claim=again.claim,
        metadata=metadata,
        content_of_files={path: disk.files[path] for path in own},
        others={path: data for path, data in disk.files.items() if path not in own},
    )


def check_untouched(world: World, disk: Disk, origin: Origin) -> list[str]:
    """Check the files that lay on the disk before the second job began. The files of a claimed snapshot must be gone,
    however often the driver died. All other files must be as they were. Returns the files that may be left."""
    wanted = dict(origin.others)
    if origin.claim is Claim.CLAIM:
        left = [path for path in origin.files if path in disk.files]
        if left:
            world.violate(Rule.NO_ORPHANS, f"{len(left)} files of the claimed snapshot are left, such as {left[0]}")
    else:
        own = f"{origin.folder}/{layout.METADATA_NAME}"
        gone = [path for path in origin.files if path not in disk.files or (path == own and _differs(disk, origin))]
        if gone:
            world.violate(
                Rule.SAVEPOINTS, f"{len(gone)} files of an unclaimed snapshot are gone or changed, such as {gone[0]}"
            )
    changed = [path for path, data in wanted.items() if disk.files.get(path) != data]
    if changed:
        world.violate(Rule.SAVEPOINTS, f"{len(changed)} other files are gone or changed, such as {changed[0]}")
    return [*wanted, *(() if origin.claim is Claim.CLAIM else origin.files)]


def check_spared(world: World, disk: Disk, origin: Origin) -> None:
    """A second job that has ended without a checkpoint of its own must leave the snapshot that it started from as it
    was, claimed or not."""
    wanted = {**origin.others, **origin.content_of_files}
    changed = [path for path, data in wanted.items() if disk.files.get(path) != data]
    if changed:
        world.violate(
            Rule.SAVEPOINTS,
            f"{len(changed)} files are gone or changed, such as {changed[0]}, although the second job has no "
            f"checkpoint of its own that replaces the snapshot",
        )


def _differs(disk: Disk, origin: Origin) -> bool:
    return disk.files[f"{origin.folder}/{layout.METADATA_NAME}"] != origin.metadata


def check_both(
    world: World,
    committed: Sequence[Transaction],
    workload: Workload,
    *,
    inputs: Sequence[pa.RecordBatch],
    stages: Sequence[Stage],
    standard: Standard,
    in_parts: bool,
) -> None:
    """The rows that both jobs have shown together must be the rows that one job shows. `stages` are the stages of the
    first job up to its end, and the stage of the second job from there on. If a job was drained, windows may be shown
    `in_parts`."""
    expected = expected_of_stages(workload, inputs, stages)
    shown = shown_of(workload, committed)
    if workload.shape is Shape.CHANGES:
        check_tables(world, committed, expected, complete=standard.complete)
        return
    if workload.updates is not None and workload.shape is not Shape.LATE:
        check_changes(world, committed, expected, standard, workload.windows)
        return
    if workload.shape.has_windows and in_parts:
        check_parts(world, shown, expected, standard, workload.windows)
        return
    if in_parts:
        shown = without_early(shown, workload, inputs, expected)
    check_output(world, shown, expected, standard, windows=workload.shape.has_windows)
