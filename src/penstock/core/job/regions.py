"""Failover regions: the tasks that must be restarted together when one of them fails, or the slot that runs some.

Tasks that are joined by a channel share a region: what one of them sent, and forgets when it is put back, the other has
received. Between regions nothing flows, so that the rest of the job can go on. A job whose steps all hang together,
with an exchange among them, is one region. Pipelines that have nothing to do with each other are regions of their own;
and without any exchange so is each of their parallel slices.

A vertex with an operator coordinator makes the whole job one region: what the coordinator has handed out is not put
back with single tasks. So does a master hook, which keeps something in step with the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.graph import CheckpointGraph
from penstock.core.ids import TaskId

Region = tuple[TaskId, ...]


def regions_of(graph: CheckpointGraph) -> dict[TaskId, Region]:
    """The region of every task, its tasks in the order of the graph."""
    if graph.hooks or any(vertex.coordinators for vertex in graph.vertices):
        return dict.fromkeys(graph.tasks, graph.tasks)
    leader = {task: task for task in graph.tasks}

    def find(task: TaskId) -> TaskId:
        while leader[task] != task:
            leader[task] = leader[leader[task]]
            task = leader[task]
        return task

    for edge in graph.edges:
        upstream, downstream = graph.vertex(edge.upstream).tasks, graph.vertex(edge.downstream).tasks
        for number, task in enumerate(downstream):
            # All to all, it is enough that everybody is joined to the first.
            leader[find(task)] = find(upstream[0] if edge.all_to_all else upstream[number])
        if edge.all_to_all:
            for task in upstream:
                leader[find(task)] = find(upstream[0])
    members: dict[TaskId, list[TaskId]] = {}
    for task in graph.tasks:
        members.setdefault(find(task), []).append(task)
    return {task: tuple(members[find(task)]) for task in graph.tasks}


def regions_at(place: int, regions: Mapping[TaskId, Region]) -> Region:
    """All tasks of the regions that have one in a place, in the order of the graph."""
    hit = dict.fromkeys(task for here, region in regions.items() if here.subtask == place for task in region)
    return tuple(task for task in regions if task in hit)
