"""Whether the functions of a program can be sent to the workers."""

from __future__ import annotations

import cloudpickle

from penstock.api.grouped import GroupedFunction
from penstock.api.steps import KeyedProcessStep, ReadStep, TableJoinStep, WriteStep
from penstock.core.errors import UsageError
from penstock.plan.graph import Plan


def check_functions_travel(plan: Plan) -> None:
    """Raise `UsageError` if the function of a step cannot be sent to the workers. Sources, sinks, tables and
    processors are not checked here: they have parts that stay on the driver, and check themselves."""
    for operator in (operator for vertex in plan.vertices for operator in vertex.operators):
        step = operator.step
        if isinstance(step, ReadStep | TableJoinStep | WriteStep):
            continue
        if isinstance(step, KeyedProcessStep) and isinstance(step.function, GroupedFunction):
            continue
        try:
            cloudpickle.dumps(step)
        except Exception as error:
            raise UsageError(
                f"step {operator.name!r} cannot be sent to the workers: {error}",
                hint="everything that the function uses from outside is sent with the function. Locks, connections, "
                "files and sessions cannot be sent: open them in `open` of a ps.ProcessFunction or ps.KeyedFunction",
            ) from error
