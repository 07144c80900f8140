"""Builds the operator that runs a step of the program."""

from __future__ import annotations

from typing import assert_never

from penstock.api.grouped import GroupedFunction
from penstock.api.steps import (
    AsyncMapStep,
    CombineStep,
    KeyedProcessStep,
    MapBatchesStep,
    MapStep,
    ProcessStep,
    ReadStep,
    SelectStep,
    Step,
    UnionStep,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.runtime.task.operators.async_map import AsyncMapOperator
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.driver_sink import DriverCommittedSink
from penstock.runtime.task.operators.functions import MapBatchesOperator, MapOperator
from penstock.runtime.task.operators.grouped import GroupedOperator
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.operators.process import ProcessOperator
from penstock.runtime.task.operators.sink import SinkOperator
from penstock.runtime.task.operators.source import SourceOperator
from penstock.runtime.task.operators.waiting import WaitingOperator
from penstock.runtime.task.operators.watermark import WatermarkOperator
from penstock.runtime.task.operators.windows import CombineOperator, WindowOperator


def build_operator(step: Step) -> Operator:
    """An operator for `step`, not yet opened."""
    match step:
        case ReadStep():
            return SourceOperator(step)
        case WatermarkStep():
            return WatermarkOperator(step)
        case WhereStep() | SelectStep() | UnionStep():
            return _operator_on_columns(step)
        case MapBatchesStep():
            return MapBatchesOperator(step)
        case MapStep():
            return MapOperator(step)
        case AsyncMapStep():
            return AsyncMapOperator(step)
        case ProcessStep():
            return ProcessOperator(step)
        case KeyedProcessStep():
            if isinstance(step.function, GroupedFunction):
                return GroupedOperator(step, step.function)
            return KeyedOperator(step) if step.wait is None else WaitingOperator(step)
        case CombineStep():
            return CombineOperator(step)
        case WindowStep():
            assert not step.window.merges, f"no operator merges windows: {step.window}"
            return WindowOperator(step)
        case WriteStep():
            return DriverCommittedSink(step) if step.sink.commits_on_driver else SinkOperator(step)
        case _:
            assert_never(step)


def _operator_on_columns(step: WhereStep | SelectStep | UnionStep) -> Operator:
    # Not imported at the top: a slot that needs no Polars starts sooner without Polars.
    from penstock.runtime.task.operators.columns import SelectOperator, UnionOperator, WhereOperator

    match step:
        case WhereStep():
            return WhereOperator(step)
        case SelectStep():
            return SelectOperator(step)
        case UnionStep():
            return UnionOperator(step)
        case _:
            assert_never(step)
