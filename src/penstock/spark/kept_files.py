"""Files that sinks keep in the storage of a job until their content is where it belongs.

The files of a sink lie in the folder of its results (`result_places`). A place names the storage and the path, because
a job that starts from a snapshot of another job reads the files of that other job. Anybody may have written a snapshot,
so a place is believed only if a sink can have written a file there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from penstock.api.connector import KeptFiles
from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import JobId
from penstock.core.recovery import layout
from penstock.core.recovery.believing import is_straight
from penstock.spark.result_places import check_path
from penstock.storage.locations import open_store
from penstock.storage.seals import PLAIN, StoreOptions

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\.[A-Za-z0-9]+")


class _Place(msgspec.Struct, frozen=True, array_like=True):
    root: str
    path: str


@dataclass(frozen=True, kw_only=True)
class StoredFiles(KeptFiles):
    """The files of one sink, in the folder `folder` of the store at `root`."""

    root: str
    folder: str
    options: StoreOptions = field(default=PLAIN, repr=False)

    def write(self, name: str, data: bytes) -> bytes:
        """Write a file, durably, and return its place."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"a sink is to keep a file of the name {name!r}", hint="see KeptFiles.write")
        path = f"{self.folder}/{name}"
        open_store(self.root, options=self.options).write(path, data)
        return self._place(path)

    def read(self, place: bytes) -> bytes:
        """The content of a file of this job, or of another job."""
        found = _believed(place)
        return open_store(found.root, options=self.options).read(found.path)

    def delete(self, place: bytes) -> None:
        """Delete a file."""
        found = _believed(place)
        open_store(found.root, options=self.options).delete(found.path)

    def places(self) -> list[tuple[str, bytes]]:
        """The files in the folder."""
        paths = open_store(self.root, options=self.options).list_files(self.folder)
        names = [(path.rpartition("/")[2], path) for path in paths]
        return [(name, self._place(path)) for name, path in names if _NAME.fullmatch(name)]

    def end(self, job: str) -> None:
        """Delete the folder that the sink has in a job."""
        # results, the job, the operator, and perhaps a token: `result_places`.
        _, _, operator, *_ = self.folder.split("/")
        folder = f"{layout.results_of_job(layout.job_folder(JobId(job)))}/{operator}"
        open_store(self.root, options=self.options).delete_tree(folder)

    def _place(self, path: str) -> bytes:
        return msgspec.msgpack.encode(_Place(self.root, path))


def _believed(place: bytes) -> _Place:
    found = decoded_piece(place, _Place, what="the place of a file that a sink keeps")
    check_path(found.path, lambda name: _NAME.fullmatch(name) is not None)
    if not is_straight(found.root):
        raise CorruptFile(
            f"the snapshot names results in {found.root!r}, where no job keeps any",
            hint="the snapshot was changed, or made in order to read or delete other files: do not use this snapshot",
        )
    return found
