"""Looks at a checkpoint directory: whether every snapshot could be restored, and which files no snapshot refers to.

The files in the folder of a job that no snapshot refers to are

* *orphans*, if they belong to a checkpoint older than the newest completed checkpoint, or the job has ended: no
  snapshot will ever refer to them;
* *unfinished*, if a running job may still refer to them: a checkpoint that is under way looks no different from a
  checkpoint that a driver left behind when the driver died;
* *foreign*, if no job writes such files.

A job that is over has no pointers, and its checkpoints are the checkpoints that have metadata: a checkpoint that is
deleted loses its metadata first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.messages import StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.believing import Grounds, believed_record
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint, SnapshotKind
from penstock.core.recovery.places import is_full, is_shared_place, with_full_paths
from penstock.ports import Store
from penstock.storage.completed import FileCompletedStore
from penstock.storage.metadata import LARGEST_METADATA_BYTES, decode_metadata
from penstock.storage.places import Anywhere
from penstock.storage.restoring import read_completed
from penstock.storage.snapshots import Readable, SnapshotReader


class Standing(Enum):
    """What a snapshot is to its job."""

    RETAINED = "retained"
    """A pointer leads to the snapshot: a driver of the job would restore the snapshot."""
    KEPT = "kept"
    """The job is over and left the snapshot behind."""
    SAVEPOINT = "savepoint"
    """The snapshot belongs to the user."""
    STARTED_FROM = "started from"
    """The job was started from the snapshot, and no checkpoint of the job has replaced the snapshot yet."""


@dataclass(frozen=True, kw_only=True)
class SnapshotReport:
    """One snapshot, and its problems."""

    location: str
    """The folder of the snapshot, relative to the directory that was looked at; or, for a savepoint elsewhere, the path
    or URI of the folder."""
    standing: Standing
    job: JobId | None = None
    """None, like all fields below, if the metadata of the snapshot cannot be read."""
    checkpoint: CheckpointId | None = None
    kind: SnapshotKind | None = None
    triggered: Instant | None = None
    size_bytes: int | None = None
    """How many bytes a restore has to read."""
    files: int | None = None
    """How many files the snapshot refers to, without its metadata."""
    operators: int | None = None
    parallelism: int | None = None
    """The parallelism of the widest operator."""
    problems: tuple[str, ...] = ()


class LeftoverKind(Enum):
    """Why a file is there that no snapshot refers to."""

    ORPHAN = "orphan"
    UNFINISHED = "unfinished"
    FOREIGN = "foreign"


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file that no snapshot refers to."""

    path: str
    kind: LeftoverKind
    temporary: bool = False
    """Whether the writer has not finished the file."""
    folder: str | None = None
    """The folder of the file, if the folder is a leftover as a whole; otherwise None."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All snapshots, leftovers and problems that were found."""

    snapshots: tuple[SnapshotReport, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems that belong to no single snapshot."""

    @property
    def all_problems(self) -> tuple[str, ...]:
        """All problems. The problem of a snapshot names the folder of the snapshot."""
        return (*self.problems, *(f"{s.location}: {problem}" for s in self.snapshots for problem in s.problems))

    @property
    def is_fine(self) -> bool:
        """Whether every snapshot could be restored."""
        return not self.all_problems

    def of(self, kind: LeftoverKind) -> tuple[Leftover, ...]:
        """The leftovers of one kind."""
        return tuple(leftover for leftover in self.leftovers if leftover.kind is kind)


def verify_directory(store: Store, *, temporary: Sequence[str] = (), job_ended: bool = False) -> Report:
    """Look at everything below a checkpoint directory: the jobs and the savepoints. `temporary` are files that writers
    have not finished. `job_ended` says that no job runs that could refer to any of the files later."""
    complete = store.list_files("")
    paths = [*complete, *temporary]
    jobs = _job_folders(paths)
    checks = [_JobCheck(store, job, temporary=_below(job, temporary), job_ended=job_ended) for job in jobs]
    used = {path: None for check in checks for path in check.referred}
    reports = [check.report(used) for check in checks]
    for location in _savepoint_folders(path for path in paths if path.partition("/")[0] not in jobs):
        files = _SavepointFiles(
            paths=_below(location, complete), temporary=_below(location, temporary), start=f"{location}/"
        )
        reports.append(_savepoint_report(_Inside(store, files.start), location, files, job_ended=job_ended))
    return _together(reports)


def verify_job(store: Store, folder: JobFolder, *, temporary: Sequence[str] = (), job_ended: bool = False) -> Report:
    """Look at one job of a checkpoint directory."""
    check = _JobCheck(store, folder, temporary=temporary, job_ended=job_ended)
    report = check.report()
    if not report.leftovers:
        return report
    # Another job that has claimed a snapshot of this job goes on using the shared files of that snapshot.
    others = [job for job in _job_folders(store.list_files("")) if job != folder]
    checks = [_JobCheck(store, job, temporary=(), job_ended=job_ended, reads_files=False) for job in others]
    return check.report({path: None for other in checks for path in other.referred})


def verify_checkpoint(store: Store, folder: JobFolder, checkpoint: CheckpointId) -> Report:
    """Look at one checkpoint of a job, with every file that the checkpoint refers to."""
    check = _JobCheck(store, folder, temporary=(), job_ended=False)
    return Report(snapshots=(check.snapshot(checkpoint, Standing.KEPT)[0],))


def verify_savepoint(store: Store, location: str, *, temporary: Sequence[str] = (), job_ended: bool = False) -> Report:
    """Look at the savepoint whose folder is the root of `store`; `location` names the savepoint in the report."""
    files = _SavepointFiles(paths=store.list_files(""), temporary=temporary)
    return _savepoint_report(_Inside(store, ""), location, files, job_ended=job_ended)


# --- one job ---------------------------------------------------------------------------------------------------------


class _JobCheck:
    """The check of one job."""

    def __init__(
        self,
        store: Store,
        folder: JobFolder,
        *,
        temporary: Sequence[str],
        job_ended: bool,
        reads_files: bool = True,
    ) -> None:
        """Without `reads_files` the check only finds out which files the snapshots refer to, and reads none of these
        files."""
        self._store = store
        self._reads_files = reads_files
        directory = tuple(dict.fromkeys((store.location, store.followed(store.location))))
        self._grounds = Grounds(job=folder, directory=directory)
        self._folder = folder
        self._temporary = temporary
        self._job_ended = job_ended
        self._files = _FileCheck(Anywhere(store))
        self._pointed: dict[CheckpointId, CompletedCheckpoint] = {}
        self._problems: list[str] = []
        self._snapshots: list[SnapshotReport] = []
        self._referred: dict[str, None] = {}
        self._used_folders: dict[str | None, None] = {}
        self._unknown: dict[str, None] = {}
        """Folders of snapshots whose metadata cannot be read: it is not known which files these snapshots refer to."""
        self._newest = 0
        self._is_over = job_ended
        self._paths = store.list_files(folder)
        self._numbers = self._look_at_all()

    @property
    def referred(self) -> tuple[str, ...]:
        """The files that the job's snapshots refer to, in the job's folder or elsewhere in the directory."""
        return tuple(self._referred)

    def _look_at_all(self) -> tuple[CheckpointId, ...]:
        """Look at every snapshot. Returns the ids of the checkpoints that have pointers."""
        pointers = self._pointers()
        self._pointed = {number: pointer for number, pointer in pointers.items() if pointer is not None}
        for number, pointer in pointers.items():
            if pointer is not None:
                self._look_at_pointer(pointer)
            else:
                self._unknown[layout.checkpoint_folder(self._folder, number)] = None
        if not pointers:
            for number in sorted(self._with_metadata(self._paths)):
                self._take(*self.snapshot(number, Standing.KEPT))
        self._check_counter(self._paths)
        return tuple(pointers)

    def report(self, used: Iterable[str] = ()) -> Report:
        """The report about the job. Files in `used` are no leftovers, because another job uses them."""
        self._referred |= dict.fromkeys(used)
        self._used_folders |= dict.fromkeys(map(self._folder_of, self._referred))
        pointers = self._numbers
        everything = (*self._paths, *self._temporary)
        self._newest = max((*pointers, *(s.checkpoint or 0 for s in self._snapshots)), default=0)
        is_newer = any(number is not None and number > self._newest for number in map(self._number_of, everything))
        # Files of a checkpoint that is newer than all snapshots may be the work of a running job.
        self._is_over = self._job_ended or (bool(self._snapshots) and not pointers and not is_newer)
        judged = map(self._judge, everything)
        return Report(
            snapshots=tuple(self._snapshots),
            leftovers=tuple(leftover for leftover in judged if leftover is not None),
            problems=tuple(self._problems),
        )

    def _with_metadata(self, paths: Iterable[str]) -> Iterator[CheckpointId]:
        for path in paths:
            number = self._number_of(path)
            if number is not None and path == layout.metadata_file(self._folder, number):
                yield number

    def snapshot(
        self, checkpoint: CheckpointId, standing: Standing
    ) -> tuple[SnapshotReport, CheckpointMetadata | None]:
        """The report about one checkpoint of this job, and the metadata of the checkpoint; None if the metadata cannot
        be used."""
        location = layout.checkpoint_folder(self._folder, checkpoint)
        path = layout.metadata_file(self._folder, checkpoint)
        try:
            metadata = decode_metadata(path, self._store.read(path, limit=LARGEST_METADATA_BYTES))
        except StorageError as error:
            return SnapshotReport(location=location, standing=standing, problems=(error.message,)), None
        problems = list(_wrong_place(metadata, self._folder, checkpoint))
        try:
            # The paths are checked before any file that the metadata names is read.
            metadata = with_full_paths(metadata, location, known=self._known_in(metadata))
        except CorruptFile as error:
            return _describe(metadata, location, standing, [*problems, error.message]), None
        return _describe(metadata, location, standing, [*problems, *self._problems_of(metadata)]), metadata

    def _known_in(self, metadata: CheckpointMetadata) -> list[str]:
        """The full paths that a checkpoint may refer to: paths in the places where jobs of this directory share files,
        and paths that the job has on record."""
        pointer = self._pointed.get(metadata.checkpoint)
        recorded = {s.file.path for s in pointer.shared_files} if pointer is not None else set()
        full = [file.path for file in metadata.files if file.path is not None and is_full(file.path)]
        return [path for path in full if path in recorded or is_shared_place(self._store.path_of(path) or "")]

    def _problems_of(self, metadata: CheckpointMetadata) -> Iterator[str]:
        return self._files.problems_of(metadata) if self._reads_files else iter(())

    def _read(
        self, pointer: CompletedCheckpoint, standing: Standing
    ) -> tuple[SnapshotReport, CheckpointMetadata | None]:
        """The report about a snapshot that a pointer leads to, wherever the snapshot lies: the snapshot that the job
        was started from, or a savepoint. Also the metadata of the snapshot; None if the metadata cannot be read."""
        place = pointer.location
        try:
            metadata = read_completed(self._store, pointer)
        except StorageError as error:
            return SnapshotReport(location=place, standing=standing, problems=(error.message,)), None
        return _describe(metadata, place, standing, self._problems_of(metadata)), metadata

    def _take(self, report: SnapshotReport, metadata: CheckpointMetadata | None) -> None:
        self._snapshots.append(report)
        if metadata is None:
            self._unknown[self._place_of(report.location) or report.location] = None
            return
        own = (f"{report.location}/{layout.METADATA_NAME}", *(file.path for file in metadata.files))
        self._referred |= dict.fromkeys(place for path in own if path and (place := self._place_of(path)) is not None)

    def _place_of(self, path: str) -> str | None:
        """A path in the metadata as a path of the directory; None if the path lies elsewhere."""
        return self._store.path_of(path) if is_full(path) else path

    def _folder_of(self, path: str) -> str | None:
        return layout.checkpoint_folder_of(self._folder, path)

    def _number_of(self, path: str) -> CheckpointId | None:
        folder = self._folder_of(path)
        return layout.checkpoint_number(folder.rpartition("/")[2]) if folder is not None else None

    def _pointers(self) -> dict[CheckpointId, CompletedCheckpoint | None]:
        """The completed checkpoints by id; None for a checkpoint whose pointer cannot be read."""
        folder = layout.completed_folder(self._folder)
        completed = FileCompletedStore(self._store, self._folder)
        found: dict[CheckpointId, CompletedCheckpoint | None] = {}
        for path in self._store.list_files(folder):
            number = layout.number_of(folder, path)
            try:
                pointer = msgspec.msgpack.decode(completed.read(path).data, type=CompletedCheckpoint)
                if pointer.checkpoint != number:
                    raise CorruptFile(f"{path} is the pointer to checkpoint {pointer.checkpoint}")
                # The pointer is checked before any file that it names is read.
                found[number] = believed_record(pointer, self._grounds)
            except (StorageError, msgspec.MsgspecError, ValueError, RecursionError) as error:
                text = error.message if isinstance(error, StorageError) else f"{path} cannot be read: {error}"
                self._problems.append(text)
                if number is not None:
                    found[number] = None
        return found

    def _look_at_pointer(self, pointer: CompletedCheckpoint) -> None:
        if pointer.claim is not None:
            self._take(*self._read(pointer, Standing.STARTED_FROM))
            return
        if not pointer.kind.is_savepoint:
            self._take(*self.snapshot(pointer.checkpoint, Standing.RETAINED))
            return
        self._snapshots.append(self._read(pointer, Standing.SAVEPOINT)[0])

    def _check_counter(self, paths: Sequence[str]) -> None:
        folder = layout.counter_folder(self._folder)
        counters = [path for path in paths if path.startswith(f"{folder}/")]
        numbers = [number for path in counters if (number := layout.number_of(folder, path)) is not None]
        self._problems += [f"{p} does not belong in {folder}" for p in counters if layout.number_of(folder, p) is None]
        own = [s for s in self._snapshots if s.standing is not Standing.STARTED_FROM]
        newest = max((s.checkpoint for s in own if s.checkpoint is not None), default=None)
        if newest is not None and max(numbers, default=CheckpointId(0)) <= newest:
            self._problems.append(f"{folder} does not say that checkpoint id {newest} is used")

    def _judge(self, path: str) -> Leftover | None:
        """Which kind of leftover a file is; None if the file is no leftover."""
        folder = self._folder_of(path)
        temporary = path in self._temporary
        if path in self._referred or (folder in self._unknown and not temporary):
            return None
        number = self._number_of(path)
        if number is not None:
            kind = LeftoverKind.ORPHAN if self._job_ended or number <= self._newest else LeftoverKind.UNFINISHED
            whole = None if folder in self._used_folders or folder in self._unknown else folder
            return Leftover(path=path, kind=kind, temporary=temporary, folder=whole)
        if temporary or path.startswith(f"{layout.shared_folder(self._folder)}/"):
            if self._unknown and not temporary:
                return None
            kind = LeftoverKind.ORPHAN if self._is_over else LeftoverKind.UNFINISHED
            return Leftover(path=path, kind=kind, temporary=temporary)
        name = path.removeprefix(f"{self._folder}/").partition("/")[0]
        return None if layout.is_job_folder_with(name) else Leftover(path=path, kind=LeftoverKind.FOREIGN)


# --- savepoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _SavepointFiles:
    """The files in the folder of a savepoint, as paths of the store."""

    paths: Sequence[str]
    temporary: Sequence[str] = ()
    start: str = ""
    """How the path of each file begins."""


def _savepoint_report(inside: _Inside, location: str, files: _SavepointFiles, *, job_ended: bool) -> Report:
    """The report about the savepoint that `inside` reads; `location` names the savepoint in the report."""
    unfinished = LeftoverKind.ORPHAN if job_ended else LeftoverKind.UNFINISHED
    halves = tuple(Leftover(path=path, kind=unfinished, temporary=True) for path in files.temporary)
    if f"{files.start}{layout.METADATA_NAME}" not in files.paths:
        # If the savepoint's folder is the root of the store, the folder itself stays.
        whole = location if files.start else None
        every = (*(Leftover(path=path, kind=unfinished) for path in files.paths), *halves)
        return Report(leftovers=tuple(replace(leftover, folder=whole) for leftover in every))
    try:
        content = inside.read(layout.METADATA_NAME, limit=LARGEST_METADATA_BYTES)
        metadata = decode_metadata(f"{location}/{layout.METADATA_NAME}", content)
        # The paths are checked before any file that the metadata names is read.
        with_full_paths(metadata, location)
    except StorageError as error:
        broken = SnapshotReport(location=location, standing=Standing.SAVEPOINT, problems=(error.message,))
        return Report(snapshots=(broken,), leftovers=halves)
    problems = list(_FileCheck(inside).problems_of(metadata))
    if not metadata.kind.is_savepoint:
        problems.append(
            f"the snapshot is a {metadata.kind.value.lower()}, which cannot be moved out of its checkpoint directory"
        )
    referred = {f"{files.start}{path}" for path in (layout.METADATA_NAME, *(file.path for file in metadata.files))}
    orphans = tuple(Leftover(path=path, kind=LeftoverKind.ORPHAN) for path in files.paths if path not in referred)
    report = _describe(metadata, location, Standing.SAVEPOINT, problems)
    return Report(snapshots=(report,), leftovers=(*orphans, *halves))


class _Inside:
    """The files below a folder of a store, to be read only."""

    def __init__(self, store: Store, start: str) -> None:
        self._store = store
        self._start = start

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        return self._store.read(f"{self._start}{path}", limit=limit)

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        return self._store.read_pieces(f"{self._start}{path}", limit=limit)


# --- files -----------------------------------------------------------------------------------------------------------


class _FileCheck:
    """Reads the files that snapshots refer to, each file once."""

    def __init__(self, store: Readable) -> None:
        self._reader = SnapshotReader(store)
        self._known: dict[tuple[str, int, int], str | None] = {}

    def problems_of(self, metadata: CheckpointMetadata) -> Iterator[str]:
        """The problems of the files that a snapshot refers to."""
        for file in _pieces(metadata):
            problem = self._problem_with(file)
            if problem is not None:
                yield problem

    def _problem_with(self, file: StateFile) -> str | None:
        if file.path is None or file.inline is not None:
            return self._try(file)
        key = (file.path, file.size, file.checksum)
        if key not in self._known:
            self._known[key] = self._try(file)
        return self._known[key]

    def _try(self, file: StateFile) -> str | None:
        try:
            for _ in self._reader.pieces(file):
                pass
        except (StorageError, UsageError) as error:
            return error.message
        return None


def _pieces(metadata: CheckpointMetadata) -> list[StateFile]:
    """Every piece of state of a snapshot, each file once."""
    found: dict[object, StateFile] = {}
    for operator in metadata.operators.values():
        for subtask, state in operator.subtasks.items():
            for number, file in enumerate(state.files):
                found.setdefault(file.path or (operator.operator, subtask, number), file)
    for task in metadata.channels:
        for number, channel in enumerate((*task.inputs, *task.outputs)):
            found.setdefault(channel.file.path or (task.task, number), channel.file)
    return list(found.values())


def _describe(
    metadata: CheckpointMetadata, location: str, standing: Standing, problems: Iterable[str]
) -> SnapshotReport:
    return SnapshotReport(
        location=location,
        standing=standing,
        job=metadata.job,
        checkpoint=metadata.checkpoint,
        kind=metadata.kind,
        triggered=metadata.timestamp,
        size_bytes=metadata.size,
        files=len(metadata.files),
        operators=len(metadata.operators),
        parallelism=max((o.parallelism for o in metadata.operators.values()), default=0),
        problems=tuple(dict.fromkeys(problems)),
    )


def _wrong_place(metadata: CheckpointMetadata, folder: JobFolder, checkpoint: CheckpointId) -> Iterator[str]:
    if metadata.checkpoint != checkpoint:
        yield f"its metadata belongs to checkpoint {metadata.checkpoint}"
    if layout.job_folder(metadata.job) != folder:
        yield f"its metadata belongs to job {metadata.job}"
    if metadata.kind.is_savepoint:
        yield "its metadata belongs to a savepoint"


# --- folders ---------------------------------------------------------------------------------------------------------


def _job_folders(paths: Iterable[str]) -> list[JobFolder]:
    parts = [path.split("/") for path in paths]
    return [
        JobFolder(name) for name in dict.fromkeys(p[0] for p in parts if len(p) > 2 and layout.is_job_folder_with(p[1]))
    ]


def _savepoint_folders(paths: Iterable[str]) -> list[str]:
    """The folders of savepoints, at any depth below the directory."""
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        for depth, name in enumerate(parts[:-1], start=1):
            if layout.is_savepoint_folder(name):
                found["/".join(parts[:depth])] = None
                break
    return list(found)


def _below(folder: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.startswith(f"{folder}/")]


def _together(reports: Sequence[Report]) -> Report:
    return Report(
        snapshots=tuple(snapshot for report in reports for snapshot in report.snapshots),
        leftovers=tuple(leftover for report in reports for leftover in report.leftovers),
        problems=tuple(problem for report in reports for problem in report.problems),
    )
