"""Changelogs: streams whose records say how the rows of a table change.

Every record of a changelog is a change. Its last column, `row_kind`, says what the change does to a row of the table:

    insert          the row is new
    update_before   the row as it was before an update
    update_after    the row as it is after the update
    delete          the row is gone, and was as the record says

A change to `update_before` or `delete` has the values that the row had until then, in every column. An `update_before`
comes right before its `update_after`, unless another step stands between and takes only one of the two: then that step
makes a `delete` or an `insert` of it. The changes of one row come in their order. So whoever adds the rows of `insert`
and `update_after`, and takes away the rows of `update_before` and `delete`, has the table. If the columns are known
that identify a row, the newest change alone says what the row is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.errors import UsageError

ROW_KIND = "row_kind"
"""The last column of a changelog."""
ROW_KIND_TYPE = pa.string()

INSERT = "insert"
UPDATE_BEFORE = "update_before"
UPDATE_AFTER = "update_after"
DELETE = "delete"
ROW_KINDS = (INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE)
"""All values of the column `row_kind`."""


@dataclass(frozen=True, kw_only=True)
class Changelog:
    """What is known about the changes of a stream."""

    keys: tuple[str, ...] | None
    """The columns that identify a row: the table never has two rows with the same values in these columns. Without
    columns the table has at most one row. None: the table may have equal rows, and rows are told apart by nothing."""
    has_before: bool = True
    """Whether there are `update_before` changes. Without them an `update_after` replaces the row that has the same
    values in `keys`, or is the first change of that row."""

    def kept(self, names: Mapping[str, str]) -> Changelog:
        """The changelog of rows that have other columns. `names` has the new names of the columns that are kept as they
        are. Raises `UsageError` if the rows can no longer be told apart, and have to be."""
        if self.keys is None:
            return self
        lost = [key for key in self.keys if key not in names]
        if not lost:
            return Changelog(keys=tuple(names[key] for key in self.keys), has_before=self.has_before)
        if not self.has_before:
            raise UsageError(
                f"without the column {lost[0]!r} nobody could tell which row an update replaces: upserts() has left "
                "out the rows as they were before",
                hint="keep the column, or call upserts() behind this step",
            )
        return Changelog(keys=None)

    def __str__(self) -> str:
        if self.keys is None:
            return "a changelog"
        return f"a changelog by {', '.join(self.keys)}" if self.keys else "a changelog of one row"


def with_row_kind(schema: pa.Schema) -> pa.Schema:
    """The columns of a changelog of rows of this schema. Raises `UsageError` if the rows have such a column
    themselves."""
    if ROW_KIND in schema.names:
        raise UsageError(
            f"the rows of a changelog cannot have a column {ROW_KIND!r} of their own", hint="rename the column"
        )
    return schema.append(pa.field(ROW_KIND, ROW_KIND_TYPE))


def without_row_kind(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows of a changelog."""
    return pa.schema([field for field in schema if field.name != ROW_KIND])
