"""Which inputs of a task may be read already.

Upstream is let in, which is to say that its channels get their first credit, when the task runs; but if batches that
were in flight to other subtasks were restored, not before these are read. And if the first operator waits for another
input, the records of the first input are held until that input is far enough.
"""

from __future__ import annotations

from penstock.core.elements import EndOfData, Watermark
from penstock.core.ids import ChannelIndex, Instant
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.operators.base import Operator


class InputAdmission:
    """Of one task. `head` is its first operator."""

    def __init__(self, gate: InputGate, head: Operator) -> None:
        self._gate = gate
        self._head = head
        self.holds_back = False
        """Whether upstream has not been let in, because what was in flight elsewhere comes first."""
        self._is_held = False
        """Whether records of the first input wait for another one."""

    def begin(self, now: Instant) -> None:
        """The task runs: let upstream send, unless there is something to do first."""
        if self._head.is_waiting:
            others = (ChannelIndex(i) for i, channel in enumerate(self._gate.channels) if channel.input_number)
            self._is_held = True
            self._head.begin_waiting(tuple(others), now)
            self.release_if_waited()
        if not self.holds_back:
            self._let_in()

    def has_read(self) -> None:
        """A batch was read while upstream was held back."""
        if self._gate.is_drained:
            self._let_in()

    def _let_in(self) -> None:
        self.holds_back = False
        if self._is_held:
            # Not before: what was in flight elsewhere must be read before anything can come.
            self._gate.hold(0)
        for channel in self._gate.channels:
            channel.open()

    def heard(self, index: ChannelIndex, element: Watermark | EndOfData) -> None:
        """Event time of a channel has come further, or its data has ended."""
        if self._is_held and self._gate.channels[index].input_number:
            self._head.heard(index, element)
            self.release_if_waited()

    def release_if_waited(self) -> None:
        """Go on with the first input, if its records have waited long enough."""
        if self._is_held and not self._head.is_waiting:
            self._is_held = False
            self._gate.release()

    def look_for_barriers(self, *, are_due: bool) -> None:
        """A barrier that is due may be behind the records that are held: these are read then."""
        if self._is_held:
            self._gate.let_through(barriers_are_due=are_due)
