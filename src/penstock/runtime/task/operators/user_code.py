"""The boundary to user code. An error that user code raises, or a result of user code that does not fit the step,
becomes a `UserCodeError` that names the operator and the subtask."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.connector import UserCodeRaised
from penstock.core.errors import StreamError, UserCodeError, fault_of
from penstock.core.job.events import FailureCause
from penstock.runtime.task.operators.base import Operator, OperatorContext

Wrong = Callable[[str], UserCodeError]
"""Makes the error for a result that does not fit the step, from a text that says what is wrong."""

_OURS = str(Path(__file__).parents[2])
"""The folder of the code that calls user code, from the loop of a slot down to the operators."""


def guarded(call: Callable[[], Any], context: OperatorContext) -> Any:
    """Call user code. Exceptions of user code come out as `UserCodeError`, with the user code's part of the
    traceback."""
    try:
        return call()
    except (UserCodeError, KeyboardInterrupt):
        # `KeyboardInterrupt` may be meant for the whole process, which only the slot knows.
        raise
    except BaseException as error:
        raise user_error(error, context) from error


def user_error(error: BaseException, context: OperatorContext) -> UserCodeError:
    """The error for an exception of user code."""
    return _error(context, traceback_of(error))


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception of user code. The frames of the code that called user code are left out."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OURS):
        inner = inner.tb_next
    if isinstance(error, StreamError):
        # The last line is shown first, so the last line must say what is wrong, and not only what to do.
        lines = ["Traceback (most recent call last):\n", *traceback.format_tb(inner), with_hint(error)]
        return "".join(lines)
    return "".join(traceback.format_exception(type(error), error, inner))


def expression_error(error: Exception, context: OperatorContext) -> UserCodeError:
    """The error for an expression that cannot be computed. Only the first line of the error is told: the lines that
    follow describe what Polars was doing, and do not help the author of the expression."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return UserCodeError(operator=context.name, subtask=context.task.subtask, traceback_text=text)


def with_hint(error: StreamError) -> str:
    """What is wrong and what to do, in one line."""
    return f"{type(error).__name__}: {error.message}" + (f"; {error.hint}" if error.hint else "")


def step_of(error: BaseException) -> OperatorContext | None:
    """The step in whose code an error was raised: the innermost operator on the traceback. None if there is no operator
    on the traceback."""
    found, trace = None, error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        found = getattr(owner, "context", found) if isinstance(owner, Operator) else found
        trace = trace.tb_next
    return found


def user_code_raised(error: UserCodeRaised, context: OperatorContext) -> UserCodeError:
    """The error for an exception of user code inside a connector."""
    cause = error.__cause__ or error
    lines = "".join(traceback.format_exception(cause)).rstrip().splitlines()
    told = f"{error.what} raised {one_line(cause)}"
    return _error(context, "\n".join([*lines, told]))


def wrong_result(context: OperatorContext) -> Wrong:
    """The function that makes the errors for wrong results of this operator's user code."""
    return lambda what: _error(context, f"TypeError: {what}")


def _error(context: OperatorContext, text: str) -> UserCodeError:
    return UserCodeError(operator=context.name, subtask=context.task.subtask, traceback_text=text)


def one_line(error: BaseException) -> str:
    """The type and the text of an error, without the traceback. Works for every error, even if the making of its text
    raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # connectors bring errors of their own, and no report may be lost for one
        text = "(its text could not be made)"
    return f"{type(error).__name__}: {text}".splitlines()[0]


def driver_cause(name: str, error: BaseException) -> FailureCause:
    """The failure cause for an error of code on the driver. `name` is the name of the code, for people."""
    line, raised = one_line(error), error
    if isinstance(error, UserCodeRaised) and error.__cause__ is not None:
        line, raised = f"{error.what} raised {one_line(error.__cause__)}", error.__cause__
    text = "".join(traceback.format_exception(raised))
    return FailureCause(text=line, traceback=text, operator=name, user_code=True, fault=fault_of(raised))


def describe(value: Any) -> str:
    """The type of a value, for people."""
    if value is None:
        return "None"
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__


def describe_columns(schema: pa.Schema) -> str:
    """The names and types of columns."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
