"""Dicts that can be frozen in constant time, without a copy, while they go on being changed.

A frozen dict is not changed any more. Changes are written into a new dict on top, the *live* dict. A lookup goes from
top to bottom. When no snapshot needs the frozen dicts, the dicts are folded together again in small pieces: the lowest
dict, which is the largest, becomes the live dict, and the dicts above are emptied into it.

    plain       everything is in `live`
    layered     snapshots are under way: `live` is on top, frozen dicts are below, the newest first
    folding     no snapshot is under way: `live` is at the bottom, and the dicts above are emptied into `live`; a lookup
                begins with the dicts above

If an entry is removed and may exist in a lower dict, the upper dict has the mark `REMOVED` in its place. There are
three kinds of container: one value per key, a list per key, and a map per key. In an upper dict, the list or map of a
key has only the additions to the list or map below. A list or map that is *whole* replaces everything below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from penstock.state.backend import MISSING
from penstock.state.values import is_mutable, own_copy

EntryT = TypeVar("EntryT")
Layer = dict[Any, EntryT]


class _Removed:
    """The mark in the place of a removed entry: the entry does not exist, whatever the lower layers have."""

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Any = _Removed()


class Part(list[Any]):
    """The list of one key in one layer."""

    __slots__ = ("whole",)

    def __init__(self, items: Any = (), *, whole: bool) -> None:
        super().__init__(items)
        self.whole = whole


class Entries(dict[Any, Any]):
    """The map of one key in one layer."""

    __slots__ = ("marked", "whole")

    def __init__(self, items: Any = (), *, whole: bool) -> None:
        super().__init__(items)
        self.whole = whole
        self.marked = False
        """Whether the map may have the mark `REMOVED` in the place of an entry."""


class Layers(ABC, Generic[EntryT]):
    """What the three containers have in common: freezing and folding."""

    def __init__(self, *, mutable: bool) -> None:
        self.live: Layer[EntryT] = {}
        self.plain = True
        """Whether `live` is the only layer. Lookups are quick then."""
        self._mutable = mutable
        """Whether entries could be changed in place."""
        self._below: tuple[Layer[EntryT], ...] = ()
        self._above: list[Layer[EntryT]] = []

    def freeze(self) -> tuple[Layer[EntryT], ...]:
        """Freeze and return all layers, newest first. The returned layers are not changed until `thaw` is called."""
        if self._above:
            self._below, self._above = (*self._above, self.live), []
            self.live = {}
        elif self.live or not self._below:
            self._below = (self.live, *self._below)
            self.live = {}
        self.plain = False
        return self._below

    def thaw(self) -> None:
        """The frozen layers are not read any more: begin to fold them."""
        if self._below:
            self._above = [layer for layer in (self.live, *self._below[:-1]) if layer]
            self.live = self._below[-1]
            self._below = ()
        self.plain = not self._above

    def fold(self, budget: int) -> int:
        """Move about `budget` entries down, if no layer is frozen. Returns how many entries were moved."""
        moved = 0
        while self._above and moved < budget:
            oldest = self._above[-1]
            if oldest:
                moved += self._fold_some(oldest, budget - moved)
            else:
                self._above.pop()
        self.plain = not self._above and not self._below
        return moved

    @property
    def is_folding(self) -> bool:
        """Whether `fold` has something to do."""
        return bool(self._above)

    def _downwards(self) -> Iterator[Layer[EntryT]]:
        """All layers, newest first."""
        yield from self._above
        yield self.live
        yield from self._below

    @abstractmethod
    def _fold_some(self, layer: Layer[EntryT], budget: int) -> int:
        """Move entries of `layer`, which is right above `live`, into `live`. Returns how many entries were moved."""


class ValueLayers(Layers[Any]):
    """One entry per key."""

    def get(self, key: Any) -> Any:
        """The entry, or `MISSING`."""
        if self.plain:
            return self.live.get(key, MISSING)
        if self._above:
            for layer in self._downwards():
                if (found := layer.get(key, MISSING)) is not MISSING:
                    return MISSING if found is REMOVED else found
            return MISSING
        found = self.live.get(key, MISSING)
        if found is not MISSING:
            return MISSING if found is REMOVED else found
        for layer in self._below:
            if (found := layer.get(key, MISSING)) is not MISSING:
                if found is REMOVED:
                    return MISSING
                if self._mutable and is_mutable(found):
                    found = self.live[key] = own_copy(found)
                return found
        return MISSING

    def put(self, key: Any, entry: Any) -> None:
        """Replace the entry."""
        for layer in self._above:
            layer.pop(key, None)
        self.live[key] = entry

    def remove(self, key: Any) -> None:
        """Remove the entry, if there is one."""
        if self._below:
            self.live[key] = REMOVED
            return
        for layer in self._above:
            layer.pop(key, None)
        self.live.pop(key, None)

    def _fold_some(self, layer: Layer[Any], budget: int) -> int:
        count = min(budget, len(layer))
        for _ in range(count):
            key, entry = layer.popitem()
            if entry is REMOVED:
                self.live.pop(key, None)
            else:
                self.live[key] = entry
        return count


class ListLayers(Layers[Part]):
    """A list of entries per key."""

    def get(self, key: Any) -> list[Any]:
        """All entries of a key, in a new list."""
        if self.plain:
            return list(self.live.get(key, ()))
        found, frozen = _list_of(key, self._downwards()), bool(self._below)
        if frozen and self._mutable and any(map(is_mutable, found)):
            found = [own_copy(entry) for entry in found]
            self.live[key] = Part(found, whole=True)
        return found

    def put(self, key: Any, entries: list[Any]) -> None:
        """Replace all entries of a key."""
        if not entries:
            self.remove(key)
            return
        for layer in self._above:
            layer.pop(key, None)
        self.live[key] = Part(entries, whole=True)

    def append(self, key: Any, entry: Any) -> None:
        """Add an entry to a key's list."""
        for layer in self._above:
            if (part := layer.get(key)) is not None:
                part.append(entry)
                return
        if (part := self.live.get(key)) is not None:
            part.append(entry)
        else:
            self.live[key] = Part((entry,), whole=not self._below)

    def remove(self, key: Any) -> None:
        """Remove all entries of a key."""
        if self._below:
            self.live[key] = Part(whole=True)
            return
        for layer in self._above:
            layer.pop(key, None)
        self.live.pop(key, None)

    def _fold_some(self, layer: Layer[Part], budget: int) -> int:
        moved = 0
        while layer and moved < budget:
            key, part = layer.popitem()
            below = self.live.get(key)
            moved += 1 + len(part) // 64
            if below is not None and not part.whole:
                below.extend(part)
            elif part:
                part.whole = True
                self.live[key] = part
            else:
                self.live.pop(key, None)
        return moved


