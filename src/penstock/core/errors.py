"""Every error a caller may want to catch.

    StreamError
    ├── UsageError          the caller: a wrong argument, an impossible combination, a program that does not fit
    │   └── SettingsError       one or more settings are wrong; lists all of them
    ├── UserCodeError       a function of the user's program raised; carries its traceback, operator and subtask
    ├── PeerError           another process of the job died, fell silent or sent something malformed
    │   ├── SlotLost
    │   ├── NoAnswer            the other process is alive and does not answer
    │   ├── LinkBroken
    │   └── MalformedMessage
    ├── ExternalError       the world: storage, Spark, Java; says whether trying again may help
    │   ├── StorageError
    │   │   ├── MissingFile
    │   │   └── CorruptFile
    │   ├── HostError
    │   └── JobTakenOver        another driver has the job; this driver has let go of the job
    ├── SnapshotFailed      a checkpoint or savepoint that was asked for was not taken; the job goes on
    ├── RescaleFailed       the parallelism of a running job was not changed; the job goes on as it was
    ├── JobFailed           the job gave up; `cause_text` says why
    ├── JobCancelled
    └── InvariantError      a bug of this package; never caught, never retried

Texts are one line, lower case, facts first; `hint` says what to do next. All errors can be pickled.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import Enum
from typing import Any


class Retry(Enum):
    """Whether doing the same again may help."""

    NEVER = "never"
    LATER = "later"


class Fault(Enum):
    """What kind of error made an attempt fail, and so whether starting the job again can help."""

    PASSING = "passing"
    """A process died, or an outside system was away: the same program may succeed next time."""
    PROGRAM = "program"
    """A function of the program or a connector raised, or the error is a bug: the same input most probably gives the
    same error again."""
    PERMANENT = "permanent"
    """No restart can mend the cause: a wrong argument, state that does not fit, a corrupt file, a missing file."""


class StreamError(Exception):
    """Base of all errors of this package."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[StreamError], args: tuple[Any, ...], fields: dict[str, Any]) -> StreamError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(StreamError, ValueError):
    """The caller asked for something that is not possible."""


class SettingsError(UsageError):
    """One or more settings are wrong."""

    def __init__(self, problems: list[str]) -> None:
        text = problems[0] if len(problems) == 1 else f"{len(problems)} settings are wrong: " + "; ".join(problems)
        super().__init__(text)
        self.problems = tuple(problems)


class UserCodeError(StreamError):
    """A function of the user's program raised; `traceback_text` says where."""

    def __init__(self, *, operator: str, subtask: int, traceback_text: str) -> None:
        last = traceback_text.strip().splitlines()[-1] if traceback_text.strip() else "unknown error"
        # Without the traceback: whatever is raised because of it tells that, and both are printed.
        super().__init__(f"user function of {operator!r} failed in subtask {subtask}: {last}")
        self.operator = operator
        self.subtask = subtask
        self.traceback_text = traceback_text


class PeerError(StreamError):
    """Another process of the job misbehaved or went away."""


class SlotLost(PeerError):
    """A slot's process is gone or silent."""


class NoAnswer(PeerError):
    """A process is alive and does not answer."""


class LinkBroken(PeerError):
    """Messages between two processes were lost."""


class MalformedMessage(PeerError):
    """A process sent a frame that cannot be read."""


class ExternalError(StreamError):
    """Something outside the job failed."""

    def __init__(self, message: str, *, hint: str | None = None, retry: Retry = Retry.NEVER) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class StorageError(ExternalError):
    """A file system refused or failed."""


class MissingFile(StorageError):
    """A file does not exist, although the storage is there: the file was deleted, or was never written."""


class CorruptFile(StorageError):
    """A file is cut short, was changed, was not written by this program, or is in a format newer than this program; or
    a file that a snapshot needs does not exist."""


class HostError(ExternalError):
    """Java or Spark is missing, too old, or did not start."""


class JobTakenOver(ExternalError):
    """Another driver has the job: the work of this driver no longer counts."""


class SnapshotFailed(StreamError):
    """A checkpoint or savepoint that was asked for was not taken."""

    def __init__(self, message: str, *, savepoint: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.savepoint = savepoint
        """Where the savepoint lies, if the savepoint was taken and the job then did not stop as it should."""


class RescaleFailed(StreamError):
    """The parallelism of a running job was not changed."""


class JobFailed(StreamError):
    """The job ended in failure; the restart strategy gave up."""

    def __init__(self, message: str, *, cause_text: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.cause_text = cause_text


class JobCancelled(StreamError):
    """The job was cancelled before the job had a result."""


class InvariantError(StreamError):
    """A bug of this package."""


# --- what an error says about trying again ----------------------------------------------------------------------

_PASSING = (ConnectionError, TimeoutError, InterruptedError, BlockingIOError, MemoryError, PeerError)
_PASSING_NUMBERS = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETXTBSY,
    }
)
_CHAIN_LIMIT = 32
"""A chain of causes is followed for so many errors: user code may tie a chain into a ring."""


def fault_of(error: BaseException) -> Fault:
    """What kind of error this is. A function or a connector that calls an outside system says that the system is away
    by raising Python's own `ConnectionError` or `TimeoutError`, an `ExternalError` with `retry=Retry.LATER`, or
    any other error `from` one of these errors."""
    if isinstance(error, UsageError | CorruptFile | MissingFile) or _is_misuse(error):
        return Fault.PERMANENT
    return Fault.PASSING if any(map(_may_pass, _chain(error))) else Fault.PROGRAM


def _is_misuse(error: BaseException) -> bool:
    """Whether code of the user's failed because this package refused what the code asked for. Classes that a program
    derives from the errors of this package mean what the program says, and are errors of the program."""
    if not isinstance(error, UserCodeError):
        return False
    wrapped = error.__cause__
    return isinstance(wrapped, UsageError | CorruptFile) and _is_of_this_package(type(wrapped))


def _is_of_this_package(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    for _ in range(_CHAIN_LIMIT):
        if following is None:
            return
        yield following
        # An error that came up while another error was handled has that other error as its context. The context counts
        # as the cause only for an `OSError`, because libraries wrap errors in `OSError`. A typo in the handler of a
        # lost connection stays a typo.
        handled = following.__context__ if isinstance(following, OSError) else None
        following = following.__cause__ or handled


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ExternalError):
        return error.retry is Retry.LATER
    return isinstance(error, _PASSING) or (isinstance(error, OSError) and error.errno in _PASSING_NUMBERS)
