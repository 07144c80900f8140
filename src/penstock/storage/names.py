"""Which job has a name, as small files of a store.

A name is what a user calls a program's job. When the program is run again, the job that has the name goes on. To start
over means to give the name to another job, with another id: the files of the two jobs never have the same names, so the
two jobs cannot be mixed up.

Holders of a name are numbered, and the highest number counts. A number can be taken only once: of two drivers that give
a name away at the same time, one driver is told that it was too late. The driver that gives a name away has taken over
the job that had the name before, so that no other driver runs that job meanwhile.
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import CorruptFile
from penstock.core.ids import JobId
from penstock.core.recovery import layout
from penstock.ports import Store
from penstock.storage.record_formats import LARGEST_RECORD_BYTES, RecordFormat


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The job that has a name. New fields: at the end, with a default."""

    name: str
    """The name as the user wrote it, for people."""
    job: JobId
    started_from: str = ""
    """The path of the snapshot that the user started the job from; empty if there was no snapshot."""
    gives_up: tuple[JobId, ...] = ()
    """Jobs that had the name before and will not go on. Their files may be deleted as soon as this job has a
    checkpoint."""


holder_format = RecordFormat(
    b"PNAM",
    1,
    Holder,
    what="the record of a job's name",
    hint="restore the file from a copy; or delete the file, and start the job from its newest checkpoint by restore=",
)


class JobName:
    """One name for jobs, and the files of a checkpoint directory that record which job has the name. Calls block, and
    raise `StorageError` or `CorruptFile`."""

    def __init__(self, store: Store, name: str, slug: str) -> None:
        """`slug` is the id of the name (`api.job_names`): no other name has the same slug."""
        self._store = store
        self._name = name
        self._slug = slug
        self._folder = layout.name_folder(slug)

    def holder(self) -> tuple[int, Holder | None]:
        """The number of the name's holder, and the job that has the name; 0 and None if no job has the name."""
        numbers = [number for path in self._store.list_files(self._folder) if (number := self._number(path))]
        if not numbers:
            return 0, None
        path = self._path(max(numbers))
        found = holder_format.decode(path, self._store.read(path, limit=LARGEST_RECORD_BYTES))
        for job in (found.job, *found.gives_up):
            self._check(path, job)
        return max(numbers), found

    def give(self, job: JobId, *, after: int, started_from: str = "", gives_up: tuple[JobId, ...] = ()) -> bool:
        """Give the name to a job, if the newest holder still has the number `after`. False if another driver was
        quicker, or if it is not certain which driver was quicker."""
        readable = self._name.encode("utf-8", "replace").decode()
        record = Holder(name=readable, job=job, started_from=started_from, gives_up=gives_up)
        if not self._store.create(self._path(after + 1), holder_format.encode(record)):
            return False
        found = [(number, path) for path in self._store.list_files(self._folder) if (number := self._number(path))]
        if max((number for number, _ in found), default=0) != after + 1:
            # Other drivers have given the name away since, and have deleted the file with this number: the file could
            # be created only for that reason.
            self._store.delete(self._path(after + 1))
            return False
        for number, path in found:
            if number <= after:
                self._store.delete(path)
        return True

    def gave_up(self) -> None:
        """Record that nothing is left of the jobs that the holder gives up."""
        number, holder = self.holder()
        if holder is not None and holder.gives_up:
            settled = msgspec.structs.replace(holder, gives_up=())
            self._store.write(self._path(number), holder_format.encode(settled))

    def _check(self, path: str, job: JobId) -> None:
        """Raise `CorruptFile` if the id of a job does not belong to the name. Otherwise a crafted file could have the
        files of any job deleted."""
        slug, _, token = job.rpartition("-")
        if slug != self._slug or not (token.isascii() and token.isalnum()):
            raise CorruptFile(
                f"{path} says that job {job!r} has had the name {self._name!r}, which does not fit the job's id",
                hint="the file was changed, or was made to have the files of another job deleted: do not use the file",
            )

    def _path(self, number: int) -> str:
        return layout.counted_file(self._folder, number)

    def _number(self, path: str) -> int | None:
        return layout.number_of(self._folder, path)
