"""The folders below which requests may have savepoints written and deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.core.recovery import roots
from penstock.web.answers.asking import Refused

MOST_CHARACTERS = 4_096


def allowed_place(given: object, folders: Iterable[str]) -> str:
    """The place that a client names, if the place is one of the folders, or lies below one of them. Raises `Refused`
    for any other place: whoever reaches the server must not write anywhere else."""
    if not isinstance(given, str) or not given.strip() or len(given) > MOST_CHARACTERS or "\0" in given:
        raise Refused(400, "target-directory is no path; give the full path or the URI of a folder")
    problem = roots.problem_with(given)
    if problem is not None:
        raise Refused(400, f"target-directory: {problem}")
    if roots.is_local(given):
        path = _path_of(given)
        if path is None:
            raise Refused(400, f"target-directory {given!r} is no full path; give the full path of a folder")
        real = _real(path)
        for folder in folders:
            if roots.is_local(folder) and (base := _path_of(folder)) is not None and _is_below(real, _real(base)):
                return real
    else:
        for folder in folders:
            if not roots.is_local(folder) and _is_below_uri(given, folder):
                return given
    raise Refused(
        403,
        f"savepoints must not be written to {roots.shown(given)}: it lies in no folder that the program allows",
        "allow the folder: Environment(web=ps.Web(savepoint_directories=[...]))",
    )


def _path_of(given: str) -> str | None:
    """The full path of a path or a `file:` URI; None if the path is not full."""
    if roots.scheme_of(given) == "file":
        parts = urlsplit(given)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            return None
        given = unquote(parts.path)
    return given if Path(given).is_absolute() and "\0" not in given else None


def _real(path: str) -> str:
    """The path without links and without `..`."""
    return os.path.realpath(path)


def _is_below(path: str, base: str) -> bool:
    return path == base or path.startswith(f"{base.rstrip('/')}/")


def _is_below_uri(given: str, folder: str) -> bool:
    place, _, options = given.partition("?")
    base, _, own_options = folder.partition("?")
    # The options of a URI can name another server.
    if options != own_options or "#" in place:
        return False
    parts = unquote(place).split("/")
    if ".." in parts or "." in parts or "\\" in place:
        return False
    return place.rstrip("/") == base.rstrip("/") or place.startswith(f"{base.rstrip('/')}/")
