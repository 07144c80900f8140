"""Where the package meets the user's code: the traceback of an error that the user made ends at the user's line.

The frames inside this package do not help a user who has to change a line of the user's own code. A public class is
marked by `at_user_line`: the traceback of an error that leaves a method of the class has one frame of this package.
`shown_at_user_line` makes Python and notebooks leave out that frame, and the frames of public functions. Importing the
package has the same effect.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, TypeVar

from penstock.core.errors import InvariantError, StreamError

Kind = TypeVar("Kind", bound=type)

_OURS = str(Path(__file__).parents[1])
_PACKAGE = __name__.partition(".")[0]
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def at_user_line(kind: Kind) -> Kind:
    """Mark a public class: the traceback of an error that a method raises ends at the caller of the method."""
    for name, given in list(vars(kind).items()):
        if isinstance(given, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _ending(given))
    return kind


def _ending(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except InvariantError:
            raise
        except StreamError as error:
            cut = shortened(error)
        shown_at_user_line()
        # Raised outside of the handler, so that the printed error does not say that another error was being handled.
        raise cut

    return call


def shortened(error: StreamError) -> StreamError:
    """The error without its traceback. The cause of the error stays if user code raised the cause. A cause that is a
    `StreamError` stays if that cause has such a cause itself, or if the text of the error does not contain the text of
    the cause."""
    cause = error.__cause__
    if cause is not None:
        inner = _without_ours(cause.__traceback__)
        is_users = inner is not None and not _is_installed(inner)
        if isinstance(cause, StreamError) and cause is not error:
            is_users = shortened(cause).__cause__ is not None or cause.message not in error.message
        error.__cause__ = cause.with_traceback(inner) if is_users else None
    error.__suppress_context__ = True
    return error.with_traceback(None)


def shown_at_user_line() -> None:
    """Make Python, and a notebook, print errors that the user made without frames of this package. A hook that other
    code has set stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = print_error
    notebook = sys.modules.get("IPython")
    shell = None if notebook is None else notebook.get_ipython()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((StreamError,), _show_in_notebook)


def _show_in_notebook(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> None:
    if isinstance(error, InvariantError):
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        return
    # The first frames are those of the notebook itself, and are left out.
    inner: TracebackType | None = trace
    while inner is not None and _is_installed(inner):
        inner = inner.tb_next
    shell._showtraceback(kind, error, rendered(error.with_traceback(inner)))  # noqa: SLF001  # what kernels override


def print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error as Python does, but an error that the user made without the frames of this package at the end, and
    Ctrl-C without any of them."""
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("".join(_interrupted(error.with_traceback(trace))))
    elif isinstance(error, StreamError) and not isinstance(error, InvariantError):
        sys.stderr.write("".join(rendered(shortened(error).with_traceback(trace))))
    else:
        sys.__excepthook__(kind, error, trace)


def rendered(error: BaseException) -> list[str]:
    """The lines that Python prints for an error, without the frames of this package at the end of the traceback."""
    told = traceback.TracebackException.from_exception(error)
    frames, trace, ours = list(told.stack), error.__traceback__, 0
    while trace is not None:
        ours = ours + 1 if _is_ours(trace) else 0
        trace = trace.tb_next
    told.stack = traceback.StackSummary.from_list(frames[: max(len(frames) - ours, 0)])
    return list(told.format())


def _interrupted(error: KeyboardInterrupt) -> list[str]:
    """The lines that Python prints for Ctrl-C, of the user's own code only. Which line of this package, or of a library
    that this package calls, was at work when Ctrl-C came is chance."""
    told = traceback.TracebackException.from_exception(error)
    kept, trace, is_inside = [], error.__traceback__, False
    for frame in told.stack:
        assert trace is not None, "a traceback has as many frames as its summary"
        is_inside = is_inside or _is_ours(trace)
        if not (is_inside and (_is_ours(trace) or _is_installed(trace))):
            kept.append(frame)
        trace = trace.tb_next
    if is_inside:
        told.stack = traceback.StackSummary.from_list(kept)
        # The package may have been waiting with an exception at hand, which has nothing to do with Ctrl-C.
        told.__context__ = None
    return list(told.format())


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    # By the module, too: generated methods of a dataclass lie in no file.
    module = trace.tb_frame.f_globals.get("__name__", "")
    return trace.tb_frame.f_code.co_filename.startswith(_OURS) or str(module).partition(".")[0] == _PACKAGE


def _is_installed(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file.startswith(("<frozen", *_INSTALLED))
