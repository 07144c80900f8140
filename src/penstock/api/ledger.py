"""The steps of one program, in the order in which they were made. Streams add steps, and plans are made from steps."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.api.aligned_sources import check_aligned_sources
from penstock.api.connector import Sink
from penstock.api.grouped import ProcessorHost
from penstock.api.late_records import with_late_records
from penstock.api.naming import RecordedStep, operator_ids
from penstock.api.notebook import CellRun, current_cell_run
from penstock.api.running import Runner
from penstock.api.static_tables import TableHost
from penstock.api.steps import AsyncMapStep, ReadStep, Step, WriteStep
from penstock.core.errors import UsageError
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Plan, build_plan

_LONGEST_NAME = 200


class Ledger:
    """Collects the steps of a program. A stream holds the number of its last step and looks the step up here."""

    def __init__(
        self,
        *,
        parallelism: int,
        max_parallelism: int | None,
        processor_host: ProcessorHost | None = None,
        table_host: TableHost | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.processor_host = processor_host
        self.table_host = table_host
        """Makes tables of DataFrames of another system; None where there are none."""
        """Makes a function of a Spark processor; None in a program without Spark."""
        self.runner = runner
        """Runs the path to a stream at once; None where nothing can be run."""
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._steps: list[RecordedStep] = []
        self._replaced: dict[int, None] = {}
        """Numbers of steps whose notebook cell has been run again: such steps are in no plan."""
        self._looked_at: dict[int, None] = {}
        """Numbers of steps whose records somebody has looked at: it is no mistake if they lead to no sink."""

    def add(
        self,
        step: Step,
        *,
        kind: str,
        inputs: tuple[Input, ...] = (),
        name: str | None = None,
        label: str | None = None,
    ) -> int:
        """Record a step, and return its number, which is higher than the numbers of its inputs. Raises `UsageError` for
        a bad name."""
        made_in = current_cell_run()
        if made_in is not None:
            self._replace_made_before(made_in, name)
        for source in inputs:
            if source.node in self._replaced:
                raise UsageError(
                    f"the step {self._steps[source.node]} has been replaced: its notebook cell was run again",
                    hint="run the cells behind that cell again too, in their order",
                )
        recorded = RecordedStep(
            number=len(self._steps),
            step=step,
            kind=kind,
            label=label or kind,
            given_name=name,
            inputs=inputs,
            place=_place_in_user_code(),
            made_in=made_in,
        )
        if name is not None:
            self._check_name(name, recorded)
        self._steps.append(recorded)
        return recorded.number

    def name_step(self, number: int, name: str) -> None:
        """Name a step that has no name yet. Raises `UsageError` if the step has a name, or if another step has this
        name."""
        step = self._steps[number]
        if step.given_name is not None:
            raise UsageError(f"the step {step} has a name already, and cannot be named {name!r} too")
        if (made_in := current_cell_run()) is not None:
            self._replace_made_before(made_in, name)
        self._check_name(name, step)
        self._steps[number] = replace(step, given_name=name)

    @property
    def parallelism(self) -> int:
        """How many slots the job has."""
        return self._parallelism

    def change_step(self, number: int, step: Step) -> None:
        """Let a step do something else than it was recorded with. Its number and its name stay."""
        self._steps[number] = replace(self._steps[number], step=step)

    def limit_step(self, number: int, at_most: int) -> None:
        """Let a step have at most this many subtasks."""
        self._steps[number] = replace(self._steps[number], at_most=at_most)

    def step(self, number: int) -> RecordedStep:
        """The step of that number."""
        return self._steps[number]

    @property
    def steps(self) -> tuple[RecordedStep, ...]:
        """All steps, in topological order."""
        return tuple(step for step in self._steps if step.number not in self._replaced)

    def path_to(self, number: int) -> tuple[RecordedStep, ...]:
        """A step with all steps that lead to it, in topological order."""
        wanted = {number}
        for step in reversed(self._steps[: number + 1]):
            if step.number in wanted:
                wanted.update(source.node for source in step.inputs)
        return tuple(step for step in self._steps if step.number in wanted)

    def looked_at(self, number: int) -> None:
        """Somebody looks at the records of a step: that is a use of the step, though not in a job."""
        self._looked_at[number] = None

    @property
    def steps_of_job(self) -> tuple[RecordedStep, ...]:
        """The steps of the job: all but the steps that lead only to streams which were looked at."""
        consumed = {source.node for step in self.steps for source in step.inputs}
        ends = [s.number for s in self.steps if s.number not in consumed and s.number not in self._looked_at]
        wanted = {step.number for end in ends for step in self.path_to(end)}
        return tuple(step for step in self.steps if step.number in wanted)

    def plan_of_job(self) -> Plan:
        """The plan of the job. Raises `UsageError` unless every step leads to a sink, or was looked at."""
        self._check_complete()
        steps = self.steps_of_job
        return self._plan(steps, operator_ids(steps), self._parallelism)

    def plan_of(self, steps: Iterable[RecordedStep]) -> Plan:
        """The plan of some of the steps. Every step has the id that the step has in the whole program."""
        return self._plan(steps, operator_ids(self.steps), self._parallelism)

    def plan_into(
        self, sink: Sink, inputs: tuple[Input, ...], schema: pa.Schema, *, parallelism: int | None = None
    ) -> Plan:
        """The plan of the steps that lead to `inputs`, with a sink behind them that is no step of the program.

        Raises `UsageError` if a step is no more, because the notebook's cell that made it was run again."""
        path = {step.number: step for source in inputs for step in self.path_to(source.node)}
        if any(number in self._replaced for number in path):
            raise UsageError(
                "a step that leads to this stream is no more: the notebook's cell that made it was run again",
                hint="run the cell that made this stream again, too",
            )
        sink.check(schema)
        end = RecordedStep(
            number=len(self._steps),
            step=WriteStep(sink=sink.fitted(schema), schema=schema),
            kind=sink.name,
            label=sink.name,
            given_name=None,
            inputs=inputs,
            place=_place_in_user_code(),
        )
        steps = (*(path[number] for number in sorted(path)), end)
        return self._plan(steps, operator_ids(steps), parallelism or self._parallelism)

    def _plan(self, steps: Iterable[RecordedStep], ids: Mapping[int, OperatorId], parallelism: int) -> Plan:
        nodes = tuple(
            Node(
                number=step.number,
                operator=ids[step.number],
                name=step.name,
                step=step.step,
                inputs=step.inputs,
                is_source=isinstance(step.step, ReadStep),
                at_most=step.at_most,
                # Records wait in a channel while the function cannot be asked about more of them.
                begins_vertex=isinstance(step.step, AsyncMapStep),
            )
            for step in with_late_records(tuple(steps))
        )
        plan = build_plan(nodes, parallelism=parallelism, max_parallelism=self._max_parallelism)
        check_aligned_sources(plan)
        return plan

    def _check_complete(self) -> None:
        if not self.steps_of_job:
            raise UsageError(
                "the program has no steps that lead to a sink", hint="begin with read(source) and end with write(sink)"
            )
        consumed = {source.node for step in self.steps_of_job for source in step.inputs}
        loose = [s for s in self.steps_of_job if s.number not in consumed and not isinstance(s.step, WriteStep)]
        if loose:
            raise UsageError(
                f"nothing is done with the results of {', '.join(map(str, loose))}",
                hint="end each stream with .write(sink), or remove it; in a notebook, make the environment anew",
            )

    def _replace_made_before(self, made_in: CellRun, name: str | None) -> None:
        """A notebook cell that is run again makes its steps anew: the steps that the cell made before are replaced, and
        all steps behind them. If an earlier run of a cell made a step of this name, all steps of that run are replaced,
        too: the text of the cell was changed between the runs."""
        named = (step.made_in for step in self.steps if name is not None and step.given_name == name)
        earlier = {run for run in named if run is not None and run.run != made_in.run}
        for step in self.steps:
            is_rerun = made_in.is_rerun_of(step.made_in) or step.made_in in earlier
            if is_rerun or any(source.node in self._replaced for source in step.inputs):
                self._replaced[step.number] = None

    def _check_name(self, name: str, step: RecordedStep) -> None:
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise UsageError(
                f"{name!r} cannot be the name of a step", hint=f"give a text of one line, up to {_LONGEST_NAME} letters"
            )
        for other in self.steps:
            if other.given_name == name:
                raise UsageError(
                    f"two steps are named {name!r}: {other}, and {step}",
                    hint="give one of them another name: state finds its step by the name",
                )


def _place_in_user_code() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
