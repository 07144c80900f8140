"""How a plan changes where late records are read.

A window step usually gets partial aggregates: records are combined before they are sent to the step by key. Which
records are late is known only in the window step, because the event time of the step is the least of all its inputs. So
where late records are read, records travel as they are, and the window step combines the records that are not late.
State and results are the same in both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.api.naming import RecordedStep
from penstock.api.steps import LATE, UPDATES, CombineStep, WindowStep
from penstock.core.errors import InvariantError, UsageError
from penstock.plan.graph import Input, Partitioning


def with_late_records(steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """The steps of a plan. If late records of a window are read, the window reads records, and the step that would
    combine these records is left out."""
    updating = {s.number: s for s in steps if isinstance(s.step, WindowStep) and s.step.updates is not None}
    steps = [replace(step, inputs=tuple(_output(source, updating) for source in step.inputs)) for step in steps]
    read = {source.node for step in steps for source in step.inputs if source.side == LATE}
    by_number = {step.number: step for step in steps}
    left_out: set[int] = set()
    found: list[RecordedStep] = []
    for step in steps:
        if step.number not in read or not isinstance(step.step, WindowStep):
            found.append(step)
            continue
        combine = by_number[step.inputs[0].node]
        if not isinstance(combine.step, CombineStep):
            raise InvariantError(f"the window {step} gets its partial aggregates from {combine}")
        left_out.add(combine.number)
        # The records go to the window by key. How they would have gone to the step that is left out does not matter.
        before = combine.inputs[0]
        records = Input(node=before.node, partitioning=Partitioning.HASH, keys=step.step.keys, side=before.side)
        found.append(replace(step, step=replace(step.step, combine=combine.step), inputs=(records,)))
    return [step for step in found if step.number not in left_out]


def _output(source: Input, updating: Mapping[int, RecordedStep]) -> Input:
    """The output of a step that is read. Raises `UsageError` if the final results of a window are read that is one of
    the windows that show updates."""
    if source.side == UPDATES:
        return replace(source, side=None)
    if source.side is None and source.node in updating:
        raise UsageError(
            f"the window {updating[source.node]} shows updates, and its final results are read, too",
            hint="use the stream that updates() returns for everything, or make a second window for the final results",
        )
    return source
