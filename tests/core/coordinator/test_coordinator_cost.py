"""What an acknowledgement costs does not grow with the number of subtasks."""

from __future__ import annotations

import sys

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.events import Acknowledged
from penstock.core.ids import CheckpointId, Epoch, Instant
from penstock.core.messages import Acknowledge


def calls_of_one_ack(rig, make, parallelism):
    """How many functions run while the second subtask of so many acknowledges."""
    r = rig(make.graph(make.vertex("s", parallelism, is_source=True))).start()
    r.request()
    coordinator: CheckpointCoordinator = r.coordinator

    def ack(subtask):
        state = make.state("s", make.file(f"f{subtask}"), make.file(f"g{subtask}", f"k{subtask}"))
        message = Acknowledge(
            job="job", epoch=Epoch(1), task=make.task("s", subtask), checkpoint=CheckpointId(1), state=state
        )
        return Acknowledged(message=message)

    coordinator.handle(ack(0), Instant(r.now))
    event, calls = ack(1), 0

    def count(_frame, _kind, _argument):
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        coordinator.handle(event, Instant(r.now))
    finally:
        sys.setprofile(before)
    return calls


def test_one_acknowledgement_does_as_much_among_three_subtasks_as_among_a_thousand(rig, make):
    assert calls_of_one_ack(rig, make, 3) == calls_of_one_ack(rig, make, 1_000)
