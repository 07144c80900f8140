"""Prepared files: where they lie until they are committed, and how a commit gives them their final names.

    <path>/_penstock/<job>/s<subtask>-p<parallelism>-e<epoch>-<number>.<kind>      written, not visible
    <path>/part-<job>-<subtask>-<checkpoint>-<number>.<kind>                       committed
    <path>/<column>=<value>/part-...                                               committed, with `partition_by`

The final name of a file is chosen when the file is prepared, such that no file has this name. The final name travels in
the checkpoint. So a commit that is done again finds the file under its final name, and does nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import CorruptFile, StorageError
from penstock.descents import make_folders, opened_folder

STAGING = "_penstock"
"""The folder of prepared files, in the folder of a sink. Spark and other readers ignore a folder with such a name."""

_STAGED = re.compile(r"s(\d+)-p(\d+)-e(\d+)-(\d+)(?:\.\d+)?\.(?:parquet|(?:json|csv)(?:\.gz)?)")


class PreparedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file to be committed. Both names are relative to the folder that the sink had when the file was written."""

    staged: str
    final: str
    folder: str = ""
    """The folder that the sink had when the file was written. Empty in snapshots that do not record the folder: then
    the sink's present folder is meant."""


def staged_before(folder: Path, staging: Path, epoch: int) -> list[tuple[Path, tuple[int, int]]]:
    """The files in a sink's staging folder that attempts before `epoch` wrote. Each file comes with the number of its
    subtask and the parallelism of that time. Empty if the staging folder is a link."""
    try:
        with opened_folder(folder, staging.relative_to(folder).parts) as inside, os.scandir(inside) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return []
    found = [(name, named) for name in names if (named := _STAGED.fullmatch(name)) is not None]
    return [(staging / name, (int(named[1]), int(named[2]))) for name, named in found if int(named[3]) < epoch]


def is_staged(name: str) -> bool:
    """Whether a file has a name of the kind that a sink gives to prepared files."""
    return _STAGED.fullmatch(name) is not None


def staged_file(committable: bytes) -> str:
    """Where a prepared file lies, below the sink's folder."""
    return _prepared(committable).staged


def final_folder(committable: bytes) -> str:
    """The folder that a prepared file gets its final name in, relative to the sink's folder; `.` is the sink's folder
    itself."""
    return str(Path(_prepared(committable).final).parent)


def _prepared(committable: bytes) -> PreparedFile:
    return decoded_piece(committable, PreparedFile, what="a prepared file")


def publish_files(folder: Path, committables: Sequence[bytes], before_each: Callable[[], None] = lambda: None) -> None:
    """Give prepared files their final names, durably. `before_each` is called before each file; if `before_each`
    raises, the files that are left keep their first names. `folder` is the sink's present folder; a file that was
    prepared when the sink had another folder gets its final name in that other folder."""
    touched: dict[Path, None] = {}
    for committable in committables:
        before_each()
        prepared = _prepared(committable)
        root = _folder_of(prepared, folder)
        place = _publish(root, prepared)
        touched |= dict.fromkeys(above for above in (place, *place.parents) if above.is_relative_to(root))
    for place in touched or (folder,):
        sync_folder(place)


def _folder_of(prepared: PreparedFile, now: Path) -> Path:
    """The folder of the sink in which a prepared file lies, under its first or its final name. This is the folder that
    the sink had when the file was written; or the present folder, if results and prepared files were moved there.
    Raises `StorageError` if the file is in neither."""
    _check_names(prepared, now)
    places = dict.fromkeys((Path(prepared.folder or now), now))
    for place in places:
        if _is_there(place, prepared.staged, prepared) or _is_there(place, prepared.final, prepared):
            return place
    raise StorageError(
        f"results are missing: neither {prepared.staged} nor {prepared.final} is in {' or '.join(map(str, places))}",
        hint="the file was deleted or moved by hand, or a newer checkpoint has subsumed this checkpoint; put the file "
        "back, or restore from a newer checkpoint",
    )


def _check_names(prepared: PreparedFile, now: Path) -> None:
    """Raise `CorruptFile` unless the first name of a prepared file is below the staging folder of a sink, and the final
    name is elsewhere in the folder of the same sink. The names come from a snapshot, and anybody may have written the
    snapshot."""
    folder = Path(prepared.folder or now)
    names = (prepared.staged, prepared.final)
    is_strange = any("\0" in name or part in ("", ".", "..") for name in names for part in name.split("/"))
    is_nowhere = not folder.is_absolute() or "\0" in prepared.folder
    is_staged = prepared.staged.startswith(f"{STAGING}/") and not prepared.final.startswith(f"{STAGING}/")
    if is_strange or not is_staged or (prepared.folder and is_nowhere):
        raise _crafted(prepared, folder)


def _is_there(folder: Path, name: str, prepared: PreparedFile) -> bool:
    """Whether a file `name` is below the folder of a sink. Raises `CorruptFile` if a part of the name is a link, or if
    the name is not of a regular file."""
    *above, last = name.split("/")
    try:
        with opened_folder(folder, above) as inside:
            found = stat.S_ISREG(os.stat(last, dir_fd=inside, follow_symlinks=False).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _crafted(prepared, folder) from error
        raise StorageError(f"{folder / name} cannot be looked at: {error.strerror}") from error
    if not found:
        raise _crafted(prepared, folder)
    return True


def _crafted(prepared: PreparedFile, folder: Path) -> CorruptFile:
    return CorruptFile(
        f"the snapshot says that {prepared.staged!r} in {folder} is to be renamed to {prepared.final!r}, and no sink "
        "has prepared such a file",
        hint="the snapshot was changed, or made in order to move other files: do not use this snapshot",
    )


def _publish(folder: Path, prepared: PreparedFile) -> Path:
    """Give a prepared file its final name. Returns the folder of the final name. Both names are reached by descriptors
    of their folders: if somebody replaces a folder by a link meanwhile, the link is not followed."""
    staged, final = folder / prepared.staged, folder / prepared.final
    has_final = _is_there(folder, prepared.final, prepared)
    if has_final and _is_there(folder, prepared.staged, prepared):
        raise StorageError(
            f"{staged} cannot be renamed to {final}: a file of this name exists already",
            hint="another program wrote the existing file; move the existing file out of the folder and restart the "
            "job",
        )
    if has_final:
        return final.parent
    *staging, old = prepared.staged.split("/")
    *above, new = prepared.final.split("/")
    try:
        make_folders(folder, above)
        with opened_folder(folder, staging) as source, opened_folder(folder, above) as target:
            os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        if not _is_there(folder, prepared.final, prepared):
            raise StorageError(f"{staged} disappeared before it could be renamed to {final}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _crafted(prepared, folder) from error
        raise StorageError(f"{staged} could not be renamed to {final}: {error.strerror}") from error
    return final.parent


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: to make a file durable does not make its name durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_name_of(job: str) -> str:
    """A job's id as a part of file names. Characters that could be misread in a path are replaced, and a checksum
    then keeps the names of different jobs apart."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", job)
    if plain == job and not job.startswith("."):
        return job
    return f"{plain.lstrip('.')}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
