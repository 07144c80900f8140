"""Which tasks restart together."""

from __future__ import annotations

import msgspec

from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.job.regions import Region, regions_of

Joined = tuple[str, str, bool]


def graph(parallelism: int, *edges: Joined, vertices: str = "abcd", coordinated: bool = False) -> CheckpointGraph:
    return CheckpointGraph(
        vertices=tuple(
            CheckpointVertex(
                vertex=VertexId(name),
                parallelism=parallelism,
                operators=(OperatorId(name),),
                coordinators=(OperatorId(name),) if coordinated else (),
            )
            for name in vertices
        ),
        edges=tuple(
            CheckpointEdge(upstream=VertexId(up), downstream=VertexId(down), all_to_all=all_to_all)
            for up, down, all_to_all in edges
        ),
    )


def tasks(*names: str) -> Region:
    return tuple(TaskId(VertexId(name[0]), int(name[1:])) for name in names)


def regions(made: CheckpointGraph) -> list[Region]:
    found = regions_of(made)
    assert list(found) == list(made.tasks)
    assert all(task in region for task, region in found.items())
    return list(dict.fromkeys(found.values()))


def test_vertices_that_nothing_joins_are_regions_by_subtask():
    assert regions(graph(2, vertices="a")) == [tasks("a0"), tasks("a1")]


def test_an_exchange_joins_all_subtasks_of_both_sides():
    assert regions(graph(3, ("a", "b", True), vertices="ab")) == [tasks("a0", "a1", "a2", "b0", "b1", "b2")]


def test_a_pointwise_edge_joins_pairs():
    assert regions(graph(2, ("a", "b", False), ("b", "c", False), vertices="abc")) == [
        tasks("a0", "b0", "c0"),
        tasks("a1", "b1", "c1"),
    ]


def test_pipelines_that_nothing_joins_are_regions_of_their_own():
    made = graph(2, ("a", "b", True), ("c", "d", True))
    assert regions(made) == [tasks("a0", "a1", "b0", "b1"), tasks("c0", "c1", "d0", "d1")]


def test_one_exchange_further_down_joins_what_was_apart_before_it():
    made = graph(2, ("a", "c", False), ("b", "c", False), ("c", "d", True))
    assert regions(made) == [made.tasks]


def test_a_step_with_a_coordinator_makes_the_job_one_region():
    made = graph(2, vertices="ab", coordinated=True)
    assert regions(made) == [made.tasks]


def test_a_hook_makes_the_job_one_region():
    made = msgspec.structs.replace(graph(2, vertices="ab"), hooks=("outside",))
    assert regions(made) == [made.tasks]
