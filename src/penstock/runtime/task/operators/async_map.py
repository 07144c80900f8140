"""An async function over rows or batches: many calls are under way at the same time, beside the loop of the slot.

The operator is the first operator of its task. Which records are asked about, when a try is over and what may leave is
decided by `core.task.requests`. Results come back with `AsyncCalls.collect`, and leave in a step of the task: only when
there is room in the output queues.

* *The function cannot be asked about more records.* The records wait in their channels (`is_waiting`). Only records
  that stand before a barrier are read, so that the barrier can pass. The operator keeps these records, up to
  `KEPT_BYTES`. When more records are kept, barriers wait, too.
* *A snapshot* has the input of all requests whose results have not left. After a restore the function is asked about
  these records again, before all new records. So a result leaves once, and the function may be called more than once.
* *Another parallelism.* If the records came by key, every subtask takes the records of its own keys. Otherwise the
  records are dealt out.
* *The end of the data* waits for all requests, and barriers pass meanwhile. A stop without drain and a savepoint do not
  wait: the snapshot has the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.api.async_functions import call_of, closing_of, opening_of
from penstock.api.steps import REQUESTS, AsyncMapStep
from penstock.core.elements import CheckpointOptions, EndOfData
from penstock.core.errors import InvariantError, UserCodeError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.core.task.requests import Refused, Requests
from penstock.ports import Conversation, WorkResult
from penstock.runtime.task.operators.asked_rows import AskedRows
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.functions import conversions
from penstock.runtime.task.operators.kept_rows import as_part, own_rows, rows_in
from penstock.runtime.task.operators.process import RunningContext
from penstock.runtime.task.operators.rows import add_more, add_some, batch_of
from penstock.runtime.task.operators.side_rows import SideRows
from penstock.runtime.task.operators.user_code import (
    guarded,
    one_line,
    user_error,
    wrong_result,
)

KEPT_BYTES = 1 << 20
"""While records wait for their turn, and all records in the operator have this size, no further record is read."""
SHOWN = 300
"""At most this many letters of a record are shown in an error."""


class AsyncMapOperator(Operator):
    """Calls an async function for every row, or for every batch."""

    def __init__(self, step: AsyncMapStep) -> None:
        self._step = step
        self._line = Requests(step.policy)
        self._from_user: Any = None
        as_batch = None
        if step.kind != "rows":
            as_batch, self._from_user = conversions(step.kind, step.schema)
        self._rows = AskedRows(as_batch)
        self._results: dict[int, Any] = {}
        """The results that have come and have not left, by request."""
        self._conversation: Conversation | None = None
        self.ending: EndOfData | None = None
        """How the data ended, if the end of the data waits for the calls under way."""
        self._is_open = False
        self._is_closed = False
        self._retried = 0
        self._skipped = 0

    # --- life ----------------------------------------------------------------------------

    def load(self, context: OperatorContext) -> None:
        """Take back the rows of the requests that were not finished in the snapshot, and open the function."""
        self.context = context
        if context.calls is None:
            raise InvariantError(f"nothing runs the async function of {context.name!r}")
        for batch in self._restored(context):
            self._rows.add(batch, self._line.add(self._rows.requests_in(batch)))
        self.is_waiting = self._line.room == 0
        self._conversation = context.calls.begin(call_of(self._step.function), self._answered)
        opening = opening_of(self._step.function, RunningContext(context, SideRows({})))
        self._is_open = True
        if opening is not None:
            conversation = self._conversation
            guarded(lambda: conversation.open(opening), context)
        if self._is_closed:
            # The task was stopped meanwhile, and will not close this operator again.
            self.close()

    def _restored(self, context: OperatorContext) -> list[pa.RecordBatch]:
        keys, wanted, found = self._step.keys, self._step.input_schema, list[pa.RecordBatch]()
        shared = [part for state in context.restored for part in state.union_lists.get(REQUESTS, ())]
        if keys:
            found += [batch for part in shared for batch in own_rows(part, keys, context, wanted)]
        else:
            # Rows of a program in which the rows came by key. Every subtask gets all these rows, in the same order.
            own = shared[context.task.subtask :: context.parallelism]
            found += [batch for part in own for batch in rows_in(part, context.name, wanted)]
        for state in context.restored:
            for part in state.split_lists.get(REQUESTS, ()):
                found += rows_in(part, context.name, wanted)
        return found

    def close(self) -> None:
        """Give up all requests, and close the function."""
        self._is_closed = True
        if self._conversation is not None and self._is_open:
            conversation, self._conversation = self._conversation, None
            conversation.close(closing_of(self._step.function))

    # --- what comes in -------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> None:
        """Ask about the rows, as far as the function may be asked about more rows. The other rows wait here."""
        if batch.num_rows:
            self._rows.add(batch, self._line.add(self._rows.requests_in(batch)))
            self._ask(self.context.now())

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Keep the watermark until the results of all records before it have left."""
        self._line.add_watermark(time_us, idle=idle)

    @property
    def room(self) -> int | None:
        """How many rows of the next batch may be taken; None: the whole batch, however large it is."""
        return None if self._step.kind != "rows" or self.is_waiting else self._line.room

    @property
    def is_overfull(self) -> bool:
        """Whether no record may be read at all, not even to let a barrier pass."""
        return self._line.waiting > 0 and self._rows.nbytes >= KEPT_BYTES

    # --- calls ---------------------------------------------------------------------------

    def look(self, now: Instant) -> None:
        """Time has passed: give up calls that took too long, and begin the tries that are due. Hands nothing on."""
        for refused in self._line.expired(now):
            if self._conversation is not None:
                self._conversation.cancel([refused.call])
            self._refused(refused, TimeoutError(f"no answer came within {self._step.policy.timeout_ms} ms"))
        self._ask(now)

    def next_deadline(self) -> Instant | None:
        """When `look` must be called at the latest; None if only an answer can help."""
        return self._line.next_deadline()

    def _ask(self, now: Instant) -> None:
        if self._conversation is not None and (begun := self._line.begin(now)):
            arguments = self._rows.arguments([asked.number for asked in begun])
            self._conversation.ask([(asked.call, row) for asked, row in zip(begun, arguments, strict=True)])
        self.is_waiting = self._line.room == 0

    def _answered(self, ended: Sequence[tuple[int, WorkResult]]) -> None:
        """Calls have ended. Called on the loop, at any time."""
        try:
            self._take(ended)
        except Exception as error:  # noqa: BLE001  # a row that Python cannot hold; the task ends with it
            self.context.fail(error)

    def _take(self, ended: Sequence[tuple[int, WorkResult]]) -> None:
        now, done = self.context.now(), list[int]()
        for call, result in ended:
            if result.error is None:
                number = self._line.returned(call)
                if number is not None:
                    self._results[number] = result.value
                    done.append(number)
            elif (refused := self._line.refused(call, now)) is not None:
                self._refused(refused, result.error)
        self._line.answered(done)
        self._ask(now)

    def _refused(self, refused: Refused, error: BaseException) -> None:
        if not refused.is_final:
            self._retried += 1
        elif self._step.skips_failed:
            self._skipped += 1
            self._results[refused.number] = None
            self._line.answered([refused.number])
        elif self._conversation is not None:
            self.context.fail(self._failure(refused, error))

    def _failure(self, refused: Refused, error: BaseException) -> UserCodeError:
        failure = user_error(error, self.context)
        if self._step.kind == "rows":
            (row,) = self._rows.arguments([refused.number])
            shown = f"row {row!r}"
        else:
            shown = "a batch"
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        often = "once" if refused.tries == 1 else f"{refused.tries} times"
        told = f"{one_line(error)} (for {shown}, tried {often})"
        return UserCodeError(
            operator=failure.operator,
            subtask=failure.subtask,
            traceback_text=f"{failure.traceback_text.rstrip()}\n{told}",
        )

    # --- what leaves ---------------------------------------------------------------------

    @property
    def has_results(self) -> bool:
        """Whether results, or a watermark, can leave."""
        return self._line.can_leave

    def release(self) -> None:
        """Hand on the results and watermarks that can leave."""
        for numbers, watermark in self._line.leave():
            for batch in self._made([self._results.pop(number) for number in numbers]):
                self.output.emit(batch)
            self._rows.finished(numbers)
            if watermark is not None:
                self.output.watermark(watermark[0], idle=watermark[1])
        self._ask(self.context.now())

    def _made(self, results: list[Any]) -> list[pa.RecordBatch]:
        wrong = wrong_result(self.context)
        if self._from_user is not None:
            made = [batch for each in results if each is not None for batch in self._from_user(each, wrong)]
            return [batch for batch in made if batch.num_rows]
        rows: list[Any] = []
        for result in results:
            if type(result) is dict:
                rows.append(result)
            elif result is not None:
                guarded(partial(_add_all, rows, result), self.context)
        return [batch_of(rows, self._step.schema, wrong)] if rows else []

    def before_barrier(self) -> None:
        """Hand on the results that are there: then the function need not be asked about their rows again."""
        self.release()

    @property
    def is_empty(self) -> bool:
        """Whether every result and every watermark has left."""
        return self._line.is_empty

    def finish(self) -> None:
        """All records have come. The task calls this when the operator `is_empty`."""
        if not self._line.is_empty:
            raise InvariantError(f"the data of {self.context.name!r} ended before its calls")

    # --- checkpoints ---------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Freeze the rows of all requests whose results have not left."""
        rows = self._rows.freeze(self._line.unfinished())
        operator, by_key = OperatorId(self.context.operator), bool(self._step.keys)

        def write(writer: StateWriter) -> OperatorState:  # noqa: ARG001  # the rows are few and travel in the handle
            parts = tuple(as_part(batch) for batch in rows())
            lists = {REQUESTS: parts} if parts else {}
            if by_key:
                return OperatorState(operator=operator, union_lists=lists)
            return OperatorState(operator=operator, split_lists=lists)

        return write

    def metrics(self) -> dict[str, float]:
        """How many requests there are, and how many tries and rows have failed."""
        return {
            "requests_in_flight": self._line.in_flight,
            "requests_tried_again": self._retried,
            "requests_skipped": self._skipped,
        }


def _add_all(rows: list[Any], result: Any) -> None:
    rest = add_some(rows, result)
    while rest is not None:
        rest = add_more(rows, rest)
