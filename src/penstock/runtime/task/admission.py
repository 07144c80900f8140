"""Which inputs of a task may be read.

Upstream may send when the channels of the task have their first credit. The channels get this credit when the
task runs; or, if the task has restored batches that were in flight to other subtasks, when all restored batches have
been read. If the first operator waits for another input, the records of the first input are held until the other
input has come far enough. If the first operator has as many records as it can take, further records are held until the
operator is rid of some records.
"""

from __future__ import annotations

from penstock.core.elements import EndOfData, Watermark
from penstock.core.ids import ChannelIndex, Instant
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.operators.base import Operator


class InputAdmission:
    """The admission of the inputs of one task. `head` is the first operator of the task."""

    def __init__(self, gate: InputGate, head: Operator) -> None:
        self._gate = gate
        self._head = head
        self.holds_back = False
        """Whether upstream may not send, because restored batches that were in flight to other subtasks come first."""
        self._is_held = False
        """Whether the records of the first input wait for another input."""

    def begin(self, now: Instant) -> None:
        """The task runs: let upstream send, unless restored batches must be read first."""
        if self._head.is_waiting:
            others = (ChannelIndex(i) for i, channel in enumerate(self._gate.channels) if channel.input_number)
            self._is_held = True
            self._head.begin_waiting(tuple(others), now)
            self.release_if_waited()
        if not self.holds_back:
            self._let_in()

    def has_read(self) -> None:
        """A batch was read while upstream was held back: let upstream send if nothing else waits to be read."""
        if self._gate.is_drained:
            self._let_in()

    def _let_in(self) -> None:
        self.holds_back = False
        if self._is_held:
            # Not earlier: the restored batches must be read before upstream may send.
            self._gate.hold(0)
        for channel in self._gate.channels:
            channel.open()

    def heard(self, index: ChannelIndex, element: Watermark | EndOfData) -> None:
        """The event time of a channel has advanced, or the data of the channel has ended."""
        if self._is_held and self._gate.channels[index].input_number:
            self._head.heard(index, element)
            self.release_if_waited()

    def release_if_waited(self) -> None:
        """Go on with the first input, if its records have waited long enough."""
        if self._is_held and not self._head.is_waiting:
            self._is_held = False
            self._gate.release()

    def hold_if_waiting(self, *, barriers_are_due: bool) -> None:
        """Leave further records unread, if the first operator can take no more records."""
        if self._head.is_waiting and not self._is_held and not self.holds_back:
            self._is_held = True
            self._gate.hold(0)
            self._gate.let_through(barriers_are_due=barriers_are_due)

    def look_for_barriers(self, *, are_due: bool) -> None:
        """If barriers are due, let the held records be read: a barrier may stand behind them."""
        if self._is_held:
            self._gate.let_through(barriers_are_due=are_due)
