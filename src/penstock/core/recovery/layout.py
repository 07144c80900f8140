"""The paths of all files in a checkpoint directory. No other module builds such paths.

    <job>/chk-<n>/…                 state that only checkpoint n refers to
    <job>/chk-<n>/_metadata         what a restore of checkpoint n reads first
    <job>/shared/…                  state that several checkpoints may refer to
    <job>/taskowned/…               state that the tasks delete, and not the coordinator
    <job>/completed/<19 digits>     one pointer per retained checkpoint
    <job>/counter/<19 digits>       the lowest checkpoint id that no checkpoint has had
    <job>/drivers/<19 digits>       the lowest term that no driver of the job has had
    <job>/tenures/<19 digits>       what the driver of that term found when it took the job over
    <job>/outcome/<19 digits>       how the job ended with the driver of that term
    <job>/leases/<19 digits>        whether the driver of that term is alive
    <job>/inputs/<operator>/…       data handed over by the driver before the job starts
    <job>/promised/<19 digits>      results in the savepoint of that number that no checkpoint has committed
    names/name-<key>/<19 digits>    which job has a name; the highest number counts

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
    """`text` as the name of a file or folder. Different texts give different names. No name begins with a dot."""
    if not text:
        raise UsageError("an empty name cannot be part of a path", hint="give the job or step a name")
    encoded = "".join(
        c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "surrogatepass")) for c in text
    )
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def job_folder(job: JobId) -> JobFolder:
    """The folder with all files of one job."""
    return JobFolder(component(job))


def checkpoint_folder(job: JobFolder, checkpoint: CheckpointId) -> str:
    """The folder of the files that belong to one checkpoint alone and are deleted with the checkpoint."""
    return f"{job}/chk-{checkpoint}"


def checkpoint_folder_of(job: JobFolder, path: str) -> str | None:
    """The folder of the checkpoint that a file belongs to; None for a file that lies in no checkpoint's folder."""
    name, _, below = path.removeprefix(f"{job}/").partition("/")
    return f"{job}/{name}" if below and path.startswith(f"{job}/") and checkpoint_number(name) is not None else None


def is_in_checkpoint_folder(path: str, checkpoint: CheckpointId) -> bool:
    """Whether a file lies in a folder for that checkpoint id, of any job. No file of a savepoint lies in such a
    folder."""
    return f"/chk-{checkpoint}/" in path


def checkpoint_number(name: str) -> CheckpointId | None:
    """The checkpoint whose folder has this name; None if the name is not that of a checkpoint's folder."""
    number = name.removeprefix("chk-")
    return CheckpointId(int(number)) if number != name and number.isascii() and number.isdigit() else None


def metadata_file(job: JobFolder, checkpoint: CheckpointId) -> str:
    """The metadata file of one checkpoint."""
    return f"{checkpoint_folder(job, checkpoint)}/{METADATA_NAME}"


def snapshot_prefix(task: TaskId) -> str:
    """The beginning of the names of a task's state files, in every folder."""
    return f"{component(task.vertex)}-{task.subtask}"


def channel_state_file(job: JobFolder, checkpoint: CheckpointId, slot: int) -> str:
    """The file with the in-flight data that the tasks of one slot saved."""
    return f"{checkpoint_folder(job, checkpoint)}/channels-{slot}"


def savepoint_root(target: str, job: JobId, checkpoint: CheckpointId, *, choice: int = 1) -> str:
    """The folder of one savepoint below the folder that the user named. Paths inside a savepoint are relative to the
    savepoint's folder, so that the savepoint can be moved. If the folder is taken already, another `choice` gives
    another folder."""
    name = f"savepoint-{component(job)}-{checkpoint}"
    return roots.below(target, name if choice == 1 else f"{name}-{choice}")


def is_savepoint_folder(name: str) -> bool:
    """Whether `savepoint_root` makes folders with such a name."""
    start, _, number = name.rpartition("-")
    return start.startswith("savepoint-") and number.isascii() and number.isdigit()


METADATA_NAME = "_metadata"
INPUTS = "inputs"
"""The folder, in the folder of a job, of the data that the driver wrote for sources."""
RESULTS = "results"
"""The folder of the results of all jobs that drivers are to hand on."""
NAMES = "names"
"""The folder of the records of names."""
SAVEPOINTS = "savepoints"
"""The folder of the savepoints for which the user named no other folder."""


def is_of_no_job(name: str) -> bool:
    """Whether a folder of this name in the checkpoint directory belongs to no single job, so that no job may have the
    name for its id: the job would delete the folder with its own files."""
    return name in (RESULTS, NAMES, SAVEPOINTS) or is_savepoint_folder(name)


