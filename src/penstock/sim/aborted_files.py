"""Whether what slots wrote for checkpoints that were aborted goes while the job runs.

The end of a job removes everything that is left of its checkpoints, so that a look at the disk when it is over does not
show who forgot something on the way. This checker looks when the job is about to end: a file that was written for a
checkpoint that had been aborted, by a slot that knew or came to know it, must be gone a while later.

Files that checkpoints share lie beside those of all others. What a slot wrote there for a checkpoint that was aborted
is told by its name; such a file may stay if the slot acknowledged it: the master lets go of it with a later checkpoint.
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
"""So long after the abort, and after it was written, a file may still be there: deleting is work like any other."""


class AbortedFiles:
    """Looks at what the master tells slots, and at the disk."""

    def __init__(self, world: World, disk: Disk, job: JobId, *, master: str, faults: tuple[Fault, ...]) -> None:
        """Only worlds without faults are looked at: a slot or a driver that died deletes nothing."""
        self._world = world
        self._disk = disk
        self._folder = layout.job_folder(job)
        self._master = master
        self._looks = not faults
        self._aborted_us: dict[CheckpointId, int] = {}
        self._acknowledged: set[str] = set()
        """Shared files that the master was told of."""

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:
        """Take note of aborts, and of what the master comes to know."""
        if not self._looks or self._master not in (sender, receiver):
            return
        for header, payload in unpack(frames):
            if header.kind is not Kind.CONTROL:
                continue
            message = decode_to_slot(payload) if sender == self._master else decode_to_master(payload)
            if isinstance(message, NotifyAborted):
                # All slots are told.
                self._aborted_us.setdefault(message.checkpoint, self._world.now_us)
            elif isinstance(message, Acknowledge) and message.state is not None:
                files = (file for file in message.state.files if file.shared_key is not None)
                self._acknowledged.update(file.path for file in files if file.path is not None)

    def job_ending(self) -> None:
        """Slots are told to leave: what was aborted long ago has left nothing."""
        for path, written_us in self._disk.written_us.items():
            checkpoint = self._checkpoint_of(path) if path in self._disk.files else None
            aborted_us = None if checkpoint is None else self._aborted_us.get(checkpoint)
            if aborted_us is not None and max(aborted_us, written_us) + GRACE_US <= self._world.now_us:
                self._world.violate(
                    Rule.NO_ORPHANS, f"{path} is left over of checkpoint {checkpoint}, which was aborted"
                )
        self._aborted_us.clear()

    def _checkpoint_of(self, path: str) -> CheckpointId | None:
        """The checkpoint that a file was written for; None if the file is none of a checkpoint's, or the master's."""
        if is_below(path, layout.shared_folder(self._folder)):
            return None if path in self._acknowledged else checkpoint_of(path)
        folder = layout.checkpoint_folder_of(self._folder, path)
        return None if folder is None else layout.checkpoint_number(folder.rpartition("/")[2])
