"""A program: the steps a user writes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.api.connector import Source
from penstock.api.grouped import ProcessorHost
from penstock.api.hooks import CheckpointHook
from penstock.api.ledger import Ledger
from penstock.api.schemas import check_schema
from penstock.api.steps import ReadStep
from penstock.api.stream import Stream, StreamState
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
        self._hooks: dict[str, CheckpointHook] = {}

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
        hook = source.checkpoint_hook()
        if hook is not None:
            self.add_checkpoint_hook(hook)
        return Stream(StreamState(ledger=self._ledger, last_step=number, schema=schema))

    def add_checkpoint_hook(self, hook: CheckpointHook) -> None:
        """Have `hook` called on the driver with every checkpoint of the job, and when the job goes back to one."""
        if not isinstance(hook, CheckpointHook):
            raise UsageError(f"add_checkpoint_hook takes a CheckpointHook, not {hook!r}")
        if not isinstance(hook.name, str) or not hook.name:
            raise UsageError(f"the name of a checkpoint hook is {hook.name!r}; give a text that is not empty")
        # Several sources of one system may share a hook.
        if self._hooks.setdefault(hook.name, hook) is not hook:
            raise UsageError(
                f"two checkpoint hooks have the name {hook.name!r}",
                hint="their state is kept by their names: give one of them another",
            )
        limits = self._settings.checkpoint.hook_timeout_ms, self._settings.slot.deploy_timeout_ms
        if limits[0] >= limits[1]:
            raise SettingsError(
                [f"hook_timeout is {limits[0]} ms; with hooks it must be below deploy_timeout_ms, {limits[1]} ms"]
            )

    @property
    def checkpoint_hooks(self) -> Mapping[str, CheckpointHook]:
        """All checkpoint hooks of the program, those of its sources included, by their names."""
        return self._hooks

    def plan(self) -> Plan:
        """What is to run where. Raises `UsageError` if a stream leads nowhere or two steps cannot be told apart."""
        self._ledger.check_complete()
        return self._ledger.plan_of(self._ledger.steps).with_hooks(tuple(self._hooks))

    def explain(self) -> str:
        """The plan as text; streams that lead nowhere yet are shown too."""
        return explain_plan(self._ledger.plan_of(self._ledger.steps))
