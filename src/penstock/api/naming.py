"""Names and ids of steps. State finds its operator again by the id, so an id must outlive changes of the program.

The rule:

* A step that the user named has an id made of that name alone. The step keeps the id wherever the step is moved.
* An unnamed step with state (a source, a window, a function) has the id of the nearest step with state before it, a
  dot, and a label that says what the step is: `bids` for a source, `bids.window-auction` for a window over it by the
  key `auction`. Steps without state do not count: adding or removing such a step, or another branch, changes no id of a
  step with state.
* An unnamed sink has the ids of the sources that lead to the sink, a dot, and a label: `bids.to-parquet`. Steps between
  the sources and the sink do not change the id. Where several sinks of one kind are behind the same sources, each sink
  has the id of the nearest step with state before it instead, as other steps do: `bids.window-auction.parquet`.
* Behind a union there are several nearest steps with state, one per stream at most: the id is made of the ids of all
  these steps, in the order of the alphabet (`asks-and-bids.window-auction`), so that the order of the streams in the
  union does not matter.
* Behind a side output the name of the side output counts like a step with state: `bids.errors.window-auction`.
* Two steps with state that would get the same id are refused: if such steps were numbered, their states could change
  places when the program changes. The user must name one of the two steps.
* A step without state gets an id of the same form. If another step has the id, a number is appended in the order in
  which the steps were made; nothing is ever stored under such an id.

Ids are made of lower-case letters, digits, `.`, `-` and `_`, so that they can name files. A name with other characters,
or a very long name, is cut down to these characters and made unique by a digest of the whole name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.api.notebook import CellRun
from penstock.api.printing import PrintSink
from penstock.api.state_declarations import declared_states
from penstock.api.steps import (
    AsyncMapStep,
    DeduplicateStep,
    JoinStep,
    KeyedProcessStep,
    PatternStep,
    ProcessStep,
    ReadStep,
    RegularJoinStep,
    RunningStep,
    SortStep,
    Step,
    VersionJoinStep,
    WindowStep,
    WriteStep,
)
from penstock.core.errors import UsageError
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input

_LONGEST_PART = 48
_LONGEST_ID = 160
_DIGEST_CHARACTERS = 8


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A step of a program as its user made it."""

    number: int
    step: Step
    kind: str
    """The name of the step unless the user names the step."""
    label: str
    """What a derived id says about the step."""
    given_name: str | None
    inputs: tuple[Input, ...]
    place: str
    """Where in the user's code the step was made."""
    made_in: CellRun | None = None
    """The run of the notebook cell that made the step; None outside of a notebook."""
    at_most: int | None = None
    """How many subtasks the step has at most; None: the user has not said."""

    @property
    def name(self) -> str:
        """The name that people see."""
        return self.given_name or self.kind

    @property
    def has_state(self) -> bool:
        """Whether checkpoints contain state of the step."""
        if isinstance(self.step, ProcessStep):
            return bool(declared_states(self.step.function))
        if isinstance(self.step, WriteStep) and isinstance(self.step.sink, PrintSink):
            return False
        kinds = (
            ReadStep
            | AsyncMapStep
            | WindowStep
            | RunningStep
            | DeduplicateStep
            | SortStep
            | JoinStep
            | RegularJoinStep
            | VersionJoinStep
            | PatternStep
            | KeyedProcessStep
            | WriteStep
        )
        return isinstance(self.step, kinds)

    def __str__(self) -> str:
        what = repr(self.kind) if self.given_name is None else f"{self.given_name!r} ({self.kind})"
        return f"{what} made at {self.place}"


def operator_ids(steps: Sequence[RecordedStep]) -> dict[int, OperatorId]:
    """The id of every step, by its number. Raises `UsageError` if two steps would have the same id.

    `steps` are in topological order, and contain the inputs of every step.
    """
    ids: dict[int, OperatorId] = {}
    owners: dict[str, RecordedStep] = {}
    roots: dict[int, str] = {}
    only_sinks = _only_sinks(steps)
    for step in steps:
        before = "-and-".join(sorted({_root_of(source, roots) for source in step.inputs}))
        roots[step.number] = before
        if step.given_name is None and not step.has_state:
            continue
        if step.given_name is not None:
            own = id_part(step.given_name)
        else:
            own = only_sinks.get(step.number) or _below(before, step.label)
        if step.has_state:
            roots[step.number] = own
        taken = owners.setdefault(own, step)
        if taken is not step:
            raise UsageError(
                f"the steps {taken} and {step} would both have the id {own!r}",
                hint='give one of them a name of its own, by name="..." or .name("...")',
            )
        ids[step.number] = OperatorId(own)
    for step in steps:
        if step.number not in ids:
            ids[step.number] = OperatorId(_free(_below(roots[step.number], step.label), owners))
            owners[ids[step.number]] = step
    return ids


def _only_sinks(steps: Sequence[RecordedStep]) -> dict[int, str]:
    """The ids of unnamed sinks that are the only sink of their kind behind their sources, by the number of the step."""
    sources: dict[int, frozenset[str]] = {}
    wanted: dict[int, str] = {}
    for step in steps:
        before = frozenset[str]().union(*(sources[source.node] for source in step.inputs))
        if isinstance(step.step, ReadStep):
            before = frozenset({id_part(step.name) if step.given_name is not None else _below("", step.label)})
        sources[step.number] = before
        if isinstance(step.step, WriteStep) and step.given_name is None:
            wanted[step.number] = _below("-and-".join(sorted(before)), f"to-{step.label}")
    found = list(wanted.values())
    return {number: own for number, own in wanted.items() if found.count(own) == 1}


def _root_of(source: Input, roots: Mapping[int, str]) -> str:
    root = roots[source.node]
    return root if source.side is None else _below(root, source.side.removesuffix("()"))


def _free(wanted: str, taken: Mapping[str, RecordedStep]) -> str:
    found, count = wanted, 1
    while found in taken:
        count += 1
        found = f"{wanted}-{count}"
    return found


def _below(root: str, label: str) -> str:
    id_text = f"{root}.{id_part(label)}" if root else id_part(label)
    if len(id_text) <= _LONGEST_ID:
        return id_text
    return f"{id_text[: _LONGEST_ID - _DIGEST_CHARACTERS - 1]}-{_digest(id_text)}"


def id_part(name: str) -> str:
    """A name as part of an id: the name itself if the name is short and plain, else its plain characters and a
    digest."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= _LONGEST_PART:
        return plain
    return f"{plain[:_LONGEST_PART]}-{_digest(name)}".lstrip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
