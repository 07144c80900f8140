"""The page of the program, if its packages are installed.

The page lies above this package, and must not be imported here: a program without the packages of the page runs all the
same. So the server is found by its name when the first job is started.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.checkpointing import Checkpointing
from penstock.api.web import Web
from penstock.core.errors import HostError, SettingsError
from penstock.settings import JobSettings

if TYPE_CHECKING:
    from penstock.spark.job import Job

log = logging.getLogger(__name__)

NEEDED = ("starlette", "uvicorn")
BY_DEFAULT = True
"""Whether a program has a page that says nothing about it."""


def chosen_web(given: bool | Web | None) -> Web | None:  # noqa: FBT001  # as the user gives it
    """Where the page listens; None for no page. Raises `SettingsError` if the user asks for a page, and its packages
    are not installed."""
    if given is False or (given is None and not BY_DEFAULT):
        return None
    if not (given is None or given is True or isinstance(given, Web)):
        raise SettingsError([f"web is {given!r}; give True, False, or ps.Web(...)"])
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return given if isinstance(given, Web) else Web()
    if given is None:
        return None
    raise SettingsError([f"web was given, and {' and '.join(missing)} is not installed; install penstock[web]"])


def show(job: Job, web: Web | None, settings: JobSettings, checkpointing: Checkpointing | None) -> None:
    """Show a job on the page of this program. A page that cannot be served does not keep the job from running."""
    if web is None:
        return
    directory = None if checkpointing is None else checkpointing.location
    known: dict[str, Any] = {**msgspec.to_builtins(settings), "penstock-checkpoint-directory": directory}
    folders = (*(() if directory is None else (directory,)), *web.folders)
    try:
        import_module("penstock.web.server").show(
            web,
            job=str(job.id),
            name=job.name,
            driven=job,
            ask=job._ask_facts,  # noqa: SLF001  # only a page may ask
            settings=known,
            folders=folders,
        )
    except (HostError, OSError) as error:
        log.warning("job %r has no page: %s", job.name, error)
