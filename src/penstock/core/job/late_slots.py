"""Which slots keep the job waiting for too long, each with the fact for the error text."""

from __future__ import annotations

from penstock.core.ids import Epoch, Instant
from penstock.core.job.events import JobState
from penstock.core.job.repair import Repair
from penstock.core.job.slot_states import SlotState, SlotStates

Late = tuple[SlotState, str]


def silent_slots(slots: SlotStates, timeout_ms: int, now: Instant) -> list[Late]:
    """The slots that were not heard of for `timeout_ms`."""
    watched = [(known, now - known.heard) for known in slots.watched if known.registered]
    return [(known, f"not heard of for {silent_ms} ms") for known, silent_ms in watched if silent_ms >= timeout_ms]


def slots_late_with_tasks(slots: SlotStates, state: JobState, epoch: Epoch, repair: Repair | None) -> list[Late]:
    """While tasks are deployed: the members that have not restored their tasks, and have not said what they are doing.
    Otherwise: the members that have not dropped their tasks."""
    if repair is not None:
        return repair.late(slots)
    members = slots.in_order
    if state is JobState.DEPLOYING:
        late = [s for s in members if s.ready_for != epoch and not s.is_at_work]
        return [(s, "the slot did not restore its tasks in time") for s in late]
    unclean = [s for s in members if s.registered and s.clean_up_to < epoch]
    return [(s, "the slot did not drop its tasks in time") for s in unclean]
