"""How a user asks for checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, TypeVar

from penstock.core.durations import Duration, duration_ms_or_problem
from penstock.core.errors import SettingsError
from penstock.core.recovery import roots
from penstock.settings import BacklogInterval, CheckpointSettings, Mode, Retention

ChoiceT = TypeVar("ChoiceT", bound=Enum)

_DEFAULTS = CheckpointSettings()
_LEAST_KEY_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When checkpoints are taken, how, and where they are kept.

    All values are checked when the object is made; `SettingsError` lists everything that is wrong.

    >>> import penstock as ps
    >>> checkpointing = ps.Checkpointing(directory="s3://bucket/checkpoints", interval="10s", retain=3)
    >>> checkpointing.settings.interval_ms  # for ps.Environment(spark, checkpointing=checkpointing)
    10000
    """

    directory: str | os.PathLike[str]
    """A folder that the driver and all executors have mounted, or the URI of a folder that all of them can reach:
    `s3://bucket/folder`, `gs://`, `hdfs://`. A relative path starts at the driver's current folder."""
    interval: Duration | None = "1s"
    """The time between two periodic checkpoints. None: checkpoints only on request and at the end."""
    interval_during_backlog: Duration | Literal["same"] | None = "same"
    """The interval while a source is catching up (`SourceReader.catching_up`, `Found.catching_up`): rarer checkpoints
    leave the source more time to catch up. None: no periodic checkpoints while a source is catching up."""
    timeout: Duration = "10 min"
    """A checkpoint that is not complete after this long is aborted."""
    min_pause: Duration = "0s"
    """Least time between the completion of a checkpoint or a savepoint and the next periodic checkpoint."""
    max_concurrent: int = 1
    """How many checkpoints may be under way at once."""
    tolerable_failures: int | None = 0
    """How many checkpoints in a row may fail. If one more checkpoint fails, the region of the task that declined the
    checkpoint restarts. All tasks restart if the checkpoint expired, or if no single task is to blame. None: any
    number."""
    mode: Literal["exactly-once", "at-least-once"] = "exactly-once"
    """At least once never blocks a channel, and may count records twice after a failure."""
    unaligned: bool = False
    """Barriers overtake data, and the overtaken data is saved with the checkpoint: fast under back-pressure."""
    aligned_timeout: Duration | None = None
    """With `unaligned`: a checkpoint starts aligned, and turns unaligned when a barrier is older than this."""
    retain: int = 1
    """How many completed checkpoints are kept while the job runs."""
    keep: Literal["delete", "keep-on-failure", "keep"] = "keep"
    """What happens to the completed checkpoints when the job fails or is cancelled (also by Ctrl-C). `keep`: the
    checkpoints are kept, and the job goes on from the newest checkpoint when the program is run again.
    `keep-on-failure`: the checkpoints are kept only if the job failed. `delete`: the checkpoints are deleted."""
    hook_timeout: Duration = "30s"
    """A checkpoint hook that has not returned after this long fails the checkpoint that triggered the hook, or the
    attempt that restores the hook."""
    history: int = _DEFAULTS.history
    """How many ended checkpoints `job.checkpoints` remembers."""
    local_copies_bytes: int = _DEFAULTS.local_copies_bytes
    """A slot keeps copies of up to this many bytes of the state that the slot writes to checkpoints, on its own host.
    When another slot has failed, the slot restores its state from these copies. 0: no copies."""

    after_tasks_finish: bool = True
    """Whether a task ends as soon as its data has ended, and checkpoints go on without the task. If not, the task waits
    until the data of all tasks has ended, and all tasks end with one last checkpoint. A job that keeps its checkpoints,
    and has a source that may find more data when the program is run again, always ends with such a last checkpoint,
    whatever is set here: the next run needs the state of all tasks."""
    inline_threshold_bytes: int = _DEFAULTS.inline_threshold_bytes
    """State up to this size travels inside the metadata of a checkpoint instead of in a file of its own."""
    delete_attempts: int = _DEFAULTS.delete_attempts
    """How many times a deletion in the directory is tried before the deletion is given up, with a warning."""
    delete_retry: Duration = "1s"
    """Pause before a deletion that failed is tried again. The pause doubles with every failure, up to five minutes."""
    readable_by: Literal["owner", "group", "all"] = "owner"
    """Who may read the files of checkpoints and savepoints: only the user who wrote a file, also the group of the file,
    or every user. Where executors run as another user than the driver, the driver and the executors must be able to
    read each other's files."""
    seal: bytes | str | os.PathLike[str] | None = field(default=None, repr=False)
    """A key of at least 16 bytes, or the path of a file with the key. Every file in the directory gets a seal of this
    key, and a file without such a seal is refused before anything in the file is unpickled. For a directory that other
    users can write to. A key file that other users can read is refused."""

    def __post_init__(self) -> None:
        reading = _Reading()
        reading.location(self.directory)
        reading.one_of("readable_by", self.readable_by, ("owner", "group", "all"))
        reading.key(self.seal)
        settings = self._read(reading)
        # The relations between values mean something only when every value could be read.
        if not reading.problems:
            reading.problems += settings.problems()
        if reading.problems:
            raise SettingsError(reading.problems)

    @property
    def settings(self) -> CheckpointSettings:
        """These options in the form that a job carries."""
        return self._read(_Reading())

    @property
    def seal_key(self) -> bytes | None:
        """The key of the seals. A key file is read every time. None: nothing is sealed."""
        return _Reading().key(self.seal)

    @property
    def location(self) -> str:
        """The directory as an absolute path, or the URI that was given."""
        return _Reading().location(self.directory)

    def _read(self, reading: _Reading) -> CheckpointSettings:
        return CheckpointSettings(
            interval_ms=reading.optional_ms("interval", self.interval),
            during_backlog=reading.backlog("interval_during_backlog", self.interval_during_backlog),
            timeout_ms=reading.ms("timeout", self.timeout, default=_DEFAULTS.timeout_ms),
            min_pause_ms=reading.ms("min_pause", self.min_pause, default=_DEFAULTS.min_pause_ms),
            max_concurrent=reading.whole("max_concurrent", self.max_concurrent, least=1),
            tolerable_failures=(
                None
                if self.tolerable_failures is None
                else reading.whole("tolerable_failures", self.tolerable_failures, least=0)
            ),
            mode=reading.choice("mode", self.mode, default=Mode.EXACTLY_ONCE),
            unaligned=reading.flag("unaligned", self.unaligned),
            aligned_timeout_ms=reading.optional_ms("aligned_timeout", self.aligned_timeout),
            num_retained=reading.whole("retain", self.retain, least=1),
            retention=reading.choice("keep", self.keep, default=Retention.KEEP),
            hook_timeout_ms=reading.ms("hook_timeout", self.hook_timeout, default=_DEFAULTS.hook_timeout_ms),
            history=reading.whole("history", self.history, least=1),
            local_copies_bytes=reading.whole("local_copies_bytes", self.local_copies_bytes, least=0),
            after_tasks_finish=reading.flag("after_tasks_finish", self.after_tasks_finish),
            inline_threshold_bytes=reading.whole("inline_threshold_bytes", self.inline_threshold_bytes, least=0),
            delete_attempts=reading.whole("delete_attempts", self.delete_attempts, least=1),
            delete_retry_ms=reading.ms("delete_retry", self.delete_retry, default=_DEFAULTS.delete_retry_ms),
        )


