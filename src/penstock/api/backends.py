"""How a user chooses where keyed state is kept."""

from __future__ import annotations

import os

from penstock.core.errors import SettingsError, UsageError
from penstock.settings import StateSettings

_DEFAULTS = StateSettings()

StateBackend = str | StateSettings
"""What a `state_backend` argument takes: a name, or what `memory` or `rocksdb` returns."""


def memory() -> StateSettings:
    """Keyed state as Python objects in the memory of the slots' processes: the fastest, and the default.

    >>> import penstock as ps
    >>> ps.memory().backend  # for ps.Environment(spark, state_backend=ps.memory())
    'memory'
    """
    return _checked(StateSettings(backend="memory"))


def rocksdb(
    *,
    local_directory: str | os.PathLike[str] | None = None,
    write_buffer_bytes: int = _DEFAULTS.write_buffer_bytes,
    block_cache_bytes: int = _DEFAULTS.block_cache_bytes,
) -> StateSettings:
    """Keyed state in RocksDB, on the disks of the slots' hosts. The state may be larger than the memory, and a
    checkpoint uploads only what has changed.

    `local_directory` is a folder on a local disk, the same on every host; by default the folder for temporary files.
    Each slot takes about `write_buffer_bytes` and `block_cache_bytes` of memory, over all steps.

    >>> import penstock as ps
    >>> backend = ps.rocksdb(block_cache_bytes=256 * 1024 * 1024)  # for ps.Environment(spark, state_backend=backend)
    >>> backend.backend, backend.block_cache_bytes
    ('rocksdb', 268435456)
    """
    return _checked(
        StateSettings(
            backend="rocksdb",
            local_directory=None if local_directory is None else os.fspath(local_directory),
            write_buffer_bytes=write_buffer_bytes,
            block_cache_bytes=block_cache_bytes,
        )
    )


def as_state_settings(given: StateBackend | None) -> StateSettings:
    """The settings that a `state_backend` argument means. Raises `UsageError` or `SettingsError`."""
    if given is None:
        return StateSettings()
    if isinstance(given, str):
        return _checked(StateSettings(backend=given))
    if isinstance(given, StateSettings):
        return _checked(given)
    raise UsageError(
        f"state_backend is {given!r}", hint="give 'memory' or 'rocksdb', or what ps.memory() or ps.rocksdb() returns"
    )


def _checked(settings: StateSettings) -> StateSettings:
    problems = settings.problems()
    if problems:
        raise SettingsError(problems)
    return settings
