"""Code on the driver that has a part in every checkpoint, without being a step of the job."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.api.hold import Held


class CheckpointHook(Held, ABC):
    """Keeps an outside system in step with the checkpoints of the job.

    A hook lives on the driver as long as the job does, and is called off the loop, one call at a time: calls may block,
    for as long as `Checkpointing.hook_timeout` allows. Before every call the driver checks its hold on the job.
    """

    @property
    def name(self) -> str:
        """The name under which the hook's state is kept. Two hooks of a job cannot have the same name."""
        return type(self).__name__.lower()

    @abstractmethod
    def trigger(self, checkpoint: int, timestamp_ms: int) -> bytes | None:
        """A checkpoint begins: the operator coordinators have taken their snapshots, and no task is told of the
        checkpoint before `trigger` has returned. The returned bytes are kept in the checkpoint. If `trigger` raises,
        the checkpoint is aborted, and the job goes on. Checkpoint ids ascend, and not every checkpoint completes."""

    def restore(self, checkpoint: int, state: bytes | None) -> None:
        """The job goes back to `checkpoint`, or starts from `checkpoint`. `state` is what `trigger` returned for that
        checkpoint; None if `trigger` returned None, or if the checkpoint has no state of this hook. No task runs before
        `restore` has returned. If `restore` raises, the attempt fails."""

    def reset(self) -> None:
        """The job starts from its beginning, for the first time or because it failed before its first checkpoint. No
        task runs before `reset` has returned. If `reset` raises, the attempt fails."""

    def close(self) -> None:
        """The job has ended, or another driver has the job. Called once."""
