"""How other processes of the same user call a running job: by a socket of the job, in a folder that only the user can
open. A caller writes one line of JSON and reads one line of JSON. Until the job has the answer the job sends an empty
line every second, so that a caller can tell a slow job from a job that does not answer.

    {"command": "savepoint", "arguments": {"directory": "/save"}}
    {"result": {"savepoint": "/save/savepoint-…"}}     or     {"error": "…", "hint": "…"}

The commands are not defined here: the server is given a function that does what a request says.
`penstock.net.control_server` takes the calls.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock.api.job_names import job_slug
from penstock.core.errors import NoAnswer, PeerError, UsageError
from penstock.private_folders import check_private

SIGN_OF_LIFE = b"\n"
"""What a job sends while a caller waits for the answer."""
TAKES_CALL_WITHIN_S = 2
"""If a job has not taken a call after this time, because too many other calls wait, the job counts as not answering."""
HEARD_WITHIN_S = 10.0
"""If a job has sent nothing for this long, not even a sign of life, the job counts as not answering."""
LONGEST_ANSWER = 256 * 1024 * 1024
"""More than any answer needs."""

_ENDING = ".job"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Caller to job: do this."""

    command: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Job to caller: the result of the request, or the error."""

    result: dict[str, Any] | None = None
    error: str | None = None
    hint: str | None = None


def default_folder() -> Path:
    """The folder of the sockets of this user's jobs."""
    return Path(tempfile.gettempdir()) / f"penstock-jobs-{os.geteuid()}"


def socket_of(job: str, folder: Path | None = None) -> Path:
    """The path of the socket of a job."""
    return (folder or default_folder()) / f"{job}{_ENDING}"


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address of the socket at `path` for `bind` and `connect`. The address leads through a descriptor of the
    socket's folder, because the path of a unix socket may have 107 bytes only, and TMPDIR may be longer."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def running_jobs(folder: Path | None = None) -> list[str]:
    """The ids of this user's jobs whose processes are alive, in order. Such a job need not answer calls. Sockets at
    which no process listens any more are removed."""
    folder = folder or default_folder()
    if not folder.is_dir():
        return []
    check_private(folder, what="the folder of control sockets", setting="TMPDIR")
    found: list[str] = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        try:
            with _connected(path):
                found.append(path.name.removesuffix(_ENDING))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        except BlockingIOError:
            # The job's process listens, and takes no calls at present.
            found.append(path.name.removesuffix(_ENDING))
        except OSError:
            continue
    return found


def find_job(text: str, folder: Path | None = None) -> str:
    """The id of the running job that `text` names: by its id, its name, or the beginning of either. Raises `UsageError`
    if `text` names no job, or more than one job."""
    jobs = running_jobs(folder)
    wanted = text.lower()
    named = job_slug(text) if any(c.isalnum() for c in text) else text
    for matches in (
        [job for job in jobs if job == text],
        [job for job in jobs if _without_token(job) == named],
        [job for job in jobs if _without_token(job) == wanted],
        [job for job in jobs if job.startswith(wanted)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(f"{text!r} may be any of {', '.join(matches)}", hint="give the whole id of the job")
    known = f"running: {', '.join(jobs)}" if jobs else "no job of this user runs on this host"
    raise UsageError(f"no running job is called {text!r}", hint=known)


def _without_token(job: str) -> str:
    """The id of a job without the token that tells jobs of the same name from each other."""
    return re.sub(r"-[0-9a-f]{8}$", "", job)


def call(
    job: str, command: str, folder: Path | None = None, *, heard_within_s: float = HEARD_WITHIN_S, **arguments: Any
) -> dict[str, Any]:
    """Send a command to a running job and wait for the answer, for as long as the job sends signs of life. Raises
    `PeerError` with the error that the job answers, or if the job has ended, and `NoAnswer` if the job sends
    nothing."""
    try:
        line = _answer_to(Request(command=command, arguments=arguments), socket_of(job, folder), heard_within_s)
    except (TimeoutError, BlockingIOError) as error:
        raise NoAnswer(
            f"job {job} does not answer",
            hint="the process of the job may be stopped, or its host overloaded; look at the process with ps and top",
        ) from error
    except OSError as error:
        raise PeerError(f"job {job} cannot be reached: {error.strerror or error}") from error
    if not line:
        raise PeerError(f"job {job} ended before it answered")
    answer = msgspec.json.decode(line, type=Answer)
    if answer.error is not None:
        raise PeerError(answer.error, hint=answer.hint)
    return answer.result or {}


def _answer_to(request: Request, path: Path, heard_within_s: float) -> bytes:
    with _connected(path) as connection, connection.makefile("rb") as answers:
        connection.settimeout(heard_within_s)
        # A job that refuses a request before it has read all of it closes its end and answers with the reason. So the
        # answer is read also after a broken pipe.
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(msgspec.json.encode(request) + b"\n")
        while (line := answers.readline(LONGEST_ANSWER)) == SIGN_OF_LIFE:
            pass
        return line


def _connected(path: Path) -> socket.socket:
    """A connection to the job's socket. Raises `BlockingIOError` if the job did not take the call in time."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # With a time-out of Python's own, `connect` would fail at once if too many callers wait in line.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", TAKES_CALL_WITHIN_S, 0))
        with short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
