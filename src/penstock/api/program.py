"""A program: the steps a user writes, before anything runs."""

from __future__ import annotations

from penstock.api.connector import Source
from penstock.api.grouped import ProcessorHost
from penstock.api.ledger import Ledger
from penstock.api.schemas import check_schema
from penstock.api.steps import ReadStep
from penstock.api.stream import Stream
from penstock.api.stream_state import StreamState
from penstock.core.errors import SettingsError, UsageError
from penstock.plan.explain import explain_plan
from penstock.plan.graph import Plan
from penstock.settings import JobSettings


class Program:
    """Collects the steps of one job and makes its plan. What runs it builds on this."""

    def __init__(self, settings: JobSettings | None = None, *, processor_host: ProcessorHost | None = None) -> None:
        self._settings = JobSettings() if settings is None else settings
        problems = self._settings.problems()
        if problems:
            raise SettingsError(problems)
        self._ledger = Ledger(
            parallelism=self._settings.parallelism,
            max_parallelism=self._settings.max_parallelism,
            processor_host=processor_host,
        )

    @property
    def settings(self) -> JobSettings:
        """How the job is to run."""
        return self._settings

    def read(self, source: Source, name: str | None = None) -> Stream:
        """The records of a source. The position in the source is kept under `name`, or under the source's own name."""
        if not isinstance(source, Source):
            raise UsageError(f"read takes a source, not {source!r}", hint="for example nexmark.bids(events=1_000_000)")
        schema = check_schema(source.schema, argument=f"the schema of source {source.name!r}")
        number = self._ledger.add(ReadStep(source=source), kind=source.name, name=name)
        return Stream(StreamState(ledger=self._ledger, last_step=number, schema=schema))

    def plan(self) -> Plan:
        """What is to run where. Raises `UsageError` if a stream leads nowhere or two steps cannot be told apart."""
        self._ledger.check_complete()
        return self._ledger.plan_of(self._ledger.steps)

    def explain(self) -> str:
        """The plan as text; streams that lead nowhere yet are shown too."""
        return explain_plan(self._ledger.plan_of(self._ledger.steps))
