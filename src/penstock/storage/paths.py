"""Paths of files below the root of a store: which are allowed, and which are temporary."""

from __future__ import annotations

import secrets

from penstock.core.errors import UsageError

TEMPORARY_PREFIX = ".writing-"
"""How the name of a file begins while the file is being written, where unfinished files are visible."""


def check_path(path: str, root: str) -> None:
    """Raise `UsageError` unless a path is relative, stays below its root and names no temporary file."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UsageError(
            f"path {path!r} is not a relative path below {root}",
            hint="use names joined by '/', without '.', '..' or a leading '/'",
        )
    if parts[-1].startswith(TEMPORARY_PREFIX):
        raise UsageError(f"path {path!r} looks like a temporary file", hint=f"do not begin with {TEMPORARY_PREFIX}")


def temporary_name() -> str:
    """The name for a file that is being written. No other writer uses the same name."""
    return f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def is_temporary(path: str) -> bool:
    """Whether the path is the path of a file that a writer has not finished."""
    return path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
