"""Operator state: lists and maps of a subtask, which belong to no key. Operator state is always in memory, and is saved
inside the metadata.

A state that a snapshot has and the function does not declare is kept and written again. Every subtask is given all
parts of a union list, so only the first subtask keeps an undeclared union list and writes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.api.state import State, StateKind
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.state.handles import ListHandle, MapHandle
from penstock.state.layers import Layers, frozen_lists, frozen_maps
from penstock.state.memory import MemoryLists, MemoryMaps, Scope
from penstock.state.raw_keyed import RawListHandle
from penstock.state.underway import SnapshotsUnderway
from penstock.state.values import pickled, unpickled

_ALL = "all"
"""The key of all entries in these tables, because operator state belongs to no key."""


class OperatorStates:
    """The operator states of one function in one subtask."""

    def __init__(
        self, declared: Mapping[str, State], *, name: str, subtask: int, check_write: Callable[[], None]
    ) -> None:
        self._name = name
        self._subtask = subtask
        self._scope = Scope()
        self._scope.key = _ALL
        self._lists: dict[tuple[StateKind, str], MemoryLists] = {}
        self._maps: dict[str, MemoryMaps] = {}
        self._kept: dict[tuple[StateKind, str], tuple[bytes, ...]] = {}
        """The states of the snapshot that the function does not declare."""
        self._underway = SnapshotsUnderway(self._all_layers)
        self.handles: dict[str, State] = {}
        """The handles, by the name of the attribute that declares the state."""
        for attribute, state in declared.items():
            spec = state.spec
            if spec.kind is StateKind.BROADCAST:
                table = self._maps.setdefault(spec.name, MemoryMaps(spec, self._scope))
                self.handles[attribute] = MapHandle(state, table, check_write)
            else:
                place = spec.kind, spec.name
                lists = self._lists.setdefault(place, MemoryLists(spec, self._scope))
                self.handles[attribute] = (RawListHandle if spec.is_raw else ListHandle)(state, lists)

    def restore(self, states: Sequence[OperatorState]) -> None:
        """Take in the states that were dealt out to this subtask. Blocks. Raises `CorruptFile` or `UsageError`."""
        for state in states:
            for kind, lists in ((StateKind.SPLIT_LIST, state.split_lists), (StateKind.UNION_LIST, state.union_lists)):
                for name, parts in lists.items():
                    self._restore_list(kind, name, parts)
            for name, content in state.broadcast.items():
                self._restore_map(name, content)

    def _restore_list(self, kind: StateKind, name: str, parts: tuple[bytes, ...]) -> None:
        table = self._lists.get((kind, name))
        if table is None:
            self._check_undeclared(kind, name)
            if kind is StateKind.SPLIT_LIST or self._subtask == 0:
                self._kept[kind, name] = self._kept.get((kind, name), ()) + parts
            return
        # The program's declaration decides whether a part is unpickled. The snapshot must not decide that, because a
        # pickle can run code.
        is_raw = table.spec.is_raw
        for part in parts:
            table.append(part if is_raw else unpickled(part, what=f"state {name!r} of {self._name!r}"))

    def _restore_map(self, name: str, content: bytes) -> None:
        table = self._maps.get(name)
        if table is None:
            self._check_undeclared(StateKind.BROADCAST, name)
            self._kept[StateKind.BROADCAST, name] = (content,)
            return
        for key, value in unpickled(content, what=f"state {name!r} of {self._name!r}").items():
            table.put(key, value)

    def _check_undeclared(self, found: StateKind, name: str) -> None:
        declared = [kind for kind, other in self._lists if other == name]
        declared += [StateKind.BROADCAST] if name in self._maps else []
        if declared:
            raise UsageError(
                f"state {name!r} of {self._name!r} was of kind {found.value} when the snapshot was taken; the program "
                f"declares {declared[0].value}",
                hint="give the changed state another name",
            )

    def snapshot(self, checkpoint: CheckpointId) -> Callable[[OperatorId], OperatorState]:
        """Freeze the state by reference, and return the work that pickles the frozen state."""
        self._underway.fold(1_000)
        lists = {place: table.layers.freeze() for place, table in self._lists.items()}
        raw = {place for place, table in self._lists.items() if table.spec.is_raw}
        maps = {name: table.layers.freeze() for name, table in self._maps.items()}
        kept = dict(self._kept)
        snapshot = self._underway.begin(checkpoint)

        def write(operator: OperatorId) -> OperatorState:
            if not snapshot.begin():
                return OperatorState(operator=operator)
            try:
                parts = {
                    place: tuple(
                        value if place in raw else pickled(value)
                        for _, values in frozen_lists(frozen)
                        for value in values
                    )
                    for place, frozen in lists.items()
                }
                found = {name: dict(next(frozen_maps(frozen), (None, {}))[1]) for name, frozen in maps.items()}
                broadcast = {name: pickled(entries) for name, entries in found.items() if entries}
                return _assembled(operator, {**kept, **parts}, broadcast)
            finally:
                snapshot.end()

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: let go of the state that was frozen for earlier checkpoints."""
        self._underway.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is aborted: let go of the state that was frozen for it, unless that state is being written."""
        self._underway.aborted(checkpoint)

    def maintain(self, budget: int) -> None:
        """Fold the layers that no snapshot needs."""
        self._underway.fold(budget)

    def _all_layers(self) -> Iterator[Layers[Any]]:
        tables: Iterable[MemoryLists | MemoryMaps] = (*self._lists.values(), *self._maps.values())
        for table in tables:
            yield table.layers


def _assembled(
    operator: OperatorId, parts: Mapping[tuple[StateKind, str], tuple[bytes, ...]], broadcast: dict[str, bytes]
) -> OperatorState:
    for (kind, name), content in parts.items():
        if kind is StateKind.BROADCAST:
            broadcast.setdefault(name, content[0])
    return OperatorState(
        operator=operator,
        # An empty split list is left out. An empty union list stays, because the coordinator must know that the
        # operator has union state.
        split_lists={name: found for (kind, name), found in parts.items() if kind is StateKind.SPLIT_LIST and found},
        union_lists={name: found for (kind, name), found in parts.items() if kind is StateKind.UNION_LIST},
        broadcast=broadcast,
    )
