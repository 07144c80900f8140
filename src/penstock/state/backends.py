"""Which back end a job's settings ask for."""

from __future__ import annotations

from penstock.core.errors import SettingsError
from penstock.state.backend import KeyedBackend, StateContext
from penstock.state.memory import MemoryBackend


def make_backend(context: StateContext) -> KeyedBackend:
    """A new back end of the kind that `context.settings` names."""
    problems = context.settings.problems()
    if problems:
        raise SettingsError(problems)
    if context.settings.backend == "rocksdb":
        # Only jobs that ask for it load the library.
        from penstock.state.rocksdb.backend import RocksBackend

        return RocksBackend(context)
    return MemoryBackend(context)
