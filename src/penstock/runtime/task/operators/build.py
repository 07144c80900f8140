"""Builds the operator that runs a step of the program."""

from __future__ import annotations

from typing import assert_never

from penstock.api.first_rows import FirstOfKey, FirstRows
from penstock.api.functions import KeyedCoFunction
from penstock.api.grouped import GroupedFunction
from penstock.api.other_windows import CountWindow
from penstock.api.pane_windows import PaneWindow
from penstock.api.steps import (
    ApplyStep,
    AsyncMapStep,
    CombineStep,
    DeduplicateStep,
    FilterStep,
    JoinStep,
    KeyedProcessStep,
    ListedRowsStep,
    MapBatchesStep,
    MapStep,
    PatternStep,
    ProcessStep,
    ReadStep,
    RegularJoinStep,
    RunningCombineStep,
    RunningStep,
    SampleStep,
    SelectStep,
    SortStep,
    SplitStep,
    Step,
    TableJoinStep,
    TopStep,
    UnionStep,
    VersionJoinStep,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.windows import SessionWindow
from penstock.runtime.task.operators.applying import ApplyOperator
from penstock.runtime.task.operators.async_map import AsyncMapOperator
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.choosing import FilterOperator, SampleOperator
from penstock.runtime.task.operators.clock_windows import ClockPaneOperator, ClockSessionOperator, ClockWindowOperator
from penstock.runtime.task.operators.co_process import CoOperator
from penstock.runtime.task.operators.count_windows import CountWindowOperator
from penstock.runtime.task.operators.deduplicate import DeduplicateOperator, LastRecordOperator
from penstock.runtime.task.operators.distinct import DistinctOperator
from penstock.runtime.task.operators.driver_sink import DriverCommittedSink
from penstock.runtime.task.operators.functions import MapBatchesOperator, MapOperator
from penstock.runtime.task.operators.grouped import GroupedOperator
from penstock.runtime.task.operators.join import JoinOperator
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.operators.late_windows import (
    LatePaneWindowOperator,
    LateSessionWindowOperator,
    LateUpdatingPaneOperator,
    LateUpdatingSessionOperator,
    LateWindowOperator,
)
from penstock.runtime.task.operators.limit import LimitOperator
from penstock.runtime.task.operators.listed_rows import ListedRowsOperator
from penstock.runtime.task.operators.pane_windows import PaneWindowOperator
from penstock.runtime.task.operators.process import ProcessOperator
from penstock.runtime.task.operators.regular_join import RegularJoinOperator
from penstock.runtime.task.operators.running import RunningCombineOperator, RunningOperator
from penstock.runtime.task.operators.session_windows import SessionCombineOperator, SessionWindowOperator
from penstock.runtime.task.operators.sink import SinkOperator
from penstock.runtime.task.operators.sort import SortOperator
from penstock.runtime.task.operators.source import SourceOperator
from penstock.runtime.task.operators.table_join import TableJoinOperator
from penstock.runtime.task.operators.top import TopOperator
from penstock.runtime.task.operators.updating_panes import UpdatingPaneOperator
from penstock.runtime.task.operators.updating_sessions import UpdatingSessionOperator
from penstock.runtime.task.operators.version_join import VersionJoinOperator
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
        case WhereStep() | SplitStep() | SelectStep() | UnionStep() | PatternStep():
            return _operator_on_columns(step)
        case MapBatchesStep():
            return MapBatchesOperator(step)
        case ApplyStep() | ListedRowsStep():
            return ApplyOperator(step) if isinstance(step, ApplyStep) else ListedRowsOperator(step)
        case MapStep():
            return MapOperator(step)
        case FilterStep() | SampleStep():
            return FilterOperator(step) if isinstance(step, FilterStep) else SampleOperator(step)
        case AsyncMapStep():
            return AsyncMapOperator(step)
        case ProcessStep():
            return _process_operator(step)
        case KeyedProcessStep():
            return _keyed_operator(step)
        case CombineStep() | WindowStep() | RunningCombineStep() | RunningStep():
            return _aggregate_operator(step)
        case DeduplicateStep() | SortStep():
            return SortOperator(step) if isinstance(step, SortStep) else _deduplicating(step)
        case JoinStep() | RegularJoinStep() | TableJoinStep() | VersionJoinStep():
            return _join_operator(step)
        case WriteStep():
            return DriverCommittedSink(step) if step.sink.commits_on_driver else SinkOperator(step)
        case _:
            assert_never(step)


def _process_operator(step: ProcessStep) -> Operator:
    function = step.function
    if isinstance(function, FirstRows) and function.ends_sources:
        return LimitOperator(step, function)
    return ProcessOperator(step)


def _keyed_operator(step: KeyedProcessStep) -> Operator:
    if isinstance(step.function, GroupedFunction):
        return GroupedOperator(step, step.function)
    if isinstance(step.function, FirstOfKey):
        return DistinctOperator(step, step.function)
    if isinstance(step.function, KeyedCoFunction) and step.right is not None:
        return CoOperator(step, step.function, step.right)
    return KeyedOperator(step) if step.wait is None else WaitingOperator(step)


def _deduplicating(step: DeduplicateStep) -> Operator:
    return LastRecordOperator(step) if step.keeps_last else DeduplicateOperator(step)


def _join_operator(step: JoinStep | RegularJoinStep | TableJoinStep | VersionJoinStep) -> Operator:
    match step:
        case JoinStep():
            return JoinOperator(step)
        case RegularJoinStep():
            return RegularJoinOperator(step)
        case TableJoinStep():
            return TableJoinOperator(step)
        case VersionJoinStep():
            return VersionJoinOperator(step)
        case _:
            assert_never(step)


def _aggregate_operator(step: CombineStep | WindowStep | RunningCombineStep | RunningStep) -> Operator:
    match step:
        case CombineStep():
            return SessionCombineOperator(step) if isinstance(step.window, SessionWindow) else CombineOperator(step)
        case WindowStep():
            return _window_operator(step)
        case RunningCombineStep():
            return RunningCombineOperator(step)
        case RunningStep():
            return TopOperator(step) if isinstance(step, TopStep) else RunningOperator(step)
        case _:
            assert_never(step)


def _window_operator(step: WindowStep) -> Operator:
    if step.updates is not None:
        return _updating_operator(step)
    if isinstance(step.window, CountWindow):
        return CountWindowOperator(step)
    if step.window.by_clock:
        if isinstance(step.window, PaneWindow):
            return ClockPaneOperator(step)
        return ClockSessionOperator(step) if isinstance(step.window, SessionWindow) else ClockWindowOperator(step)
    if isinstance(step.window, PaneWindow):
        return PaneWindowOperator(step) if step.combine is None else LatePaneWindowOperator(step, step.combine)
    if isinstance(step.window, SessionWindow):
        return SessionWindowOperator(step) if step.combine is None else LateSessionWindowOperator(step, step.combine)
    return WindowOperator(step) if step.combine is None else LateWindowOperator(step, step.combine)


def _updating_operator(step: WindowStep) -> Operator:
    if isinstance(step.window, SessionWindow):
        if step.combine is None:
            return UpdatingSessionOperator(step)
        return LateUpdatingSessionOperator(step, step.combine)
    return UpdatingPaneOperator(step) if step.combine is None else LateUpdatingPaneOperator(step, step.combine)


def _operator_on_columns(step: WhereStep | SplitStep | SelectStep | UnionStep | PatternStep) -> Operator:
    # Not imported at the top: a slot that needs no Polars starts sooner without Polars.
    from penstock.runtime.task.operators.columns import SelectOperator, SplitOperator, UnionOperator, WhereOperator
    from penstock.runtime.task.operators.exploding import ExplodeOperator
    from penstock.runtime.task.operators.pattern import PatternOperator

    match step:
        case WhereStep():
            return WhereOperator(step)
        case SplitStep():
            return SplitOperator(step)
        case SelectStep():
            return SelectOperator(step) if step.explosion is None else ExplodeOperator(step, step.explosion)
        case UnionStep():
            return UnionOperator(step)
        case PatternStep():
            return PatternOperator(step)
        case _:
            assert_never(step)
