"""A second job in the same world, which goes on from what the first one left: a savepoint, or a retained checkpoint.

It may have another parallelism, own what it starts from or not, and find it where somebody has moved it to. What both
jobs have shown together must be what one would have shown; what the second job was not given must be as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa

from penstock.core.ids import CheckpointId
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CheckpointMetadata, Claim, CompletedCheckpoint
from penstock.sim.comparison import Standard, check_output, check_parts
from penstock.sim.disk import Disk, is_below
from penstock.sim.expected import Stage, expected_of_stages
from penstock.sim.faults import Fault, SlotCrash, draw_faults
from penstock.sim.jobs import Row, Workload
from penstock.sim.rules import Rule
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish
from penstock.sim.world import World
from penstock.storage.metadata import decode_metadata

MOVED = "moved"
"""The folder that snapshots are moved to."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """How a job goes on where another one was stopped or cancelled."""

    parallelism: int
    claim: Claim
    moved: bool
    """Whether it has been moved in the meantime."""
    safety_ms: int
    faults: tuple[Fault, ...] = ()
    """Counted from the start of the second job."""
    requests: tuple[UserRequest, ...] = ()
    """Likewise."""
    gives_up: bool = False
    """Whether the second job fails for good when it fails once."""


def draw_again(random: Random, *, parallelism: int, safety_ms: int, lasting: bool) -> Again | None:
    """Whether and how a world goes on."""
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
    """The same, with an end soon after the second job has begun: cancelled, or failed with a slot that dies."""
    delay_ms = random.choice((0, random.randint(0, 40), random.randint(0, 200)))
    if random.random() < 0.5:
        moment = random.choice((Moment.THEN, Moment.RUN))
        return replace(again, requests=(UserRequest(at_ms=0, wish=Wish.CANCEL, moment=moment, delay_ms=delay_ms),))
    crash = SlotCrash(at_ms=20 + delay_ms, slot=0, notice=random.choice(tuple(Notice)))
    return replace(again, gives_up=True, faults=(*again.faults, crash))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the second job starts from."""

    folder: str
    """Of the snapshot, from the root of the disk."""
    claim: Claim
    metadata: bytes
    content_of_files: dict[str, bytes]
    """The snapshot's own files, which go with it."""
    others: dict[str, bytes]
    """Everything else that lay on the disk then."""

    @property
    def content(self) -> CheckpointMetadata:
        """What the metadata says."""
        return decode_metadata(self.folder, self.metadata)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the snapshot's own files."""
        return tuple(self.content_of_files)

    @property
    def is_drained(self) -> bool:
        """Whether the first job closed all its windows before its end."""
        return self.content.is_drained


def find_origin(
    disk: Disk, job: layout.JobFolder, *, kept: Sequence[CheckpointId], savepoints: Sequence[CompletedCheckpoint]
) -> tuple[CheckpointId, str] | None:
    """The newest snapshot that the first job left, and its folder: a checkpoint that it `kept`, or a savepoint."""
    found = {checkpoint: layout.checkpoint_folder(job, checkpoint) for checkpoint in kept}
    found |= {record.checkpoint: record.location for record in savepoints}
    there = [c for c, folder in found.items() if f"{folder}/{layout.METADATA_NAME}" in disk.files]
    return (max(there), found[max(there)]) if there else None


def take_origin(disk: Disk, folder: str, again: Again) -> Origin:
    """Look at a snapshot before the second job begins; move it first, a checkpoint with the folder of its job."""
    if again.moved:
        above = folder.rpartition("/")[0] if layout.checkpoint_number(folder.rpartition("/")[2]) is not None else folder
        for path in [path for path in disk.files if is_below(path, above)]:
            disk.files[f"{MOVED}/{path}"] = disk.files.pop(path)
        folder = f"{MOVED}/{folder}"
    metadata = disk.files[f"{folder}/{layout.METADATA_NAME}"]
    # A checkpoint has files beside its folder as well, if it shares them with others.
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
    """What the second job did not get must be as it was, and what it got must be gone, however often its driver died;
    returns what may be left."""
    wanted = dict(origin.others)
    if origin.claim is Claim.CLAIM:
        left = [path for path in origin.files if path in disk.files]
        if left:
            world.violate(Rule.NO_ORPHANS, f"{len(left)} files of the claimed snapshot are left, such as {left[0]}")
    else:
        own = f"{origin.folder}/{layout.METADATA_NAME}"
        gone = [path for path in origin.files if path not in disk.files or (path == own and _differs(disk, origin))]
        if gone:
            world.violate(Rule.SAVEPOINTS, f"{len(gone)} files of an unclaimed snapshot are gone, such as {gone[0]}")
    changed = [path for path, data in wanted.items() if disk.files.get(path) != data]
    if changed:
        world.violate(Rule.SAVEPOINTS, f"{len(changed)} files of the first job are gone or changed: {changed[0]}")
    return [*wanted, *(() if origin.claim is Claim.CLAIM else origin.files)]


def check_spared(world: World, disk: Disk, origin: Origin) -> None:
    """A job that has ended without a checkpoint of its own must leave what it started from as it was, claimed or
    not."""
    wanted = {**origin.others, **origin.content_of_files}
    changed = [path for path, data in wanted.items() if disk.files.get(path) != data]
    if changed:
        world.violate(
            Rule.SAVEPOINTS, f"{len(changed)} files of a snapshot that nothing replaced are gone: {changed[0]}"
        )


def _differs(disk: Disk, origin: Origin) -> bool:
    return disk.files[f"{origin.folder}/{layout.METADATA_NAME}"] != origin.metadata


def check_both(
    world: World,
    shown: dict[str, Counter[Row]],
    workload: Workload,
    *,
    inputs: Sequence[pa.RecordBatch],
    stages: Sequence[Stage],
    standard: Standard,
    in_parts: bool,
) -> None:
    """What both jobs have shown must be all there is, once; `stages` are those of the first up to its end, and the
    second one from there on. If a job was drained, windows may be shown `in_parts`."""
    expected = expected_of_stages(workload, inputs, stages)
    if workload.shape.has_windows and in_parts:
        check_parts(world, shown, expected, standard)
        return
    check_output(world, shown, expected, standard, windows=workload.shape.has_windows)
