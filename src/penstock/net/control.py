"""How other processes of the same user speak to a running job: a socket per job, in a folder that only the user can
open. A caller writes one line of JSON and reads one line of JSON.

    {"command": "savepoint", "arguments": {"directory": "/save"}}
    {"result": {"savepoint": "/save/savepoint-…"}}     or     {"error": "…", "hint": "…"}

What the commands are and do is for whoever serves them to say.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import PeerError, StreamError, UsageError
from penstock.net.folders import check_private

LONGEST_LINE = 1024 * 1024
"""More than any request or answer needs."""
ANSWERS_WITHIN_S = 2.0
"""A job that does not take a call within this time is not there."""

_ENDING = ".job"
_ATTEMPTS = 3


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Caller to job: do this."""

    command: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Job to caller: what came of it."""

    result: dict[str, Any] | None = None
    error: str | None = None
    hint: str | None = None


Handle = Callable[[Request], dict[str, Any]]
"""Does what a request says, in a thread of its own; may take its time. Raises `StreamError`."""


def default_folder() -> Path:
    """Where the sockets of this user's jobs are."""
    return Path(tempfile.gettempdir()) / f"penstock-jobs-{os.geteuid()}"


class ControlServer:
    """Serves one job until it is closed. Threads of its own take the calls."""

    def __init__(self, job: str, handle: Handle, *, folder: Path | None = None) -> None:
        self.path = (folder or default_folder()) / f"{job}{_ENDING}"

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline(LONGEST_LINE)
                # A caller that is gone does not want to know.
                with contextlib.suppress(OSError):
                    self.wfile.write(msgspec.json.encode(_answer(handle, line)) + b"\n")

        self._server = self._listen(Handler)
        self._socket = self.path.stat().st_ino
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name=f"penstock-control-{job}",
            daemon=True,
        )
        self._thread.start()

    def _listen(self, handler: type[socketserver.StreamRequestHandler]) -> _Server:
        for _ in range(_ATTEMPTS):
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            # Another job that ends may just remove the folder, being the last in it.
            with contextlib.suppress(FileNotFoundError):
                check_private(self.path.parent)
                self.path.unlink(missing_ok=True)
                return _Server(str(self.path), handler)
        raise FileNotFoundError(errno.ENOENT, "it is removed again and again", str(self.path.parent))

    def close(self) -> None:
        """Take no more calls, and wait for those that are being answered. The last job leaves no folder behind."""
        # A driver of this host that took the job over has put its own socket there.
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._socket:
                self.path.unlink(missing_ok=True)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up in the middle is its own business."""


def _answer(handle: Handle, line: bytes) -> Answer:
    try:
        request = msgspec.json.decode(line, type=Request)
    except (msgspec.MsgspecError, ValueError) as error:
        return Answer(error=f"the request cannot be read: {error}")
    try:
        return Answer(result=handle(request))
    except StreamError as error:
        return Answer(error=error.message, hint=error.hint)
    except TimeoutError as error:
        return Answer(error=str(error))


def running_jobs(folder: Path | None = None) -> list[str]:
    """The ids of this user's jobs that take calls, in order. Sockets that nobody listens at any more are removed."""
    folder = folder or default_folder()
    if not folder.is_dir():
        return []
    check_private(folder)
    found: list[str] = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        try:
            with _connected(path):
                found.append(path.name.removesuffix(_ENDING))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        except OSError:
            continue
    return found


def find_job(text: str, folder: Path | None = None) -> str:
    """The id of the running job that `text` names: its id, its name, or the beginning of either. Raises `UsageError` if
    there is none, or more than one."""
    jobs = running_jobs(folder)
    wanted = text.lower()
    for matches in (
        [job for job in jobs if job == text],
        [job for job in jobs if re.sub(r"-[0-9a-f]{8}$", "", job) == wanted],
        [job for job in jobs if job.startswith(wanted)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(f"{text!r} may be any of {', '.join(matches)}", hint="give the whole id")
    known = f"running: {', '.join(jobs)}" if jobs else "no job of this user runs on this host"
    raise UsageError(f"no running job is called {text!r}", hint=known)


def call(job: str, command: str, folder: Path | None = None, **arguments: Any) -> dict[str, Any]:
    """Have a running job do something, and wait for it. Raises `PeerError` with what the job says, or if it is gone."""
    path = (folder or default_folder()) / f"{job}{_ENDING}"
    try:
        with _connected(path) as connection, connection.makefile("rb") as answers:
            connection.settimeout(None)
            connection.sendall(msgspec.json.encode(Request(command=command, arguments=arguments)) + b"\n")
            line = answers.readline(LONGEST_LINE)
    except OSError as error:
        raise PeerError(f"job {job} cannot be reached: {error.strerror or error}") from error
    if not line:
        raise PeerError(f"job {job} ended before it answered")
    answer = msgspec.json.decode(line, type=Answer)
    if answer.error is not None:
        raise PeerError(answer.error, hint=answer.hint)
    return answer.result or {}


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWERS_WITHIN_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection
