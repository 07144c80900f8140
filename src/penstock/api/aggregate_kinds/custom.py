"""Aggregates that users write: the methods of an `AggregateFunction` are called for each group.

The partial column has the state, as a value of its declared type or pickled. A group of which no record meets the
condition has a null in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.aggregate_functions import AggregateFunction, check_aggregate_function
from penstock.api.aggregate_kinds.base import AggregateKind, Calculation, Groups, one_array, type_of, value_of
from penstock.api.aggregate_kinds.description import CUSTOM, Aggregate
from penstock.api.connector import UserCodeRaised
from penstock.api.pickles import pickled, unpickled
from penstock.core.errors import StreamError
from penstock.sql.column_values import REFUSED, array_of, first_misfit
from penstock.sql.python_values import to_python


class Custom(AggregateKind):
    """An aggregate that the user wrote."""

    name = CUSTOM
    needs_column = False
    takes = "columns of every type"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """The state."""
        function = _function(aggregate)
        for column in function.columns:
            type_of(schema, column, role=f"aggregate {aggregate.name!r}: column")
        return [pa.field(aggregate.name, check_aggregate_function(function)[0] or pa.binary())]

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002
        """The declared type."""
        return check_aggregate_function(_function(aggregate))[1]

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """States of records."""
        return [Calculation(None, AddRecords(aggregate), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """States of states."""
        return [Calculation(aggregate.name, MergeStates(aggregate), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The results of the states."""
        states, kind = _States(aggregate), check_aggregate_function(_function(aggregate))[1]
        function = states.function

        def results() -> Any:
            found = states.read(one_array(merged.column(aggregate.name)))
            made = [function.result(function.create() if state is None else state) for state in found]
            return _column(made, kind, f"the result of aggregate {aggregate.name!r}")

        return _called(function, "result", results)


class AddRecords:
    """Adds the records of each group to a state."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate
        self._states = _States(aggregate)

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """One state per group."""
        aggregate, function = self._aggregate, self._states.function
        order, numbers = groups.order, groups.numbers
        if aggregate.where is not None:
            met = one_array(table.column(str(value_of(aggregate, None)))).is_valid().to_numpy(zero_copy_only=False)
            order, numbers = order[met[order]], numbers[met[order]]
        names = [str(value_of(aggregate, column)) for column in function.columns]
        arrays = [one_array(table.column(name)).take(pa.array(order)) for name in names]
        records = pa.RecordBatch.from_arrays(arrays, names=list(function.columns))
        edges = np.searchsorted(numbers, np.arange(len(groups) + 1)).tolist()

        def added(first: int, last: int) -> Any:
            if first == last:
                return None
            return _given(function.add_batch(function.create(), records.slice(first, last - first)))

        return _called(function, "add", lambda: self._states.written([added(*span) for span in pairwise(edges)]))


class MergeStates:
    """Merges the states of each group."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._states = _States(aggregate)
        self._column = aggregate.name

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """One state per group. If every group has one state, no state is read."""
        column = one_array(table.column(self._column)).take(pa.array(groups.order))
        if len(groups) == len(column):
            return column
        function = self._states.function

        def merged() -> list[Any]:
            found: list[Any] = [None] * len(groups)
            for number, state in zip(groups.numbers.tolist(), self._states.read(column), strict=True):
                if state is not None:
                    before = found[number]
                    found[number] = state if before is None else _given(function.merge(before, state))
            return found

        return _called(function, "merge", lambda: self._states.written(merged()))


class _States:
    """The states of an aggregate between Python and Arrow. None is the state of a group without records."""

    def __init__(self, aggregate: Aggregate) -> None:
        self.function = _function(aggregate)
        self._kind = check_aggregate_function(self.function)[0]
        self._what = f"the state of aggregate {aggregate.name!r}"

    def read(self, column: Any) -> list[Any]:
        """The states of a column."""
        found = to_python(column)
        if self._kind is not None:
            return found
        return [None if data is None else unpickled(data, what=self._what) for data in found]

    def written(self, states: Sequence[Any]) -> Any:
        """The column of states."""
        if self._kind is not None:
            return _column(states, self._kind, self._what)
        return pa.array([None if state is None else pickled(state) for state in states], pa.binary())


def _column(values: Sequence[Any], kind: pa.DataType, what: str) -> Any:
    """A column of values that a method returned. Raises `TypeError` for a value that does not fit the type."""
    try:
        return array_of(values, kind)
    except REFUSED as error:
        found = first_misfit(values, kind)
        got = str(error) if found is None else f"got {found[1]}: {found[2]}"
        raise TypeError(f"{what} must be of type {kind}; {got}") from error


def _given(state: Any) -> Any:
    """The state that a method returned."""
    if state is None:
        raise TypeError("the method returned None instead of the state")
    return state


def _function(aggregate: Aggregate) -> AggregateFunction:
    assert isinstance(aggregate.function, AggregateFunction), "a custom aggregate comes with its function"
    return aggregate.function


def _called(function: AggregateFunction, method: str, call: Callable[[], Any]) -> Any:
    """What a call of user code returns. An exception is raised as `UserCodeRaised`."""
    try:
        return call()
    except (StreamError, KeyboardInterrupt):
        # `KeyboardInterrupt` may be meant for the whole process.
        raise
    except BaseException as error:
        raise UserCodeRaised(f"{method} of {type(function).__name__}") from error
