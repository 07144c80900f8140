"""Aggregates of changelogs: records may be taken back.

A count and a sum can be taken back by subtraction. Of which value a minimum was made is not known any more when that
value is taken back. So all other kinds keep the values of a group, each once with how often it is there, and compute
their result from these values. Such a partial grows with the number of distinct values of a group.

The sum of doubles keeps NaNs and infinite values apart, as counts: subtraction would never get rid of them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import (
    AggregateKind,
    Calculation,
    Groups,
    names_of,
    normal_keys,
    one_array,
    type_of,
    value_of,
)
from penstock.api.aggregate_kinds.description import CUSTOM, TOP_ROWS, Aggregate
from penstock.api.aggregate_kinds.lists import as_lists, flattened
from penstock.api.aggregate_kinds.registry import KINDS, kind_of
from penstock.api.aggregate_kinds.top_rows import first_records
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key

Signs = npt.NDArray[np.int64]
"""1 for each record that is added, and -1 for each record that is taken back."""

SIGN = "\0\0sign"
"""The column with the signs while records are grouped."""
_TIMES = "n"
"""The field of an entry that says how often its values are there."""
_GROUP = "\0group"
_SKETCHES = ("approx_count_distinct", "approx_quantile")


class RetractingKind(AggregateKind):
    """A kind whose records can be taken back."""

    needs_column = False
    takes = ""

    @abstractmethod
    def signed_columns(self, aggregate: Aggregate, values: pa.Table, signs: Signs) -> dict[str, Any]:
        """The columns that `of_records` reads besides `values` and `SIGN`, by name."""

    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The type of the same aggregate of records that stay."""
        return kind_of(aggregate).result_type(aggregate, schema)


def retracting_kind(aggregate: Aggregate, schema: pa.Schema) -> RetractingKind:
    """The kind for records of `schema` that may be taken back. Raises `UsageError` if there is none."""
    if aggregate.kind == CUSTOM or aggregate.kind in _SKETCHES:
        able = [kind for name, kind in KINDS.items() if name != CUSTOM and name not in _SKETCHES]
        raise UsageError(
            f"aggregate {aggregate.name!r}: {aggregate.kind} cannot take a record back, and this stream is a changelog",
            hint=f"{names_of(able)} can; or aggregate the changes as plain records: .changes()",
        )
    kind_of(aggregate).partial_fields(aggregate, schema)
    if aggregate.kind == "count":
        return _COUNT
    if aggregate.kind == TOP_ROWS:
        return _TOP_ROWS
    if aggregate.kind in ("sum", "mean"):
        value = type_of(schema, str(aggregate.column), role=f"aggregate {aggregate.name!r}: column")
        if pt.is_integer(value):
            return _WHOLE[aggregate.kind]
        if pt.is_floating(value):
            return _DOUBLES[aggregate.kind]
    return _ENTRIES


