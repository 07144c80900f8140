"""How the data of a task ends: the data ends with the data of the task's last channel, and as the data of all channels
ended.

A channel's data goes to its end, or is taken there by a stop with drain, or is cut off by a stop without drain. After a
restore, data that was cut off goes on. So the data of the task has gone to its end only if the data of every channel
has.
"""

from __future__ import annotations

from penstock.core.elements import EndOfData


class DataEnds:
    """The ends of the data of one task's channels."""

    def __init__(self, channels: int) -> None:
        self._open = channels
        """How many channels have data that has not ended."""
        self._drains = True
        """Whether the data of all channels that have ended went to its end, or was taken there by a stop with drain."""
        self._drained_by_stop = False
        """Whether a stop with drain ended the data of a channel."""

    def ended(self, element: EndOfData) -> EndOfData | None:
        """The data of one more channel has ended. Returns how the task's data ends if the channel was the last;
        otherwise None."""
        self._open -= 1
        self._drains = self._drains and element.drain
        self._drained_by_stop = self._drained_by_stop or element.stopped
        if self._open:
            return None
        return EndOfData(drain=self._drains, stopped=self._drained_by_stop and self._drains)
