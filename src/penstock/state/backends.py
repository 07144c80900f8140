"""Which back end a job's settings ask for."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.errors import SettingsError
from penstock.state.backend import KeyedBackend, StateContext
from penstock.state.memory import MemoryBackend

MakeBackend = Callable[[StateContext], KeyedBackend]


def make_backend(context: StateContext) -> KeyedBackend:
    """A new back end of the kind that `context.settings` names."""
    problems = context.settings.problems()
    if problems:
        raise SettingsError(problems)
    if context.settings.backend == "rocksdb":
        # Imported here, so that only jobs that ask for RocksDB load the library.
        from penstock.state.rocksdb.backend import RocksBackend

        return RocksBackend(context)
    return MemoryBackend(context)
