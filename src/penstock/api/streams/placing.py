"""Where the records of a stream go: to which subtasks of the next step, and how many subtasks a step has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable
from penstock.api.steps import ReadStep
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning


@at_user_line
class PlacesRows:
    """The methods of a stream that say where records go. None of these methods makes a step."""

    _state: StreamState

    def _with_state(self, state: StreamState) -> Self:
        raise NotImplementedError

    def global_(self) -> Self:
        """The same records, all of them sent to a single subtask of the next step.

        Steps that get their records directly from that step run in the same subtask; `rebalance()` or `key_by(...)`
        spreads the records again. Records of one subtask stay in their order. A single subtask is as fast as one core:
        let it do little.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     numbers = env.from_iterable(range(4), schema="n bigint")
        ...     numbers.global_().map(lambda row: {"n": -row["n"]}, schema="n bigint").write(collect())
        ...     print("(1 subtask)" in env.explain())
        >>> sorted(row["n"] for row in run(program))
        True
        [-3, -2, -1, 0]
        """
        return self._with_state(self._state.to_one())

    def partition(self, function: Callable[[pa.RecordBatch, int], Any]) -> Self:
        """The same records, sent to the subtasks of the next step that `function` chooses.

        The function is called with a batch and with the number of subtasks, and returns the number of a subtask for
        every record of the batch, from 0: an Arrow array, a NumPy array, a Polars series or a list. The number of
        subtasks changes when the job is rescaled, and records then go where the function says for the changed number.
        State that belongs to the records does not follow them: use `key_by` for a step with state per key. Barriers
        never overtake records that are on their way to the next step, also if checkpoints are unaligned.

        >>> import pyarrow.compute as pc
        >>> from penstock.testing import collect, run
        >>> def by_size(batch, subtasks):
        ...     return pc.if_else(pc.greater(batch["n"], 1), subtasks - 1, 0)
        >>> def program(env):
        ...     numbers = env.from_iterable(range(4), schema="n bigint")
        ...     numbers.partition(by_size).map(lambda row: row, schema="n bigint").write(collect())
        >>> sorted(row["n"] for row in run(program))
        [0, 1, 2, 3]
        """
        check_callable(function, "partition")
        self._state.refuse_changelog("partition")
        return self._with_state(
            replace(
                self._state,
                partitioning=Partitioning.CUSTOM,
                partition_keys=(),
                partitioner=function,
                at_most=None,
            )
        )

    def with_parallelism(self, subtasks: int) -> Self:
        """The same stream; the step that makes it has this many subtasks, and not a subtask in every slot.

        Steps that get their records directly from this step have as many subtasks; `rebalance()`, `key_by(...)` and
        the like spread the records over all slots again. If the step before has another number of subtasks, records are
        dealt out in turn. A job that is rescaled to fewer slots has fewer subtasks of the step, too, and as many as are
        given here when it has the slots again.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     numbers = env.from_iterable(range(4), schema="n bigint")
        ...     numbers.map(lambda row: row, schema="n bigint").with_parallelism(2).write(collect())
        ...     print("(2 subtasks)" in env.explain())
        >>> len(run(program, parallelism=3))
        True
        4
        """
        state, ledger = self._state, self._state.ledger
        made = ledger.step(state.last_step)
        if isinstance(subtasks, bool) or not isinstance(subtasks, int) or not 1 <= subtasks <= ledger.parallelism:
            raise UsageError(
                f"with_parallelism({subtasks!r}): the job has {ledger.parallelism} slots, and a step has at most one "
                "subtask in each slot",
                hint=f"give a whole number from 1 to {ledger.parallelism}, or make an environment with more slots",
            )
        if state.partitioning is not Partitioning.FORWARD:
            raise UsageError(
                "with_parallelism is about the step that makes a stream, and no step stands between it and the "
                f"{state.partitioning.value} before it",
                hint="make the step first, then call with_parallelism on its result",
            )
        if state.changelog is not None and any(s.partitioning is Partitioning.FORWARD for s in made.inputs):
            raise UsageError(
                f"{made} takes the changes of each row in their order, and with another number of subtasks they would "
                "be dealt out in turn",
                hint="call with_parallelism on the result of the aggregate",
            )
        if isinstance(made.step, ReadStep):
            raise UsageError(
                f"the source {made} has a subtask in every slot",
                hint="a source with few splits is read by few subtasks; with_parallelism is for the steps behind",
            )
        if any(source.at_most is not None for source in made.inputs):
            raise UsageError(f"{made} has a single subtask: global_() or limit(...) sends all records there")
        ledger.limit_step(state.last_step, subtasks)
        return self._with_state(state)