class MapLayers(Layers[Entries]):
    """A map of entries per key."""

    def get(self, key: Any, inner: Any) -> Any:
        """The entry of `inner` in the map of `key`, or `MISSING`."""
        if self.plain:
            entries = self.live.get(key)
            return MISSING if entries is None else entries.get(inner, MISSING)
        for layer in self._downwards():
            entries = layer.get(key)
            if entries is None:
                continue
            found = entries.get(inner, MISSING)
            if found is REMOVED:
                return MISSING
            if found is not MISSING:
                if self._below and layer is not self.live and self._mutable and is_mutable(found):
                    found = own_copy(found)
                    self.put(key, inner, found)
                return found
            if entries.whole:
                return MISSING
        return MISSING

    def put(self, key: Any, inner: Any, entry: Any) -> None:
        """Add or replace an entry."""
        for layer in self._above:
            if (entries := layer.get(key)) is not None:
                entries[inner] = entry
                return
        if (entries := self.live.get(key)) is not None:
            entries[inner] = entry
        else:
            self.live[key] = Entries(((inner, entry),), whole=not self._below)

    def remove(self, key: Any, inner: Any) -> None:
        """Remove an entry, if there is one."""
        for layer in self._above:
            if (entries := layer.get(key)) is not None:
                entries[inner] = REMOVED
                entries.marked = True
                return
        entries = self.live.get(key)
        if self._below and (entries is None or not entries.whole):
            self.put(key, inner, REMOVED)
            self.live[key].marked = True
        elif entries is not None:
            entries.pop(inner, None)
            if not entries and not self._below:
                del self.live[key]

    def clear(self, key: Any) -> None:
        """Remove all entries of a key."""
        if self._below:
            self.live[key] = Entries(whole=True)
            return
        for layer in self._above:
            layer.pop(key, None)
        self.live.pop(key, None)

    def items(self, key: Any) -> list[tuple[Any, Any]]:
        """All entries of a key."""
        if self.plain:
            return list(self.live.get(key, {}).items())
        found = _map_of(key, self._downwards())
        if self._below and self._mutable:
            changed = {inner: own_copy(entry) for inner, entry in found.items() if is_mutable(entry)}
            found.update(changed)
            for inner, entry in changed.items():
                self.put(key, inner, entry)
        return list(found.items())

    def _fold_some(self, layer: Layer[Entries], budget: int) -> int:
        moved = 0
        while layer and moved < budget:
            key, entries = layer.popitem()
            below = self.live.get(key)
            moved += 1
            if (below is None or entries.whole) and entries and not entries.marked:
                entries.whole = True
                self.live[key] = entries
                continue
            if below is None or entries.whole:
                below = self.live[key] = Entries(whole=True)
                entries.whole = False
            while entries and moved < budget:
                inner, entry = entries.popitem()
                moved += 1
                if entry is REMOVED:
                    below.pop(inner, None)
                else:
                    below[inner] = entry
            if entries:
                layer[key] = entries
            elif not below:
                del self.live[key]
        return moved


