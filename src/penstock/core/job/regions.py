"""Failover regions: the tasks that must be restarted together when one of them fails, or when a slot that runs one of
them is lost.

Tasks that are joined by a channel share a region. If only one of the two tasks were put back to a checkpoint, the other
task would get records twice, or records would be missing. Between regions nothing flows, so the rest of the job can go
on while a region restarts. A job whose steps are all joined, with an exchange among them, is one region. Pipelines that
nothing joins are regions of their own. In a pipeline without an exchange each parallel slice is a region of its own.

A vertex with an operator coordinator makes the whole job one region: the coordinator is put back only together with all
tasks. A hook makes the whole job one region, too: the outside system of the hook is in step with the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.graph import CheckpointGraph
from penstock.core.ids import TaskId

Region = tuple[TaskId, ...]


def regions_of(graph: CheckpointGraph) -> dict[TaskId, Region]:
    """The region of every task. The tasks of a region are in the order of the graph."""
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
            # If the edge is all to all, it is enough to join every task with the first upstream task.
            leader[find(task)] = find(upstream[0] if edge.all_to_all else upstream[number])
        if edge.all_to_all:
            for task in upstream:
                leader[find(task)] = find(upstream[0])
    members: dict[TaskId, list[TaskId]] = {}
    for task in graph.tasks:
        members.setdefault(find(task), []).append(task)
    return {task: tuple(members[find(task)]) for task in graph.tasks}


def regions_at(place: int, regions: Mapping[TaskId, Region]) -> Region:
    """All tasks of the regions that have a task in `place`, in the order of the graph."""
    hit = dict.fromkeys(task for here, region in regions.items() if here.subtask == place for task in region)
    return tuple(task for task in regions if task in hit)
