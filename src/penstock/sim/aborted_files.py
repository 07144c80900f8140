"""Whether the files that slots wrote for aborted checkpoints are deleted while the job runs.

The end of a job deletes all files that are left of its checkpoints. So a look at the disk after the end does not show
whether a slot has forgotten to delete a file. This checker looks when the job is about to end: a file that a slot wrote
for an aborted checkpoint must be gone a while after the abort and after the write.

The files that checkpoints share lie in one folder. The name of a shared file says for which checkpoint the file was
written. A shared file of an aborted checkpoint may stay if its slot has acknowledged the file: the master lets go of
the file with a later checkpoint.
"""

from __future__ import annotations

from penstock.core.ids import CheckpointId, JobId
from penstock.core.messages import Acknowledge, NotifyAborted
from penstock.core.recovery import layout
from penstock.sim.disk import Disk, is_below
from penstock.sim.faults import Fault
from penstock.sim.rules import Rule
from penstock.sim.sharing import checkpoint_of
from penstock.sim.world import World
from penstock.wire.codec import decode_to_master, decode_to_slot
from penstock.wire.frames import Kind, unpack

GRACE_US = 500_000
"""For how long after the abort, and after it was written, a file may still exist: deleting takes time."""


class AbortedFiles:
    """Compares the aborts that the master tells the slots with the files on the disk."""

    def __init__(self, world: World, disk: Disk, job: JobId, *, master: str, faults: tuple[Fault, ...]) -> None:
        """With `faults` nothing is checked: a slot or a driver that died deletes no files."""
        self._world = world
        self._disk = disk
        self._folder = layout.job_folder(job)
        self._master = master
        self._looks = not faults
        self._aborted_us: dict[CheckpointId, int] = {}
        self._acknowledged: set[str] = set()
        """The shared files that slots have acknowledged to the master."""

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:
        """Take note of aborts, and of the shared files that slots acknowledge."""
        if not self._looks or self._master not in (sender, receiver):
            return
        for header, payload in unpack(frames):
            if header.kind is not Kind.CONTROL:
                continue
            message = decode_to_slot(payload) if sender == self._master else decode_to_master(payload)
            if isinstance(message, NotifyAborted):
                # The master tells all slots of an abort at once, so the first message is enough.
                self._aborted_us.setdefault(message.checkpoint, self._world.now_us)
            elif isinstance(message, Acknowledge) and message.state is not None:
                files = (file for file in message.state.files if file.shared_key is not None)
                self._acknowledged.update(file.path for file in files if file.path is not None)

    def job_ending(self) -> None:
        """The slots are told to leave: no file of a checkpoint that was aborted long ago may be left."""
        for path, written_us in self._disk.written_us.items():
            checkpoint = self._checkpoint_of(path) if path in self._disk.files else None
            aborted_us = None if checkpoint is None else self._aborted_us.get(checkpoint)
            if aborted_us is not None and max(aborted_us, written_us) + GRACE_US <= self._world.now_us:
                self._world.violate(
                    Rule.NO_ORPHANS, f"{path} is left over from checkpoint {checkpoint}, which was aborted"
                )
        self._aborted_us.clear()

    def _checkpoint_of(self, path: str) -> CheckpointId | None:
        """The checkpoint that a file was written for; None if the file was written for no checkpoint, or is a shared
        file that a slot has acknowledged."""
        if is_below(path, layout.shared_folder(self._folder)):
            return None if path in self._acknowledged else checkpoint_of(path)
        folder = layout.checkpoint_folder_of(self._folder, path)
        return None if folder is None else layout.checkpoint_number(folder.rpartition("/")[2])
