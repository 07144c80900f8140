"""Which records of a stream go on: chosen by a function. Conditions over columns are in `Stream.where`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable
from penstock.api.steps import FilterStep, Step
from penstock.api.streams.stream_state import Row, StreamState

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
