"""Every error a caller may want to catch.

    StreamError
    ├── UsageError          the caller: a wrong argument, an impossible combination, a program that does not fit
    │   └── SettingsError       one or more settings are wrong; lists all of them
    ├── UserCodeError       a function of the user's program raised; carries its traceback, operator and subtask
    ├── PeerError           another process: it died, fell silent or sent something malformed
    │   ├── SlotLost
    │   ├── LinkBroken
    │   └── MalformedMessage
    ├── ExternalError       the world: storage, Spark, Java; says whether trying again may help
    │   ├── StorageError
    │   │   └── CorruptFile
    │   ├── HostError
    │   └── JobTakenOver        another driver has the job; this one has let go of it
    ├── SnapshotFailed      a checkpoint or savepoint that was asked for was not taken; the job goes on
    ├── RescaleFailed       the parallelism of a running job was not changed; the job goes on as it was
    ├── JobFailed           the job gave up; `cause_text` says why
    ├── JobCancelled
    └── InvariantError      us: a bug; never caught, never retried

Texts are one line, lower case, facts first; `hint` says what to do next. All of them can be pickled.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Retry(Enum):
    """Whether doing the same again may help."""

    NEVER = "never"
    LATER = "later"


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
    """The caller asked for something that cannot be."""


class SettingsError(UsageError):
    """One or more settings are wrong."""

    def __init__(self, problems: list[str]) -> None:
        text = problems[0] if len(problems) == 1 else f"{len(problems)} settings are wrong: " + "; ".join(problems)
        super().__init__(text)
        self.problems = tuple(problems)


class UserCodeError(StreamError):
    """A function of the user's program raised."""

    def __init__(self, *, operator: str, subtask: int, traceback_text: str) -> None:
        last = traceback_text.strip().splitlines()[-1] if traceback_text.strip() else "unknown error"
        super().__init__(
            f"user function of {operator!r} failed in subtask {subtask}: {last}\n{traceback_text.rstrip()}"
        )
        self.operator = operator
        self.subtask = subtask
        self.traceback_text = traceback_text


class PeerError(StreamError):
    """Another process of the job misbehaved or went away."""


class SlotLost(PeerError):
    """A slot's process is gone or silent."""


class LinkBroken(PeerError):
    """Messages between two processes were lost."""


class MalformedMessage(PeerError):
    """A frame that cannot be read."""


class ExternalError(StreamError):
    """Something outside the job failed."""

    def __init__(self, message: str, *, hint: str | None = None, retry: Retry = Retry.NEVER) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class StorageError(ExternalError):
    """A file system said no."""


class CorruptFile(StorageError):
    """A file is cut, changed, foreign or newer than this program."""


class HostError(ExternalError):
    """Java or Spark is missing, too old, or did not start."""


class JobTakenOver(ExternalError):
    """Another driver has the job: what this one does no longer counts."""


class SnapshotFailed(StreamError):
    """A checkpoint or savepoint that was asked for was not taken."""

    def __init__(self, message: str, *, savepoint: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.savepoint = savepoint
        """Where the savepoint lies, if it was taken and the job then did not stop as it should."""


class RescaleFailed(StreamError):
    """The parallelism of a running job was not changed."""


class JobFailed(StreamError):
    """The job ended in failure; the restart strategy gave up."""

    def __init__(self, message: str, *, cause_text: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.cause_text = cause_text


class JobCancelled(StreamError):
    """The job was cancelled before its result was there."""


class InvariantError(StreamError):
    """A bug of this package."""