class _Count(RetractingKind):
    """Counts added and taken back."""

    name = "count"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:  # noqa: ARG002
        """A count."""
        return [pa.field(aggregate.name, pa.int64())]

    def signed_columns(self, aggregate: Aggregate, values: pa.Table, signs: Signs) -> dict[str, Any]:
        """The sign of every record that counts."""
        return {_signed(aggregate, "count"): _counted(aggregate, values, signs)}

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """A sum of signs."""
        return [Calculation(_signed(aggregate, "count"), "sum", aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """A sum."""
        return [Calculation(aggregate.name, "sum", aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The count."""
        return merged.column(aggregate.name)


class _WholeSum(RetractingKind):
    """A sum of whole numbers with their number; and the mean, if asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:  # noqa: ARG002
        """A sum and a count."""
        return [pa.field(name, pa.int64()) for name in _parts(aggregate, "sum", "count")]

    def signed_columns(self, aggregate: Aggregate, values: pa.Table, signs: Signs) -> dict[str, Any]:
        """Values with their signs, and the signs."""
        column = one_array(values.column(str(value_of(aggregate, aggregate.column)))).cast(pa.int64())
        return {
            _signed(aggregate, "sum"): pa.array(column.fill_null(0).to_numpy() * signs),
            _signed(aggregate, "count"): _counted(aggregate, values, signs),
        }

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Two sums."""
        names = _parts(aggregate, "sum", "count")
        return [Calculation(_signed(aggregate, part), "sum", names[i]) for i, part in enumerate(("sum", "count"))]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Two sums."""
        return [Calculation(name, "sum", name) for name in _parts(aggregate, "sum", "count")]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The sum or the mean; null if no value is left."""
        total, count = (one_array(merged.column(name)) for name in _parts(aggregate, "sum", "count"))
        return _total_or_mean(self.name, total, count)


class _DoubleSum(RetractingKind):
    """A sum of doubles with the number of values of each sort; and the mean, if asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    _SORTS = ("count", "nan", "more", "less")

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:  # noqa: ARG002
        """The sum of finite values; the counts of all values, of NaNs and of the two infinite values."""
        first, *counts = _parts(aggregate, "sum", *self._SORTS)
        return [pa.field(first, pa.float64()), *(pa.field(name, pa.int64()) for name in counts)]

    def signed_columns(self, aggregate: Aggregate, values: pa.Table, signs: Signs) -> dict[str, Any]:
        """Values with their signs, and the signs of the values of each sort."""
        column = one_array(values.column(str(value_of(aggregate, aggregate.column)))).cast(pa.float64())
        numbers = column.fill_null(0.0).to_numpy()
        sorts = {"nan": np.isnan(numbers), "more": numbers == np.inf, "less": numbers == -np.inf}
        return {
            _signed(aggregate, "sum"): pa.array(np.where(np.isfinite(numbers), numbers, 0.0) * signs),
            _signed(aggregate, "count"): _counted(aggregate, values, signs),
            **{_signed(aggregate, sort): pa.array(np.where(found, signs, 0)) for sort, found in sorts.items()},
        }

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Sums."""
        names = _parts(aggregate, "sum", *self._SORTS)
        return [Calculation(_signed(aggregate, part), "sum", names[i]) for i, part in enumerate(("sum", *self._SORTS))]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Sums."""
        return [Calculation(name, "sum", name) for name in _parts(aggregate, "sum", *self._SORTS)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The sum or the mean; null if no value is left."""
        total, *counts = (one_array(merged.column(name)).to_numpy() for name in _parts(aggregate, "sum", *self._SORTS))
        count, nans, more, less = counts
        total = np.where((nans > 0) | ((more > 0) & (less > 0)), np.nan, total)
        total = np.where((more > 0) & (less == 0) & (nans == 0), np.inf, total)
        total = np.where((less > 0) & (more == 0) & (nans == 0), -np.inf, total)
        return _total_or_mean(self.name, pa.array(total + 0.0), pa.array(count))


class _Entries(RetractingKind):
    """The distinct values of a group with how often each is there. Serves every kind whose result depends on nothing
    but its values."""

    name = "entries"

    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """A list of values. Values that order records are beside the values that they order."""
        fields = [(f"v{i}", type_of(schema, name, role="column")) for i, name in enumerate(_columns(aggregate))]
        for (_, kind), column in zip(fields, _columns(aggregate), strict=True):
            if not can_be_key(kind):
                raise UsageError(
                    f"aggregate {aggregate.name!r}: values of column {column!r} of type {kind} cannot be taken back, "
                    "and this stream is a changelog",
                    hint="aggregate a column of numbers, booleans, dates, times, timestamps, strings or binary",
                )
        return [pa.field(aggregate.name, pa.list_(pa.struct([*fields, (_TIMES, pa.int64())])))]

    def signed_columns(self, aggregate: Aggregate, values: pa.Table, signs: Signs) -> dict[str, Any]:  # noqa: ARG002
        """No column."""
        return {}

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Entries of records."""
        columns = tuple(str(value_of(aggregate, name)) for name in _columns(aggregate))
        return [Calculation(None, EntriesOfRecords(columns), aggregate.name)]

    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """Entries of entries."""
        return [Calculation(None, EntriesOfPartials(aggregate.name), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """What the aggregate is of all values that are left. Groups without values are groups of one null."""
        lists = one_array(merged.column(aggregate.name))
        entries, numbers = flattened(lists, np.arange(len(lists)))
        *values, times = entries.flatten()
        repeated = np.repeat(np.arange(len(entries)), np.maximum(times.to_numpy(), 0))
        numbers = numbers[repeated]
        empty = np.setdiff1d(np.arange(len(lists)), numbers)
        rows = pa.array(
            np.append(repeated, np.zeros(len(empty), np.int64)),
            mask=np.append(np.zeros(len(repeated), np.bool_), np.ones(len(empty), np.bool_)),
        )
        numbers = np.append(numbers, empty)
        order = np.argsort(numbers, kind="stable")
        columns = {
            str(value_of(aggregate, name)): one_array(column.take(rows)).take(pa.array(order))
            for name, column in zip(_columns(aggregate), values, strict=True)
        }
        table = pa.table({**columns, _GROUP: pa.array(numbers[order])})
        groups = Groups(np.arange(table.num_rows), np.searchsorted(numbers[order], np.arange(len(lists))))
        kind = kind_of(aggregate)
        partials = {c.name: _calculated(c, table, groups) for c in kind.of_records(aggregate)}
        return kind.result(aggregate, pa.table(partials))


class _TopRows(_Entries):
    """All distinct records of a group with how often each is there: when a first record is taken back, the next record
    of the order takes its place."""

    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """Entries of records. Records of nothing but null are records, too."""
        columns = tuple(str(value_of(aggregate, name)) for name in _columns(aggregate))
        return [Calculation(None, EntriesOfRecords(columns, keeps_nulls=True), aggregate.name)]

    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The first of the records that are left."""
        lists = one_array(merged.column(aggregate.name))
        entries, numbers = flattened(lists, np.arange(len(lists)))
        *values, times = entries.flatten()
        repeated = np.repeat(np.arange(len(entries)), np.maximum(times.to_numpy(), 0))
        rows: Any = pa.array(repeated)
        records = pc.make_struct(*(column.take(rows) for column in values), field_names=_columns(aggregate))
        return first_records(records, numbers[repeated], len(lists), aggregate)


class EntriesOfRecords:
    """The distinct values of the records of each group."""

    def __init__(self, columns: tuple[str, ...], *, keeps_nulls: bool = False) -> None:
        self._columns = columns
        self._keeps_nulls = keeps_nulls

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists of entries. Records of nothing but null are left out, unless they are kept: most kinds leave them
        out."""
        order: Any = pa.array(groups.order)
        columns = [normal_keys(one_array(table.column(name))).take(order) for name in self._columns]
        times = one_array(table.column(SIGN)).take(order)
        known = np.full(len(times), self._keeps_nulls)
        for column in columns:
            known |= column.is_valid().to_numpy(zero_copy_only=False)
        kept: Any = pa.array(known)
        return _entries([c.filter(kept) for c in columns], times.filter(kept), groups.numbers[known], len(groups))


class EntriesOfPartials:
    """The distinct entries of the lists of each group."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """Lists of entries."""
        lists = one_array(table.column(self._column)).take(pa.array(groups.order))
        entries, numbers = flattened(lists, groups.numbers)
        *columns, times = entries.flatten()
        return _entries(columns, times, numbers, len(groups))


def _entries(columns: list[Any], times: Any, numbers: Any, groups: int) -> Any:
    """Lists of distinct entries, without the entries that are there no more. `numbers` are the groups of the
    entries."""
    names = [f"v{i}" for i in range(len(columns))]
    table = pa.table([pa.array(numbers, pa.int64()), *columns, times], names=[_GROUP, *names, _TIMES])
    grouped: Any = pa.TableGroupBy(table, [_GROUP, *names], use_threads=False).aggregate([(_TIMES, "sum")])
    left: Any = pa.array(grouped.column(f"{_TIMES}_sum").to_numpy() != 0)
    grouped = grouped.filter(left)
    found = grouped.column(_GROUP).to_numpy()
    order: Any = pa.array(np.argsort(found, kind="stable"))
    parts = [one_array(grouped.column(name)).take(order) for name in (*names, f"{_TIMES}_sum")]
    entries = pc.make_struct(*parts, field_names=[*names, _TIMES])
    return as_lists(entries, np.sort(found), groups)


def _calculated(calculation: Calculation, table: pa.Table, groups: Groups) -> Any:
    """The column of a calculation over a table whose rows are in the order of their groups."""
    if not isinstance(calculation.function, str):
        return calculation.function(table, groups)
    column, name = one_array(table.column(str(calculation.column))), str(calculation.column)
    grouping = pa.TableGroupBy(table.select([_GROUP, name]), [_GROUP], use_threads=False)
    wanted: Any = [(name, calculation.function)]
    found: Any = one_array(grouping.aggregate(wanted).column(1))
    if calculation.function == "max" and pt.is_floating(column.type):
        # Arrow leaves NaN out; in Spark NaN is the greatest.
        marks: Any = pc.coalesce(pc.is_nan(column), pa.scalar(False))  # noqa: FBT003  # a value
        nans = np.bincount(groups.numbers, marks.to_numpy(zero_copy_only=False))
        return pc.if_else(pa.array(nans > 0), pa.scalar(float("nan"), column.type), found)
    return found


def _columns(aggregate: Aggregate) -> tuple[str, ...]:
    return tuple(dict.fromkeys(aggregate.columns))


def _parts(aggregate: Aggregate, first: str, *others: str) -> list[str]:  # noqa: ARG001  # the first has no suffix
    return [aggregate.name, *(f"{aggregate.name}__{part}" for part in others)]


def _signed(aggregate: Aggregate, part: str) -> str:
    return f"\0\0{part}\0{aggregate.name}"


def _counted(aggregate: Aggregate, values: pa.Table, signs: Signs) -> Any:
    """The signs of the records that count, and 0 for all others."""
    name = value_of(aggregate, aggregate.column)
    if name is None:
        return pa.array(signs)
    return pa.array(np.where(one_array(values.column(name)).is_valid().to_numpy(zero_copy_only=False), signs, 0))


def _total_or_mean(name: str, total: Any, count: Any) -> Any:
    some = pa.array(count.to_numpy() > 0)
    if name == "mean":
        # Where there is nothing, 1 is as good a divisor as any: the quotient is not used.
        total = pc.divide(total.cast(pa.float64(), safe=False), pc.max_element_wise(count, 1).cast(pa.float64()))
    return pc.if_else(some, total, pa.scalar(None, total.type))


_COUNT = _Count()
_WHOLE = {name: _WholeSum(name) for name in ("sum", "mean")}
_DOUBLES = {name: _DoubleSum(name) for name in ("sum", "mean")}
_ENTRIES = _Entries()
_TOP_ROWS = _TopRows()
