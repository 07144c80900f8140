"""Which records of a stream go on: chosen by a function, or by chance. Conditions over columns are in `Stream.where`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable
from penstock.api.steps import FilterStep, SampleStep, Step
from penstock.api.streams.stream_state import Row, StreamState
from penstock.api.window_schema import check_key_types
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key

if TYPE_CHECKING:
    from penstock.api.streams.data_stream import Stream


@at_user_line
class ChoosesRows:
    """The methods of a stream after which there are fewer records with the same columns."""

    _state: StreamState

    def _then(
        self, step: Step, schema: pa.Schema, *, kind: str, name: str | None = None, time_column: str | None
    ) -> Stream:
        raise NotImplementedError

    def _check_columns(self, columns: Iterable[str], argument: str) -> None:
        raise NotImplementedError

    def filter(self, function: Callable[[Row], Any], *, name: str | None = None) -> Stream:
        """Only the records for which `function` returns a true value. The function is called with each record as a
        dict. Row by row is slow: prefer a condition, `where("price > 100")`, if the condition can be written as one.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     lines = env.from_iterable(["to be", "# or not"], schema="line string")
        ...     lines.filter(lambda row: not row["line"].startswith("#")).write(collect())
        >>> run(program)
        [{'line': 'to be'}]
        """
        check_callable(function, "filter")
        state = self._state
        step = FilterStep(function=function, schema=state.schema)
        return self._then(step, state.schema, kind="filter", name=name, time_column=state.time_column)

    def sample(
        self, fraction: float, *, by: Sequence[str] | str | None = None, seed: int = 0, name: str | None = None
    ) -> Stream:
        """About `fraction` of the records, such as 0.1 for a tenth.

        The values of a record, together with `seed`, decide whether the record goes on: by a hash of all columns that
        can be keys, or of the columns that `by` names. So a record that is read again after a failure is decided in the
        same way, whichever subtask reads it, and so is a second run of the program. Equal records go on together, or
        not at all. With `by="user"` all records of about a tenth of the users go on.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     env.from_iterable(range(10_000), schema="n bigint").sample(0.1, seed=7).write(collect())
        >>> 900 < len(run(program)) < 1_100
        True
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise UsageError(f"sample: fraction is {fraction!r}; give a number from 0 to 1")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"sample: seed is {seed!r}; give a whole number")
        state = self._state
        columns = self._sampled_by(by)
        step = SampleStep(columns=columns, fraction=float(fraction), seed=seed, schema=state.schema)
        return self._then(step, state.schema, kind="sample", name=name, time_column=state.time_column)

    def _sampled_by(self, by: Sequence[str] | str | None) -> tuple[str, ...]:
        schema = self._state.schema
        if by is not None:
            columns = (by,) if isinstance(by, str) else tuple(by)
            self._check_columns(columns, "sample")
            check_key_types(schema, columns)
            return columns
        found = tuple(field.name for field in schema if can_be_key(field.type))
        if not found:
            raise UsageError(
                "sample decides by the values of a record, and no column is of a type that can be hashed",
                hint="add a column first, such as .with_columns(id=...), and give by='id'",
            )
        return found
