"""The jobs of this process that the server shows: asks each job for what its driver knows, and keeps the documents."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.runtime.facts import JobFacts
from penstock.web import states
from penstock.web.history import History, point_of
from penstock.web.ids import job_id
from penstock.web.past import RecentTotals
from penstock.web.picture import picture
from penstock.web.pictured_steps import runs_of

log = logging.getLogger(__name__)

Document = dict[str, Any]

ANSWER_WITHIN_S = 2.0
"""A job that does not say what it knows for this long is shown as it was."""
FRESH_MS = 250
"""A document that is younger than this is not made anew."""


class Driven(Protocol):
    """What can be done with a job."""

    def checkpoint(self, *, full: bool = False) -> int:
        """Take a checkpoint."""
        ...

    def savepoint(self, directory: str | None = None, *, native: bool = False) -> str:
        """Take a savepoint."""
        ...

    def stop(self, *, savepoint: str | None = None, drain: bool = False, native: bool = False) -> str:
        """Take a savepoint and end the job."""
        ...

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism."""
        ...

    def cancel(self) -> None:
        """End the job at once."""
        ...

    def log_lines(self, *, after: int = 0, slot: int | None = None, lines: int = 200) -> dict[str, Any]:
        """The last lines that slots have logged or printed."""
        ...


Ask = Callable[[Callable[[JobFacts], None]], None]
"""Has a function called, from any thread, with what the driver of a job knows."""


@dataclass(frozen=True, kw_only=True)
class ShownJob:
    """A job as it is handed to the server."""

    job: str
    name: str
    driven: Driven
    ask: Ask
    settings: Mapping[str, Any]
    folders: tuple[str, ...] = ()
    """Folders and URIs below which savepoints may be written and deleted."""


@dataclass
class _Watched:
    shown: ShownJob | None
    """None for a job that has ended: its program may let go of it."""
    folders: tuple[str, ...] = ()
    document: Document | None = None
    made_ms: float = -1e9
    history: History = field(default_factory=History)
    recent: RecentTotals = field(default_factory=RecentTotals)
    runs: Mapping[str, str] | None = None
    """What each operator runs: found once, since it does not change."""


class WatchedJobs:
    """All jobs that the server shows. `add` may be called from any thread; everything else belongs to the server's
    loop."""

    def __init__(self, *, ended_kept: int, clock_ms: Callable[[], float], archived: Callable[[Document], None]) -> None:
        """`archived` is called with the last document of a job that has ended."""
        self._lock = threading.Lock()
        self._jobs: dict[str, _Watched] = {}
        self._ended_kept = ended_kept
        self._clock_ms = clock_ms
        self._archived = archived

    def add(self, shown: ShownJob) -> None:
        """Show a job. A job with the same id that was shown before is forgotten."""
        with self._lock:
            self._jobs = {**self._jobs, job_id(shown.job): _Watched(shown, shown.folders)}

    def add_ended(self, document: Document) -> None:
        """Show a job that has ended, by its last document."""
        with self._lock:
            self._jobs = {**self._jobs, document["id"]: _Watched(None, document=document)}

    @property
    def documents(self) -> dict[str, Document]:
        """The documents of all jobs, by id, the newest job first."""
        return {key: job.document for key, job in reversed(self._jobs.items()) if job.document is not None}

    def driven(self, key: str) -> ShownJob | None:
        """The job with this id, if something can be done with it."""
        found = self._jobs.get(key)
        return None if found is None else found.shown

    def folders(self) -> tuple[str, ...]:
        """The folders for savepoints of all jobs, those that have ended included."""
        return tuple(dict.fromkeys(folder for job in self._jobs.values() for folder in job.folders))

    def history(self, key: str) -> Document:
        """The numbers of a job over time."""
        return self._jobs[key].history.told()

    async def refresh(self, *, max_age_ms: float = FRESH_MS) -> None:
        """Make the documents anew that are older than this."""
        old = [
            job for job in self._jobs.values() if job.shown is not None and self._clock_ms() - job.made_ms >= max_age_ms
        ]
        if old:
            await asyncio.gather(*(self._refresh(job) for job in old))
            self._forget_ended()

    def sample(self) -> None:
        """Take the numbers of this moment into the histories; called once a second."""
        for job in self._jobs.values():
            if job.shown is not None and job.document is not None:
                job.history.add(job.document["now"], point_of(job.document))

    async def _refresh(self, job: _Watched) -> None:
        shown, loop = job.shown, asyncio.get_running_loop()
        if shown is None:
            return
        job.made_ms = self._clock_ms()
        answered: asyncio.Future[JobFacts] = loop.create_future()

        def tell(facts: JobFacts) -> None:
            # The loop may have ended meanwhile, with its server.
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None if answered.done() else answered.set_result(facts))

        shown.ask(tell)
        try:
            facts = await asyncio.wait_for(answered, ANSWER_WITHIN_S)
        except TimeoutError:
            return
        past = job.recent.past(facts.now, facts.view.epoch)
        if job.runs is None and facts.plan is not None:
            job.runs = runs_of(facts.plan)
        job.document = picture(facts, name=shown.name, settings=shown.settings, past=past, runs=job.runs)
        job.recent.add(facts.now, facts.view.epoch, facts.view.tasks)
        if job.document["flink_state"] in states.ENDED and job.shown is not None:
            job.history.add(facts.now, point_of(job.document))
            job.shown = None
            self._archived(job.document)

    def _forget_ended(self) -> None:
        with self._lock:
            ended = [key for key, job in self._jobs.items() if job.shown is None]
            for key in ended[: max(0, len(ended) - self._ended_kept)]:
                self._jobs = {other: job for other, job in self._jobs.items() if other != key}
