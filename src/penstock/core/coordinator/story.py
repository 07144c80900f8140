"""What happened to each checkpoint, in short sentences. An `InvariantError` about a checkpoint prints the sentences.

The memory has two bounds: the last checkpoints only, and the last sentences of each checkpoint. Acknowledgements that
count are not told: the acknowledgements of a large checkpoint would push out the sentences about its beginning.
"""

from __future__ import annotations

from collections import deque

from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant

MAX_CHECKPOINTS = 64
MAX_LINES = 32


class Stories:
    """The story of each recent checkpoint."""

    def __init__(self) -> None:
        self._lines: dict[CheckpointId, deque[str]] = {}

    def tell(self, checkpoint: CheckpointId, now: Instant, text: str) -> None:
        """Add a sentence."""
        lines = self._lines.get(checkpoint)
        if lines is None:
            lines = self._lines[checkpoint] = deque(maxlen=MAX_LINES)
            if len(self._lines) > MAX_CHECKPOINTS:
                del self._lines[next(iter(self._lines))]
        lines.append(f"{now}: {text}")

    def of(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """All sentences about a checkpoint that are still known."""
        return tuple(self._lines.get(checkpoint, ()))

    def broken(self, checkpoint: CheckpointId, text: str) -> InvariantError:
        """The error to raise when a rule about this checkpoint does not hold."""
        told = "; ".join(self.of(checkpoint)) or "nothing is known"
        return InvariantError(f"checkpoint {checkpoint}: {text} (story: {told})")
