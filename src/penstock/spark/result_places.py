"""The places of prepared results that the driver commits, and which places are believed.

    <landing>/results/<job>/<operator>/               the folder of an operator
    <landing>/results/<job>/<operator>/<token>/       the same, of a job that may outlive its driver

A snapshot may name results of another job, in another landing folder. Anybody may have written a snapshot, so a file
that a snapshot names is read and deleted only if it has the place and the name of a prepared result. No link below the
landing folder is followed. The record of how a job began names the places of earlier drivers. This record may have been
changed too, and its places are checked likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import CorruptFile
from penstock.core.recovery.layout import RESULTS
from penstock.core.recovery.places import is_plain

_DEPTHS = (3, 4)
"""How many names the path of an operator's folder has, from `results` on."""


class ResultFolder(NamedTuple):
    """The folder of an operator."""

    landing: str
    names: tuple[str, ...]
    """The names in the path of the folder, from `results` on."""

    @property
    def path(self) -> Path:
        """The full path of the folder."""
        return Path(self.landing, *self.names)


def folder_at(place: Path) -> ResultFolder:
    """The folder of an operator that has this full path. Raises `CorruptFile` if no operator can have this folder."""
    parts = place.parts
    for depth in _DEPTHS:
        if place.is_absolute() and len(parts) > depth and parts[-depth] == RESULTS and all(map(is_plain, parts[1:])):
            return ResultFolder(str(Path(*parts[:-depth])), parts[-depth:])
    raise _crafted(str(place))


def folder_of(files: list[str], is_prepared: Callable[[str], bool]) -> tuple[ResultFolder, list[str]]:
    """The folder in which all these prepared files lie, and the names of the files. `files` are full paths. Raises
    `CorruptFile` if a path cannot be that of a prepared result; `is_prepared` says whether a file name can be."""
    folder = folder_at(Path(files[0]).parent)
    for file in files:
        if str(folder.path / Path(file).name) != file or not is_prepared(Path(file).name):
            raise _crafted(file)
    return folder, [Path(file).name for file in files]


def check_path(path: str, is_prepared: Callable[[str], bool]) -> str:
    """The folder of a prepared file; both paths are relative to the landing folder. Raises `CorruptFile` if the path
    cannot be that of a prepared file."""
    *folder, name = path.split("/")
    if len(folder) not in _DEPTHS or folder[0] != RESULTS or not all(map(is_plain, folder)) or not is_prepared(name):
        raise _crafted(path)
    return "/".join(folder)


def check_known(place: str, expected: str) -> str:
    """Returns a place that is on record, if it can be believed: it must be the folder `expected` of the operator, or
    lie directly in this folder, below any landing folder. Otherwise raises `CorruptFile`."""
    wanted, names = expected.split("/"), place.split("/")
    for found in (names[-len(wanted) :], names[-len(wanted) - 1 : -1]):
        if found == wanted and all(map(is_plain, names[1:] if place.startswith("/") else names)):
            return place
    raise CorruptFile(
        f"the record of how the job began says that an operator keeps files in {place!r}, where no operator can keep "
        "files",
        hint="the record was changed, or made in order to delete other files: do not go on with this job",
    )


def _crafted(path: str) -> CorruptFile:
    return CorruptFile(
        f"the snapshot names {path!r} as a prepared result, and no job prepares results there",
        hint="the snapshot was changed, or made in order to read or delete other files: do not use this snapshot",
    )
