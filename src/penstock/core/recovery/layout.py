"""The one place that knows where things lie in a checkpoint directory.

    <job>/chk-<n>/…                 state that only checkpoint n refers to
    <job>/chk-<n>/_metadata         what a restore of checkpoint n reads first
    <job>/shared/…                  state that several checkpoints may refer to
    <job>/taskowned/…               state that tasks themselves delete
    <job>/completed/<19 digits>     one pointer per retained checkpoint
    <job>/counter/<19 digits>       the lowest checkpoint id that was never given away
    <job>/drivers/<19 digits>       the lowest term that no driver of the job has had
    <job>/tenures/<19 digits>       what the driver of that term found when it took the job over
    <job>/outcome/<19 digits>       how the job ended with the driver of that term
    <job>/leases/<19 digits>        whether the driver of that term is alive
    <job>/inputs/<operator>/…       data handed over by the driver before the job starts
    <job>/promised/<19 digits>      results that the savepoint of that number names and no checkpoint has committed

All paths are relative to the root of a store, with `/`. Numbers in file names have 19 digits, so that the order of the
names is the order of the numbers.
"""

from __future__ import annotations

from typing import NewType

from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, JobId, OperatorId, TaskId, Term
from penstock.core.recovery import roots

JobFolder = NewType("JobFolder", str)
"""The folder of one job, as made by `job_folder`."""

_DIGITS = 19
_JOB_FOLDERS = (
    "shared",
    "taskowned",
    "completed",
    "counter",
    "inputs",
    "promised",
    "drivers",
    "tenures",
    "outcome",
    "leases",
)
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")


def component(text: str) -> str:
    """`text` as the name of a file or folder. Different texts give different names; none is hidden, `.` or `..`."""
    if not text:
        raise UsageError("an empty name cannot be part of a path", hint="give the job or step a name")
    encoded = "".join(
        c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "surrogatepass")) for c in text
    )
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def job_folder(job: JobId) -> JobFolder:
    """Everything of one job."""
    return JobFolder(component(job))


def checkpoint_folder(job: JobFolder, checkpoint: CheckpointId) -> str:
    """What belongs to one checkpoint alone and goes with it."""
    return f"{job}/chk-{checkpoint}"


def checkpoint_folder_of(job: JobFolder, path: str) -> str | None:
    """The folder of the one checkpoint that a file belongs to; None for a file of any other kind."""
    name, _, below = path.removeprefix(f"{job}/").partition("/")
    return f"{job}/{name}" if below and path.startswith(f"{job}/") and checkpoint_number(name) is not None else None


def checkpoint_number(name: str) -> CheckpointId | None:
    """The checkpoint whose folder has this name; None if it is the name of anything else."""
    number = name.removeprefix("chk-")
    return CheckpointId(int(number)) if number != name and number.isascii() and number.isdigit() else None


def metadata_file(job: JobFolder, checkpoint: CheckpointId) -> str:
    """The metadata of one checkpoint."""
    return f"{checkpoint_folder(job, checkpoint)}/{METADATA_NAME}"


def snapshot_prefix(task: TaskId) -> str:
    """How the names of a task's state files begin, in whatever folder they are."""
    return f"{component(task.vertex)}-{task.subtask}"


def channel_state_file(job: JobFolder, checkpoint: CheckpointId, slot: int) -> str:
    """The in-flight data that the tasks of one slot saved."""
    return f"{checkpoint_folder(job, checkpoint)}/channels-{slot}"


def savepoint_root(target: str, job: JobId, checkpoint: CheckpointId) -> str:
    """The folder of one savepoint below the folder that the user named. Paths inside a savepoint are relative to it, so
    that it can be moved."""
    return roots.below(target, f"savepoint-{component(job)}-{checkpoint}")


def is_savepoint_folder(name: str) -> bool:
    """Whether the name of a folder is one that `savepoint_root` makes."""
    start, _, number = name.rpartition("-")
    return start.startswith("savepoint-") and number.isascii() and number.isdigit()


METADATA_NAME = "_metadata"
RESULTS = "results"
"""What the results of all jobs that drivers have to hand on lie in."""


def shared_folder(job: JobFolder) -> str:
    """State that outlives the checkpoint that wrote it; the shared-state registry decides what may go."""
    return f"{job}/shared"


def task_owned_folder(job: JobFolder) -> str:
    """State that the coordinator never deletes."""
    return f"{job}/taskowned"


def completed_folder(job: JobFolder) -> str:
    """Pointers to the completed checkpoints, and nothing else."""
    return f"{job}/completed"


def completed_file(job: JobFolder, checkpoint: CheckpointId) -> str:
    """The pointer to one completed checkpoint."""
    return f"{completed_folder(job)}/{checkpoint:0{_DIGITS}d}"


def counter_folder(job: JobFolder) -> str:
    """The id counter, and nothing else."""
    return f"{job}/counter"


def drivers_folder(job: JobFolder) -> str:
    """The counter of drivers, and nothing else."""
    return f"{job}/drivers"


def counted_file(folder: str, number: int) -> str:
    """Says by its name that every number below `number` may have been used. `folder` holds one counter."""
    return f"{folder}/{number:0{_DIGITS}d}"


def outcome_folder(job: JobFolder) -> str:
    """How the job ended, and nothing else."""
    return f"{job}/outcome"


def outcome_file(job: JobFolder, term: Term) -> str:
    """How the job ended, as the driver of that term saw it."""
    return f"{outcome_folder(job)}/{term:0{_DIGITS}d}"


def termless_outcome_file(job: JobFolder) -> str:
    """How the job ended, as programs recorded it that kept no tenures."""
    return f"{outcome_folder(job)}/_outcome"


def tenures_folder(job: JobFolder) -> str:
    """What drivers found when they took the job over, and nothing else."""
    return f"{job}/tenures"


def tenure_file(job: JobFolder, term: Term) -> str:
    """What the driver of that term found."""
    return f"{tenures_folder(job)}/{term:0{_DIGITS}d}"


def leases_folder(job: JobFolder) -> str:
    """Signs of life of drivers, and nothing else."""
    return f"{job}/leases"


def lease_file(job: JobFolder, term: Term) -> str:
    """The sign of life of the driver of that term."""
    return f"{leases_folder(job)}/{term:0{_DIGITS}d}"


def outlives_the_job(job: JobFolder, folder: str) -> bool:
    """Whether what is in a folder of a job tells later drivers that it has ended, and which terms are taken."""
    return folder in (outcome_folder(job), drivers_folder(job), tenures_folder(job), leases_folder(job))


def number_of(folder: str, path: str) -> CheckpointId | None:
    """The number that names the file at `path` directly below `folder`; None for a file of any other kind."""
    parent, _, name = path.rpartition("/")
    if parent != folder or len(name) != _DIGITS or not (name.isascii() and name.isdigit()):
        return None
    return CheckpointId(int(name))


def inputs_folder(job: JobFolder, operator: OperatorId) -> str:
    """Data that the driver laid down for a source of the job."""
    return f"{job}/inputs/{component(operator)}"


def promised_folder(job: JobFolder) -> str:
    """Which results savepoints name that no checkpoint has committed yet, and nothing else."""
    return f"{job}/promised"


def results_folder(job: JobFolder, operator: OperatorId) -> str:
    """Results that the driver is to hand on. It is no part of the job's folder: what was promised outlives the job."""
    return f"{RESULTS}/{job}/{component(operator)}"


def is_job_folder_with(name: str) -> bool:
    """Whether a folder that has something of this name in it is the folder of a job."""
    return name in _JOB_FOLDERS or checkpoint_number(name) is not None
