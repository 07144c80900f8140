"""How a user chooses where keyed state is kept."""

from __future__ import annotations

from penstock.core.errors import SettingsError, UsageError
from penstock.settings import StateSettings

StateBackend = str | StateSettings
"""What a `state_backend` argument takes: a name, or what `memory` or `rocksdb` returns."""


def memory() -> StateSettings:
    """Keyed state as Python objects in the memory of the slots' processes: the fastest, and the default."""
    return _checked(StateSettings(backend="memory"))


def rocksdb() -> StateSettings:
    """Keyed state in RocksDB, on the disks of the slots' hosts. Not part of this version: raises `SettingsError`."""
    return _checked(StateSettings(backend="rocksdb"))


def as_state_settings(given: StateBackend | None) -> StateSettings:
    """The settings that were meant. Raises `UsageError` or `SettingsError`."""
    if given is None:
        return StateSettings()
    if isinstance(given, str):
        return _checked(StateSettings(backend=given))
    if isinstance(given, StateSettings):
        return _checked(given)
    raise UsageError(f"state_backend is {given!r}", hint="give 'memory', or what ps.memory() returns")


def _checked(settings: StateSettings) -> StateSettings:
    problems = settings.problems()
    if problems:
        raise SettingsError(problems)
    return settings
