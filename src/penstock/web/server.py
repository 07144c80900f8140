"""The server of this process: one for all jobs, on a thread of its own, from the first job on until the process
ends."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import uvicorn

from penstock.api.web import FIRST_PORT, LOOPBACK, Web
from penstock.core.errors import HostError
from penstock.runtime.facts import JobFacts
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.process_numbers import process_numbers
from penstock.web.access import Access
from penstock.web.acting import Acting
from penstock.web.actions import Actions
from penstock.web.app import App
from penstock.web.archive import Archive
from penstock.web.ids import job_id
from penstock.web.logs import DriverAndSlots, Logs, RecentLines
from penstock.web.routes import all_routes
from penstock.web.watched_jobs import ShownJob, WatchedJobs

log = logging.getLogger(__name__)

PORTS_TRIED = 100
SAMPLE_EVERY_S = 1.0
MOST_CONNECTIONS = 256
STOP_WITHIN_S = 5.0


def _draw_name() -> str:
    return "".join(fresh_token() for _ in range(4))


class Server:
    """Serves the page and the REST interface."""

    def __init__(self, web: Web) -> None:
        clock_ms = WallClock().precise_ms
        self._executor = ThreadPoolExecutor(max_workers=16, thread_name_prefix="penstock-web-action")
        archive = None if web.archive is None else Archive(os.fspath(web.archive))
        self.jobs = WatchedJobs(
            ended_kept=web.history,
            clock_ms=clock_ms,
            archived=lambda document: None if archive is None else archive.write(document),
        )
        self._logs = RecentLines()
        self._about = _About(DriverAndSlots(self._logs, self._lines_of))
        acting = Acting(Actions(self._executor, clock_ms, _draw_name), self.jobs.driven, self.jobs.folders)
        names = [web.host if ":" not in web.host else f"[{web.host}]", *web.names]
        app = App(
            jobs=self.jobs,
            routes=all_routes(acting),
            access=Access(token=web.secret, hosts=names),
            about=self._about,
            more=_further(),
        )
        self._socket = _listening(web)
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._about.address = self.address
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=65_536,
            http="h11",
            ws="none",
            server_header=False,
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="penstock-web", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        logging.getLogger("penstock").addHandler(self._logs)
        self._thread.start()

    def close(self) -> None:
        """Answer nothing more."""
        self._server.should_exit = True
        self._thread.join(STOP_WITHIN_S)
        self._executor.shutdown(wait=False, cancel_futures=True)
        logging.getLogger("penstock").removeHandler(self._logs)

    def _lines_of(self, job: str) -> Callable[..., dict[str, Any]] | None:
        found = self.jobs.driven(job_id(job))
        return None if found is None else found.driven.log_lines

    @property
    def is_running(self) -> bool:
        """Whether the server answers."""
        return self._thread.is_alive() and not self._server.should_exit

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException:
            log.exception("the page at %s has ended", self.address)

    async def _serve(self) -> None:
        sampling = asyncio.create_task(self._sample())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            sampling.cancel()
            self._socket.close()

    async def _sample(self) -> None:
        while True:
            try:
                await self.jobs.refresh()
                self.jobs.sample()
            except Exception:
                log.exception("the page could not look at the jobs")
            await asyncio.sleep(SAMPLE_EVERY_S)


def _listening(web: Web) -> socket.socket:
    """A socket that listens where the user says, or at the first port that is free."""
    ports = [web.port] if web.port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS_TRIED), 0]
    family = socket.AF_INET6 if ":" in web.host else socket.AF_INET
    last: OSError | None = None
    for port in ports:
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((web.host, port))
            found.listen(128)
        except OSError as error:
            found.close()
            last = error
            continue
        return found
    raise HostError(
        f"the page cannot listen at {web.host}, port {ports[0]}: {last}",
        hint="give Environment(web=ps.Web(port=None)) for any free port, or Environment(web=False) for no page",
    )


def _further() -> dict[str, Callable[[WatchedJobs], tuple[bytes, str]]]:
    """Addresses of other parts of Penstock, if they are there."""
    try:
        exposition = import_module("penstock.metrics.prometheus").exposition
    except ImportError:
        return {}
    return {"/metrics": lambda jobs: exposition(list(jobs.documents.values()))}


class _About(dict[str, Any]):
    """What is known about this process. The numbers that change are looked up when they are asked for."""

    def __init__(self, logs: Logs) -> None:
        try:
            own = version("penstock")
        except PackageNotFoundError:
            own = "unknown"
        super().__init__(
            version=own,
            logs=logs,
            config={"penstock.version": own, "python.version": platform.python_version()},
            environment={
                "jvm": {
                    "version": f"Python {platform.python_version()}",
                    "arch": platform.machine(),
                    "options": [],
                },
                "classpath": list(sys.path),
            },
            hardware={"cores": os.cpu_count() or 1, "memory_bytes": _memory_bytes()},
            threads=_threads,
        )
        self.address = ""

    def __call__(self) -> Mapping[str, Any]:
        return {**self, "address": self.address, "process": process_numbers()}


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _threads() -> list[dict[str, str]]:
    """The stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  # Python has no other way to see them
        name = names.get(ident, str(ident))
        stack = "".join(traceback.format_stack(frame))
        found.append({"threadName": name, "stringifiedThreadInfo": f'"{name}" Id={ident}\n{stack}\n'})
    return found


# --- the server of this process -----------------------------------------------------------

_LOCK = threading.Lock()
_RUNNING: list[Server] = []


def show(
    web: Web,
    *,
    job: str,
    name: str,
    driven: Any,
    ask: Callable[[Callable[[JobFacts], None]], None],
    settings: Mapping[str, Any],
    folders: tuple[str, ...],
) -> str:
    """Show a job: with the server of this process, which is started with the first job. Returns the address of the
    page.

    Raises:
        HostError: the server cannot listen where the user says.

    """
    with _LOCK:
        _RUNNING[:] = [server for server in _RUNNING if server.is_running]
        if not _RUNNING:
            server = Server(web)
            server.start()
            _RUNNING.append(server)
            reach = "" if web.host in LOOPBACK else ", with the token"
            log.warning("the page of this program is at %s%s", server.address, reach)
        server = _RUNNING[0]
    server.jobs.add(ShownJob(job=job, name=name, driven=driven, ask=ask, settings=settings, folders=folders))
    return server.address


def close() -> None:
    """End the server of this process, if there is one."""
    with _LOCK:
        for server in _RUNNING:
            server.close()
        _RUNNING.clear()
