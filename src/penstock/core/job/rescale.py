"""A change of parallelism of a running job.

    asked for ── all additional slots are up ──► prepared ── its checkpoint is complete ──► the tasks are deployed anew

A change of parallelism disturbs the running attempt only when nothing is missing for the next attempt. Additional slots
come up first, then a checkpoint is taken, and then all tasks are dropped and deployed with the other parallelism.
Whatever goes wrong before the tasks are dropped ends the change, and leaves the job as it is.
"""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.core.job.events import (
    JobState,
    RescaleGivenUp,
    RescalePrepared,
    RescaleRequested,
    StartSlot,
    StopSlot,
    TellLeave,
)
from penstock.core.job.slot_states import SlotStates
from penstock.settings import SlotSettings

GivenUp = RescaleGivenUp | TellLeave | StopSlot
Going = StartSlot | RescalePrepared | RescaleGivenUp


class Rescale:
    """A change of parallelism that is under way: the request, and how far the change has come."""

    def __init__(self, request: RescaleRequested, until: Instant) -> None:
        self.request = request
        self.until: Instant | None = until
        """When all additional slots must be up. None if they are up: from then on the deadline of the checkpoint
        counts."""

    @property
    def is_prepared(self) -> bool:
        """Whether all additional slots are up."""
        return self.until is None

    def is_late(self, now: Instant) -> bool:
        """Whether additional slots are missing that should be up by now."""
        return self.until is not None and now >= self.until


def refusal_of(request: RescaleRequested, state: JobState, slots: int, under_way: Rescale | None) -> str | None:
    """Why a job in this state, with `slots` slots, cannot be rescaled now; None if the job can be rescaled."""
    if under_way is not None:
        return f"the job is already being rescaled to {under_way.request.slots} slots"
    if state is not JobState.RUNNING:
        return f"the job is {state.value}, and can be rescaled only while it is running"
    return f"the job has {slots} slots already" if request.slots == slots else None


class Rescaling:
    """The change of parallelism of one job that is under way, if there is one."""

    def __init__(self, slots: SlotStates, settings: SlotSettings) -> None:
        self._slots = slots
        self._timeout_ms = settings.start_timeout_ms
        self._under_way: Rescale | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a change of parallelism is under way."""
        return self._under_way is not None

    @property
    def until(self) -> Instant | None:
        """When all additional slots must be up; None if no slot is waited for."""
        return None if self._under_way is None else self._under_way.until

    def request(self, request: RescaleRequested, state: JobState, now: Instant) -> list[Going]:
        """Ask for the additional slots, or refuse."""
        refusal = refusal_of(request, state, len(self._slots.members), self._under_way)
        if refusal is not None:
            return [RescaleGivenUp(text=refusal)]
        self._under_way = Rescale(request, Instant(now + self._timeout_ms))
        additional = self._slots.add_additional(request.slots, now)
        return [*(StartSlot(slot=known.slot) for known in additional), *self.additional_arrived()]

    def additional_arrived(self) -> list[RescalePrepared]:
        """The rescale is prepared, if all additional slots are up."""
        rescale = self._under_way
        if rescale is None or rescale.is_prepared or not all(s.registered for s in self._slots.additional.values()):
            return []
        rescale.until = None
        return [RescalePrepared()]

    def confirm(self) -> RescaleRequested | None:
        """The checkpoint is complete, and the additional slots become members. Returns the request, for the slots and
        tasks of the next attempt; None if the rescale was given up meanwhile."""
        rescale = self._under_way
        if rescale is None or not rescale.is_prepared:
            return None
        self._under_way = None
        self._slots.take_additional_in()
        return rescale.request

    def give_up(self, text: str, now: Instant) -> list[GivenUp]:
        """Give up the rescale that is under way, if there is one: the job stays as it is."""
        if self._under_way is None:
            return []
        self._under_way = None
        return [RescaleGivenUp(text=text), *self._slots.dismiss(self._slots.take_additional_out(), now)]

    def give_up_if_late(self, now: Instant) -> list[GivenUp]:
        """Give up the rescale, if additional slots should be up by `now` and are not: the job stays as it is."""
        if self._under_way is None or not self._under_way.is_late(now):
            return []
        there = [known.registered for known in self._slots.additional.values()]
        text = f"only {sum(there)} of {len(there)} additional slots came up in {self._timeout_ms} ms"
        return self.give_up(text, now)