# --- reading what was frozen -----------------------------------------------------------------------------------------


def frozen_values(layers: tuple[Layer[Any], ...]) -> Iterator[tuple[Any, Any]]:
    """Every key and its entry, of frozen `ValueLayers`."""
    for number, layer in enumerate(layers):
        newer = layers[:number]
        for key, entry in layer.items():
            if entry is not REMOVED and not any(key in upper for upper in newer):
                yield key, entry


def frozen_lists(layers: tuple[Layer[Part], ...]) -> Iterator[tuple[Any, list[Any]]]:
    """Every key and its list, of frozen `ListLayers`. Empty lists are left out."""
    for number, layer in enumerate(layers):
        newer, rest = layers[:number], layers[number:]
        for key, part in layer.items():
            if not any(key in upper for upper in newer):
                found = part if part.whole else _list_of(key, iter(rest))
                if found:
                    yield key, found


def frozen_maps(layers: tuple[Layer[Entries], ...]) -> Iterator[tuple[Any, dict[Any, Any]]]:
    """Every key and its map, of frozen `MapLayers`. Empty maps are left out."""
    for number, layer in enumerate(layers):
        newer, rest = layers[:number], layers[number:]
        for key in layer:
            if not any(key in upper for upper in newer):
                found = layer[key] if len(rest) == 1 else _map_of(key, iter(rest))
                if found:
                    yield key, found


def _list_of(key: Any, downwards: Iterator[Layer[Part]]) -> list[Any]:
    parts: list[Part] = []
    for layer in downwards:
        if (part := layer.get(key)) is not None:
            parts.append(part)
            if part.whole:
                break
    return [entry for part in reversed(parts) for entry in part]


def _map_of(key: Any, downwards: Iterator[Layer[Entries]]) -> dict[Any, Any]:
    parts: list[Entries] = []
    for layer in downwards:
        if (entries := layer.get(key)) is not None:
            parts.append(entries)
            if entries.whole:
                break
    merged: dict[Any, Any] = {}
    for entries in reversed(parts):
        merged.update(entries)
    return {inner: entry for inner, entry in merged.items() if entry is not REMOVED}