class _Reading:
    """Reads the values that the user gave, and gathers all problems instead of stopping at the first problem."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def location(self, given: object) -> str:
        path = os.fspath(given) if isinstance(given, os.PathLike) else given
        if not isinstance(path, str) or not path.strip():
            self.problems.append(f"directory is {given!r}; give the path or the URI of a folder")
            return ""
        problem = roots.problem_with(path)
        if problem is not None:
            self.problems.append(f"directory: {problem}")
            return ""
        return path if roots.scheme_of(path) is not None else str(Path(path).expanduser().absolute())

    def ms(self, argument: str, given: Duration, *, default: int) -> int:
        found = duration_ms_or_problem(given, argument=argument, problems=self.problems)
        return default if found is None else found

    def optional_ms(self, argument: str, given: Duration | None) -> int | None:
        if given is None:
            return None
        return duration_ms_or_problem(given, argument=argument, problems=self.problems)

    def backlog(self, argument: str, given: Duration | None) -> BacklogInterval | None:
        return None if given == "same" else BacklogInterval(interval_ms=self.optional_ms(argument, given))

    def whole(self, argument: str, given: object, *, least: int) -> int:
        if isinstance(given, int) and not isinstance(given, bool) and given >= least:
            return given
        self.problems.append(f"{argument} is {given!r}; give a whole number from {least}")
        return least

    def one_of(self, argument: str, given: object, values: tuple[str, ...]) -> None:
        if given not in values:
            self.problems.append(f"{argument} is {given!r}; choose one of {', '.join(map(repr, values))}")

    def key(self, given: object) -> bytes | None:
        if given is None:
            return None
        found = given if isinstance(given, bytes) else self._key_in(given)
        if found is not None and len(found) < _LEAST_KEY_BYTES:
            self.problems.append(f"seal has {len(found)} bytes; give a key of at least {_LEAST_KEY_BYTES} bytes")
        return found

    def _key_in(self, given: object) -> bytes | None:
        if not isinstance(given, str | os.PathLike):
            self.problems.append(f"seal is a {type(given).__name__}; give a key as bytes, or the path of a key file")
            return None
        path = Path(given).expanduser()
        try:
            if path.stat().st_mode & 0o077:
                self.problems.append(f"seal: other users can read the key file {path}; give the file mode 0600")
            return path.read_bytes().strip()
        except OSError as error:
            self.problems.append(f"seal: the key file {path} cannot be read: {error.strerror}")
            return None

    def flag(self, argument: str, given: object) -> bool:
        if isinstance(given, bool):
            return given
        self.problems.append(f"{argument} is {given!r}; give True or False")
        return False

    def choice(self, argument: str, given: object, *, default: ChoiceT) -> ChoiceT:
        for member in type(default):
            if member.value == given:
                return member
        values = ", ".join(repr(member.value) for member in type(default))
        self.problems.append(f"{argument} is {given!r}; choose one of {values}")
        return default
