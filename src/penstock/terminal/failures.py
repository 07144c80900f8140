"""How a command ends when something is wrong: with one line on standard error and an exit code. Only a bug shows a
traceback.

1    the job failed, or its result is wrong
2    the command could not begin: a wrong argument, no Java, no Spark, no place to write
130  interrupted from the keyboard
143  told to end by SIGTERM
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

from penstock.core.errors import InvariantError, JobCancelled, JobFailed, StreamError
from penstock.terminal.plain_text import plain

EXIT_FAILED = 1
EXIT_IMPOSSIBLE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_CODES = {
    0: "all is well",
    EXIT_FAILED: "the job failed or was cancelled, or its result is wrong, or `penstock doctor` has found a fault",
    EXIT_IMPOSSIBLE: "the command could not begin or could not be carried out: a wrong argument, no such job, no Java, "
    "no Spark, no place to write, a request that the job refused",
    EXIT_INTERRUPTED: "interrupted from the keyboard",
    EXIT_TERMINATED: "told to end by SIGTERM",
}
"""What the exit code of a command means."""


def one_line(error: StreamError) -> str:
    """The first line of an error's text, and the hint of the error."""
    head = error.message.strip().splitlines()[0] if error.message.strip() else type(error).__name__
    return plain(f"{head} ({error.hint})" if error.hint else head)


@contextmanager
def reported_failures() -> Iterator[None]:
    """Turn a `StreamError`, an interrupt or a SIGTERM inside the block into one line and an exit code. Bugs, which are
    an `InvariantError` or any other error, keep their traceback."""
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except InvariantError:
        raise
    except StreamError as error:
        click.echo(f"penstock: {one_line(error)}", err=True)
        sys.exit(EXIT_FAILED if isinstance(error, JobFailed | JobCancelled) else EXIT_IMPOSSIBLE)
    except _Terminated:
        sys.exit(EXIT_TERMINATED)
    except KeyboardInterrupt:
        click.echo("penstock: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM inside the block, for clean-up that must not be left half done."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Terminated(KeyboardInterrupt):
    """SIGTERM told the command to end. The class is a `KeyboardInterrupt`, because Spark's client gives a call up only
    for a keyboard interrupt. After any other exception the next call of the client would wait for the answer to the
    interrupted call."""


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated
