"""The hook of a world, the marks that the hook puts into the data, and the check of the hook.

The outside system puts a mark for a checkpoint some time after the hook has asked for the mark, whatever the job does
then. A reader may see the mark before the job triggers the checkpoint in the source, or long after. A reader that is
opened sees the last few marks again, as a reader that goes back in its data does.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from penstock.api.hooks import CheckpointHook
from penstock.core.messages import Deploy
from penstock.sim.checkers import Ledger
from penstock.sim.external import ExternalSystem, system_of
from penstock.sim.rules import Rule
from penstock.sim.world import World
from penstock.storage.metadata import decode_metadata
from penstock.wire.codec import decode_to_slot
from penstock.wire.frames import Kind, unpack

NAME = "outside"
"""What the hook of a world is called."""


@dataclass(frozen=True, kw_only=True)
class Hooked:
    """How the hook of a job behaves."""

    induces: bool
    """Whether the sources begin a checkpoint where its mark is in the data."""
    mark_us: int
    """The outside system takes up to this long to put a mark."""


def draw_hook(random: Random) -> Hooked:
    """How the hook of a world behaves."""
    return Hooked(induces=random.random() < 0.7, mark_us=random.choice((0, 1_000, 10_000, 100_000)))


class SimHook(CheckpointHook):
    """Calls the external system, whose faults strike the hook as well."""

    name = NAME

    def __init__(self, world: int, options: Hooked) -> None:
        self._world = world
        self._options = options

    def trigger(self, checkpoint: int, timestamp_ms: int) -> bytes:  # noqa: ARG002
        """Ask for a mark for a checkpoint."""
        return system_of(self._world).put_mark(checkpoint, within_us=self._options.mark_us)

    def restore(self, checkpoint: int, state: bytes | None) -> None:
        """Go back to a checkpoint, and to the state that the hook kept in it."""
        system_of(self._world).go_back(checkpoint, state)

    def reset(self) -> None:
        """Go back to the beginning."""
        system_of(self._world).go_back(None, None)


class HookChecker:
    """Checks that tasks are deployed only after the hook was put back to the checkpoint that the tasks begin from."""

    def __init__(self, world: World, ledger: Ledger, external: ExternalSystem, *, master: str) -> None:
        self._world = world
        self._ledger = ledger
        self._external = external
        self._master = master
        self._epoch = 0

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:  # noqa: ARG002
        """Look at one message."""
        if sender != self._master:
            return
        for header, payload in unpack(frames):
            message = decode_to_slot(payload) if header.kind is Kind.CONTROL else None
            if isinstance(message, Deploy) and message.epoch > self._epoch:
                self._epoch = message.epoch
                self._began(message)

    def _began(self, message: Deploy) -> None:
        restored = message.restored_checkpoint
        state = None
        if restored is not None:
            metadata = self._ledger.durable.get(restored, self._ledger.started_from)
            state = decode_metadata("_metadata", metadata).hooks.get(NAME) if metadata else None
        if self._external.is_at != (restored, state):
            text = (
                f"epoch {message.epoch} begins from checkpoint {restored} and hook state {state!r}; "
                f"the hook is at {self._external.is_at}"
            )
            self._world.violate(Rule.HOOKS, text)
