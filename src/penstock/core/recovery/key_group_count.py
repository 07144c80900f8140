"""How many key groups a job that starts from a snapshot has. Keyed state is saved by key group and cannot be moved to
another number of key groups. So the snapshot decides the number; another number from the user is refused."""

from __future__ import annotations

from itertools import pairwise

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot


def key_group_count(metadata: CheckpointMetadata, graph: CheckpointGraph, *, given: int | None) -> int:
    """The number of key groups that the graph must have to be restored from the snapshot. `given` is the number that
    the user asked for; None if the number was derived, and may change. Raises `UsageError` if no number fits."""
    recorded: dict[int, str] = {}
    for vertex in graph.vertices:
        found = _recorded_in(metadata, vertex)
        if found is not None:
            recorded.setdefault(found.max_parallelism, found.title)
    if not recorded:
        return graph.max_parallelism
    if len(recorded) > 1:
        texts = ", ".join(f"{title}: {count}" for count, title in sorted(recorded.items()))
        raise UsageError(
            f"steps of {metadata.title} were saved with different numbers of key groups ({texts})",
            hint="a job has one number of key groups; choose one of these numbers and drop the state of the steps with "
            "another number",
        )
    (count,) = recorded
    if given is not None and given != count:
        raise UsageError(
            f"{metadata.title} was taken with max_parallelism {count}, the job has {given}",
            hint=f"set max_parallelism={count}, or leave max_parallelism out",
        )
    highest = max(graph.vertices, key=lambda v: v.parallelism)
    if highest.parallelism > count:
        raise UsageError(
            f"{metadata.title} was taken with max_parallelism {count}, "
            f"and so cannot be restored with a parallelism of {highest.parallelism}",
            hint=f"choose a parallelism of at most {count}",
        )
    return count


def _recorded_in(metadata: CheckpointMetadata, vertex: CheckpointVertex) -> OperatorSnapshot | None:
    """An operator of the vertex whose number of key groups counts: an operator with keyed state, if there is one."""
    known = [metadata.operators[o] for o in vertex.operators if o in metadata.operators]
    keyed = [o for o in known if o.has_keyed_state]
    # Operators of one chain see the same records, so they must have the same key groups if one of them has keyed state.
    for one, other in pairwise(known):
        if keyed and one.max_parallelism != other.max_parallelism:
            raise UsageError(
                f"{metadata.title} has {one.title} with max_parallelism {one.max_parallelism} and {other.title} with "
                f"{other.max_parallelism}, which the program runs in one chain with keyed state",
                hint="put an exchange between the two steps, for example rebalance(), or drop the state of one step",
            )
    return next(iter(keyed or known), None)
