"""A program: the steps a user writes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.api.boundary import at_user_line, shown_at_user_line
from penstock.api.callables import refuse_async_methods
from penstock.api.connector import Source
from penstock.api.grouped import ProcessorHost
from penstock.api.hooks import CheckpointHook
from penstock.api.iterables import Rows, iterable_source
from penstock.api.ledger import Ledger
from penstock.api.notebook import CellRun, current_cell_run
from penstock.api.running import Runner
from penstock.api.static_tables import TableHost
from penstock.api.steps import ReadStep
from penstock.api.streams.data_stream import Stream
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import SettingsError, UsageError
from penstock.core.view_texts import count_of
from penstock.plan.graph import Plan
from penstock.plan.picture import Explanation
from penstock.settings import JobSettings
from penstock.sql.schemas import SchemaLike, check_schema

_STEPS_SHOWN = 8


@at_user_line
class Program:
    """Collects the steps of one job and makes the plan of the job. Environments, which run programs, inherit from this
    class."""

    def __init__(
        self,
        settings: JobSettings | None = None,
        *,
        processor_host: ProcessorHost | None = None,
        table_host: TableHost | None = None,
        runner: Runner | None = None,
    ) -> None:
        shown_at_user_line()
        self._settings = JobSettings() if settings is None else settings
        problems = self._settings.problems()
        if problems:
            raise SettingsError(problems)
        self._ledger = Ledger(
            parallelism=self._settings.parallelism,
            max_parallelism=self._settings.max_parallelism,
            processor_host=processor_host,
            table_host=table_host,
            runner=runner,
        )
        self._hooks: dict[str, CheckpointHook] = {}
        self._hooks_made_in: dict[str, CellRun | None] = {}

    @property
    def settings(self) -> JobSettings:
        """How the job is to run."""
        return self._settings

    def read(self, source: Source, name: str | None = None) -> Stream:
        """The records of a source. The position in the source is kept under `name`, or under the source's own name."""
        if not isinstance(source, Source):
            raise UsageError(f"read takes a source, not {source!r}", hint="for example nexmark.bids(events=1_000_000)")
        refuse_async_methods(source, Source)
        schema = check_schema(source.schema, argument=f"the schema of source {source.name!r}")
        number = self._ledger.add(ReadStep(source=source), kind=source.name, name=name)
        hook = source.checkpoint_hook()
        if hook is not None:
            self.add_checkpoint_hook(hook)
        return Stream(StreamState(ledger=self._ledger, last_step=number, schema=schema))

    def from_iterable(self, rows: Rows, *, schema: SchemaLike | None = None, name: str | None = None) -> Stream:
        """A stream of rows of the program itself: a list, or a function that gives rows.

        A list, or another finite iterable, is read when this line runs, and travels with the program to every slot: it
        is for rows that fit into memory. Each subtask reads a part of the rows. A job that is run again must have the
        same rows, or is refused while rows are left to be read.

        A function is called without arguments when the job runs, in a single subtask, on a thread of its own: the
        function may block, and may go on for ever. After a failure the function is called again, and the rows that
        were handed on are left out. So the function must give the same rows in the same order whenever it is called.
        The last row is compared, and a function that gives another row is refused.

            >>> from penstock.testing import collect, run
            >>> def program(env):
            ...     env.from_iterable([{"word": "to", "n": 1}, {"word": "be", "n": 2}]).where("n > 1").write(collect())
            >>> run(program)
            [{'word': 'be', 'n': 2}]

        Args:
            rows: the rows, or the function. A row is a dict, a tuple in the order of `schema`, a dataclass, a `Row` of
                PySpark, or a single value if there is a single column. A column that a dict leaves out is null.
            schema: the columns. Without `schema`, the columns are told from the rows of a list, if these have names. A
                time without a time zone is taken as UTC.
            name: the name of the step.

        """
        return self.read(iterable_source(rows, schema), name=name)

    def add_checkpoint_hook(self, hook: CheckpointHook) -> None:
        """Have `hook` called on the driver with every checkpoint of the job, and when the job goes back to a
        checkpoint."""
        if not isinstance(hook, CheckpointHook):
            raise UsageError(f"add_checkpoint_hook takes a CheckpointHook, not {hook!r}")
        refuse_async_methods(hook, CheckpointHook)
        if not isinstance(hook.name, str) or not hook.name:
            raise UsageError(f"the name of a checkpoint hook is {hook.name!r}; give a text that is not empty")
        made_in, before = current_cell_run(), self._hooks_made_in.get(hook.name)
        if made_in is not None and before is not None and made_in.run != before.run:
            # A notebook cell was run again: the hook replaces the hook that the cell added before.
            del self._hooks[hook.name]
        self._hooks_made_in[hook.name] = made_in
        # Several sources of one system may share a hook.
        if self._hooks.setdefault(hook.name, hook) is not hook:
            raise UsageError(
                f"two checkpoint hooks have the name {hook.name!r}",
                hint="give one of them another name: the state of a hook is kept under the name of the hook",
            )
        limits = self._settings.checkpoint.hook_timeout_ms, self._settings.slot.deploy_timeout_ms
        if limits[0] >= limits[1]:
            raise SettingsError(
                [f"hook_timeout is {limits[0]} ms; with hooks it must be below deploy_timeout_ms, {limits[1]} ms"]
            )

    @property
    def checkpoint_hooks(self) -> Mapping[str, CheckpointHook]:
        """All checkpoint hooks of the program, the hooks of its sources included, by name."""
        return self._hooks

    def plan(self) -> Plan:
        """The plan of the job. Raises `UsageError` if a stream does not end in a sink, or if two steps would have the
        same id."""
        return self._ledger.plan_of_job().with_hooks(tuple(self._hooks))

    def __repr__(self) -> str:
        steps = self._ledger.steps
        names = ", ".join(step.name for step in steps[:_STEPS_SHOWN]) + (", …" if len(steps) > _STEPS_SHOWN else "")
        told = f"{count_of(len(steps), 'step')}: {names}" if steps else "no steps yet"
        return f"<{type(self).__name__}, parallelism {self._settings.parallelism}, {told}>"

    def explain(self) -> Explanation:
        """The plan as text. `explain().svg` and `explain().mermaid` are the plan as a picture, and a notebook shows the
        picture. Streams that do not end in a sink yet are shown too."""
        return Explanation.of(self._ledger.plan_of(self._ledger.steps))
