"""Code on the driver that has a part in every checkpoint, without being a step of the job."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.api.hold import Held


class CheckpointHook(Held, ABC):
    """Keeps something outside of the job in step with its checkpoints.

    It lives on the driver, as long as the job does, and is called off the loop, one call at a time: it may block, for
    as long as `Checkpointing.hook_timeout` allows. Before every call the driver looks whether it still has the job.
    """

    @property
    def name(self) -> str:
        """Under which its state is kept. Two hooks of a job cannot have the same."""
        return type(self).__name__.lower()

    @abstractmethod
    def trigger(self, checkpoint: int, timestamp_ms: int) -> bytes | None:
        """A checkpoint begins: the parts of sources and sinks on the driver have taken their snapshots, and no task
        has been told yet; none is before this has returned. What it returns is kept in the checkpoint. If it raises,
        the checkpoint is given up, and the job goes on. Ids ascend, and not every checkpoint completes."""

    def restore(self, checkpoint: int, state: bytes | None) -> None:
        """The job goes back to `checkpoint`, or starts from it; `state` is what `trigger` returned then, None if that
        was nothing or if the hook is new. No task runs before this has returned. If it raises, the attempt fails."""

    def reset(self) -> None:
        """The job starts from its beginning, for the first time or because it failed before its first checkpoint. No
        task runs before this has returned. If it raises, the attempt fails."""

    def close(self) -> None:
        """The job has ended, or another driver has it. Called once."""
