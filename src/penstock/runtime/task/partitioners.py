"""Calls a function of the user's program that says to which subtask each record of a batch goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.errors import UserCodeError
from penstock.plan.graph import Partitioner
from penstock.runtime.task.operators.user_code import describe, traceback_of


def chosen_targets(
    function: Partitioner | None, batch: pa.RecordBatch, *, parallelism: int, name: str, subtask: int
) -> npt.NDArray[np.uint16]:
    """The subtask of every record. Raises `UserCodeError` if the function raises, or returns something else than the
    number of a subtask for every record."""
    assert function is not None, f"{name} has no function"

    def error(text: str) -> UserCodeError:
        return UserCodeError(operator=name, subtask=subtask, traceback_text=text)

    try:
        returned = function(batch, parallelism)
    except KeyboardInterrupt:
        # The interrupt may be meant for the whole process, which only the slot knows.
        raise
    except BaseException as raised:
        raise error(traceback_of(raised)) from raised
    numbers = _as_numbers(returned)
    if numbers is None:
        raise error(f"TypeError: expected a whole number for every record; got {describe(returned)}")
    if numbers.shape != (batch.num_rows,):
        raise error(f"ValueError: expected {batch.num_rows} numbers, one for every record; got {numbers.size}")
    wrong = numbers[(numbers < 0) | (numbers >= parallelism)]
    if wrong.size:
        raise error(f"ValueError: expected numbers from 0 to {parallelism - 1}, one for each subtask; got {wrong[0]}")
    return numbers.astype(np.uint16)


def _as_numbers(returned: Any) -> npt.NDArray[Any] | None:
    """What the function returned as an array of whole numbers; None if it is something else, or has nulls."""
    if isinstance(returned, pa.ChunkedArray):
        returned = returned.combine_chunks()
    if isinstance(returned, pa.Array):
        if returned.null_count:
            return None
        returned = returned.to_numpy(zero_copy_only=False)
    numbers = np.asarray(returned)
    return numbers if numbers.dtype.kind in "iu" else None
