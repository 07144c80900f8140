"""Where results lie that the driver hands on, and which places are believed.

    <landing>/results/<job>/<operator>/               the folder of an operator
    <landing>/results/<job>/<operator>/<token>/       likewise, of a job that may outlive its driver

Results that a snapshot names may be those of another job, in another landing folder. A snapshot may come from anybody:
only files whose place and name are those of prepared results are read, and deleted, for one. No link below the landing
folder is followed. Where a driver before this one kept something is on record, and a record may have been changed, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import CorruptFile
from penstock.core.recovery.layout import RESULTS
from penstock.core.recovery.places import is_plain

_DEPTHS = (3, 4)
"""How many names the folder of an operator has, from `results` on."""


class ResultFolder(NamedTuple):
    """The folder of an operator."""

    landing: str
    names: tuple[str, ...]
    """From `results` on."""

    @property
    def path(self) -> Path:
        """All of it."""
        return Path(self.landing, *self.names)


def folder_at(place: Path) -> ResultFolder:
    """The folder of an operator, by its full path. Raises `CorruptFile` if it cannot be one."""
    parts = place.parts
    for depth in _DEPTHS:
        if place.is_absolute() and len(parts) > depth and parts[-depth] == RESULTS and all(map(is_plain, parts[1:])):
            return ResultFolder(str(Path(*parts[:-depth])), parts[-depth:])
    raise _crafted(str(place))


def folder_of(files: list[str], is_prepared: Callable[[str], bool]) -> tuple[ResultFolder, list[str]]:
    """The one folder that prepared files lie in, and their names there, by their full paths. Raises `CorruptFile` if a
    path is none of prepared results: `is_prepared` knows their names."""
    folder = folder_at(Path(files[0]).parent)
    for file in files:
        if str(folder.path / Path(file).name) != file or not is_prepared(Path(file).name):
            raise _crafted(file)
    return folder, [Path(file).name for file in files]


def check_path(path: str, is_prepared: Callable[[str], bool]) -> str:
    """The folder of a prepared file, whose path begins at the landing folder. Raises `CorruptFile` if it is none."""
    *folder, name = path.split("/")
    if len(folder) not in _DEPTHS or folder[0] != RESULTS or not all(map(is_plain, folder)) or not is_prepared(name):
        raise _crafted(path)
    return "/".join(folder)


def check_known(place: str, expected: str) -> str:
    """A place that is on record, if it is, or lies directly in, the folder that such places of the operator are in,
    whatever the landing folder was. Raises `CorruptFile` else."""
    wanted, names = expected.split("/"), place.split("/")
    for found in (names[-len(wanted) :], names[-len(wanted) - 1 : -1]):
        if found == wanted and all(map(is_plain, names[1:] if place.startswith("/") else names)):
            return place
    raise CorruptFile(
        f"the record of how the job began says that {place!r} is where an operator keeps files, which cannot be",
        hint="the record was changed, or made to delete other files: do not go on from it",
    )


def _crafted(path: str) -> CorruptFile:
    return CorruptFile(
        f"the snapshot names {path!r} as results to be handed on, which no job has prepared there",
        hint="the snapshot was changed, or made to read or delete other files: do not use it",
    )
