"""Removes expired entries: a slow walk over the states with a TTL, a few entries at a time.

A pass looks at every entry once. Before a pass begins, all changes are written to the database, because the pass reads
only the database. While a snapshot waits for its files, no pass begins. Between two passes there is a pause of a part
of the shortest TTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.api.state import StateKind
from penstock.state.backend import ttl_expired
from penstock.state.rocksdb.ordered import KeyCodec
from penstock.state.rocksdb.store import LayeredStore
from penstock.state.rocksdb.tables import PREFIX_SIZE, EntryCodec

_PASSES_PER_TTL = 8
_LEAST_PAUSE_MS = 1_000


class Sweep:
    """The passes over the states of one back end."""

    def __init__(
        self, store: LayeredStore, codecs: Iterable[EntryCodec], keys: KeyCodec, groups: tuple[int, int]
    ) -> None:
        self._store = store
        self._keys = keys
        self._codecs = {codec.number: codec for codec in codecs if codec.spec.ttl is not None}
        self._groups = groups
        self._next_pass_ms = 0
        ttls = [codec.spec.ttl.duration_ms for codec in self._codecs.values() if codec.spec.ttl is not None]
        self._pause_ms = max(min(ttls, default=0) // _PASSES_PER_TTL, _LEAST_PAUSE_MS)
        self._sections: Iterator[bytes] | None = None
        """The sections that the pass has not come to yet; None between two passes. A section is the entries of one
        state in one key group."""
        self._section = self._start = b""

    def run(self, now: int, budget: int) -> bool:
        """Look at up to `budget` entries. Returns whether the pass has more entries to look at."""
        if not self._codecs:
            return False
        if self._sections is None:
            if now < self._next_pass_ms or not self._store.write_all():
                return False
            groups = (group.to_bytes(2, "big") for group in range(self._groups[0], self._groups[1] + 1))
            self._sections = (group + number for group in groups for number in self._codecs)
            self._next_section()
            self._next_pass_ms = now + self._pause_ms
        while budget > 0 and self._sections is not None:
            budget -= 1 + self._walk(now, budget)
        return self._sections is not None

    def _walk(self, now: int, budget: int) -> int:
        """Look at up to `budget` entries of the current section. Returns how many entries were looked at."""
        looked_at, last = 0, b""
        for row, value in self._store.db.items(self._start):
            if looked_at == budget or not row.startswith(self._section):
                break
            looked_at, last = looked_at + 1, row
            self._look(row, value, now)
        if looked_at < budget:
            self._next_section()
        else:
            self._start = last + b"\x00"
        return looked_at

    def _next_section(self) -> None:
        assert self._sections is not None
        following = next(self._sections, None)
        if following is None:
            self._sections = None
        else:
            self._section = self._start = following

    def _look(self, row: bytes, value: bytes, now: int) -> None:
        codec = self._codecs[row[2:PREFIX_SIZE]]
        if not self._is_over(codec, value, now):
            return
        if codec.spec.kind in (StateKind.LIST, StateKind.MAP):
            _, end = self._keys.decode(row, PREFIX_SIZE)
            prefix, suffix = row[:end], row[end:]
            newest = self._store.get_in(prefix, suffix)
            if newest is not None and self._is_over(codec, newest, now):
                self._store.put_in(prefix, suffix, None)
        else:
            newest = self._store.get(row)
            if newest is not None and self._is_over(codec, newest, now):
                self._store.put(row, None)

    def _is_over(self, codec: EntryCodec, value: bytes, now: int) -> bool:
        ttl = codec.spec.ttl
        return ttl is not None and ttl_expired(ttl, codec.written_ms(value), now)
