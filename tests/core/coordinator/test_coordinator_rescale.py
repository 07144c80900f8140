"""A job that goes on with another parallelism: the same coordinator, other tasks."""

from __future__ import annotations

import pytest

from penstock.core.coordinator.effects import (
    CreateLocation,
    SendOperatorEvent,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    FailedOver,
    JobEnd,
    OperatorEventSubmitted,
    RequestKind,
    ShutDown,
)
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.recovery.metadata import Claim, DiscardRules
from penstock.settings import Retention


def rescaled(job, graph):
    """The job leaves its attempt and comes up with another graph."""
    job.feed(FailedOver())
    job.graph = graph
    return job.start(graph=graph)


def two(make, parallelism):
    return make.graph(
        make.vertex("s", parallelism, is_source=True), make.vertex("t", parallelism), edges=(("s", "t", True),)
    )


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 1)])
def test_checkpoints_go_on_with_the_new_tasks_and_the_ids_and_records_of_before(rig, make, pick, old, new):
    job = rig(two(make, old)).start()
    job.request()
    job.ack_all(1)
    assert job.retained == [1]
    rescaled(job, two(make, new))
    effects = job.request()
    assert pick.triggered(effects) == [make.task("s", i) for i in range(new)]
    effects = job.ack_all(2)
    assert pick.completed(effects) == [2]
    (written,) = pick.of(effects, WriteMetadata)
    assert {o.parallelism for o in written.metadata.operators.values()} == {new}
    (stored,) = pick.of(effects, StorePointer)
    assert stored.forget == (1,)
    assert job.retained == [2]


def test_a_checkpoint_has_the_settings_of_the_job_with_the_parallelism_of_then(rig, make, pick):
    job = rig(two(make, 2), options=CoordinatorOptions(job_settings={"parallelism": 2, "other": "x"})).start()
    rescaled(job, two(make, 3))
    job.request()
    (written,) = pick.of(job.ack_all(1), WriteMetadata)
    assert written.metadata.settings == {"parallelism": 3, "other": "x"}


def test_a_late_acknowledgement_of_a_task_that_there_is_no_more_is_discarded(rig, make):
    job = rig(two(make, 3)).start()
    job.request()
    rescaled(job, two(make, 1))
    job.ack("t", 1, make.state("t", make.file("chk-1/t-2")), subtask=2, epoch=1)
    assert "chk-1/t-2" in job.deleted


def test_gateways_of_operator_coordinators_are_as_many_as_there_are_tasks(rig, make, pick):
    def graph(parallelism):
        return make.graph(make.vertex("s", parallelism, is_source=True, coordinators=(OperatorId("op-s"),)))

    job = rescaled(rig(graph(1)).start(), graph(2))
    event = OperatorEventSubmitted(operator=OperatorId("op-s"), subtask=1, event=b"split")
    (sent,) = pick.of(job.feed(event), SendOperatorEvent)
    assert sent.task == make.task("s", 1)


def test_nothing_may_be_under_way(rig, make):
    job = rig(two(make, 2)).start()
    job.hold.add(CreateLocation)
    job.request()
    with pytest.raises(InvariantError, match="while checkpoints \\[1\\] are under way"):
        job.coordinator._under_way.change_graph(two(make, 1))


def test_a_stop_under_way_can_be_seen(rig, make):
    job = rig(two(make, 2)).start()
    assert not job.coordinator.is_stopping
    job.request(RequestKind.STOP, target="saved")
    assert job.coordinator.is_stopping


# --- what the job was started from -----------------------------------------------------------------------------------


def test_what_the_job_was_started_from_is_not_counted_among_what_it_leaves_behind(rig, make):
    started_from = make.record(5, claim=Claim.NO_CLAIM, discard=DiscardRules())
    assert started_from.title == "checkpoint 5"
    job = rig(two(make, 1), completed=(started_from,), retention=Retention.KEEP, num_retained=2).start()
    assert job.coordinator.kept_after(JobEnd.CANCELLED) == ()
    job.request()
    job.ack_all(6)
    assert job.coordinator.kept_after(JobEnd.CANCELLED) == (CheckpointId(6),)
    job.feed(ShutDown(status=JobEnd.CANCELLED))
    assert job.deleted == []