def shared_folder(job: JobFolder) -> str:
    """The folder of state that may outlive the checkpoint that wrote it. The shared-state registry decides when a file
    is deleted."""
    return f"{job}/shared"


def completed_folder(job: JobFolder) -> str:
    """The folder of the pointers to the completed checkpoints. Nothing else lies in the folder."""
    return f"{job}/completed"


def completed_file(job: JobFolder, checkpoint: CheckpointId) -> str:
    """The pointer to one completed checkpoint."""
    return f"{completed_folder(job)}/{checkpoint:0{_DIGITS}d}"


def counter_folder(job: JobFolder) -> str:
    """The folder of the counter of checkpoint ids. Nothing else lies in the folder."""
    return f"{job}/counter"


def drivers_folder(job: JobFolder) -> str:
    """The folder of the counter of terms. Nothing else lies in the folder."""
    return f"{job}/drivers"


def counted_file(folder: str, number: int) -> str:
    """The file whose name says that every number below `number` may have been used. `folder` holds one counter."""
    return f"{folder}/{number:0{_DIGITS}d}"


def outcome_folder(job: JobFolder) -> str:
    """The folder of the outcomes of the job. Nothing else lies in the folder."""
    return f"{job}/outcome"


def outcome_file(job: JobFolder, term: Term) -> str:
    """The file of the outcome of the job, as the driver of `term` recorded the outcome."""
    return f"{outcome_folder(job)}/{term:0{_DIGITS}d}"


def termless_outcome_file(job: JobFolder) -> str:
    """The file of the outcome of the job, as older versions of this package recorded the outcome: they had no
    tenures."""
    return f"{outcome_folder(job)}/_outcome"


def tenures_folder(job: JobFolder) -> str:
    """The folder of the tenures of the job. Nothing else lies in the folder."""
    return f"{job}/tenures"


def tenure_file(job: JobFolder, term: Term) -> str:
    """The file of the tenure of `term`: what the driver found when it took the job over."""
    return f"{tenures_folder(job)}/{term:0{_DIGITS}d}"


def leases_folder(job: JobFolder) -> str:
    """The folder of the leases of drivers. Nothing else lies in the folder."""
    return f"{job}/leases"


def lease_file(job: JobFolder, term: Term) -> str:
    """The file of the lease of the driver of `term`."""
    return f"{leases_folder(job)}/{term:0{_DIGITS}d}"


def outlives_the_job(job: JobFolder, folder: str) -> bool:
    """Whether a folder of a job is kept when the job has ended. The files in such a folder tell later drivers that the
    job has ended, and which terms and checkpoint ids are taken. A job that begins once more, or is run again, uses no
    term and no checkpoint id a second time."""
    folders = (outcome_folder(job), counter_folder(job), drivers_folder(job), tenures_folder(job), leases_folder(job))
    return folder in folders


def number_of(folder: str, path: str) -> CheckpointId | None:
    """The number that is the name of the file at `path`; None if the file does not lie directly below `folder`, or has
    another name."""
    parent, _, name = path.rpartition("/")
    if parent != folder or len(name) != _DIGITS or not (name.isascii() and name.isdigit()):
        return None
    return CheckpointId(int(name))


def inputs_folder(job: JobFolder, operator: OperatorId) -> str:
    """The folder of the data that the driver wrote for a source of the job."""
    return f"{job}/{INPUTS}/{component(operator)}"


def name_folder(key: str) -> str:
    """The folder that records which jobs have had a name. Nothing else lies in the folder. `key` is the name, as text
    that may be long and have any character; different names have different keys. The beginning `names/name-` keeps the
    folder apart from the folders of jobs."""
    return f"{NAMES}/name-{component(key)}"


def promised_folder(job: JobFolder) -> str:
    """The folder of the records of results that savepoints name and that no checkpoint has committed yet. Nothing else
    lies in the folder."""
    return f"{job}/promised"


def results_folder(job: JobFolder, operator: OperatorId) -> str:
    """The folder of an operator's results that the driver is to hand on. The folder lies outside the job's folder,
    because results that a snapshot names outlive the job."""
    return f"{results_of_job(job)}/{component(operator)}"


def results_of_job(job: JobFolder) -> str:
    """The folder of all results of a job that the driver is to hand on."""
    return f"{RESULTS}/{job}"


def is_job_folder_with(name: str) -> bool:
    """Whether a folder that contains a file or folder of this name is the folder of a job."""
    return name in _JOB_FOLDERS or checkpoint_number(name) is not None
