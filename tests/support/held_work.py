"""Background work whose pace the test decides."""

from __future__ import annotations

from collections import deque

from penstock.ports import WorkResult


class HeldWork:
    """Work of which each look gets at most `pieces` done, with what follows from it, in the end all."""

    def __init__(self):
        self.pieces = 1_000
        self._waiting = deque()

    def submit(self, work, done):
        self._waiting.append((work, done))

    def collect(self):
        left = self.pieces
        while self._waiting and left:
            left -= 1
            work, done = self._waiting.popleft()
            try:
                outcome = WorkResult(value=work())
            except Exception as error:  # noqa: BLE001  # as a real one would
                outcome = WorkResult(error=error)
            done(outcome)
