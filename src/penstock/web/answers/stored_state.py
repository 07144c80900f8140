"""Answers that are read from the files of the newest checkpoint. They block, and are given beside the server's loop.

Nothing is unpickled: a pickled value is shown by its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import Any

import msgspec

from penstock.core.errors import StreamError, UsageError
from penstock.core.recovery import roots
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.one_key import groups_of_key, rows_of_key, wanted_key
from penstock.savepoints.tables import ALL_GROUPS
from penstock.sql.python_values import shown_rows
from penstock.web.answers.asking import Asked, Document, Refused
from penstock.web.answers.own import newest

MOST_ROWS = 100
LARGEST_STATE_BYTES = 512 * 1_048_576
"""A state that is larger is not read as a whole."""
LONGEST_VALUE = 2_000

Answer = Callable[[Asked], Document]


def _refusing(answer: Answer) -> Answer:
    """What the files say is wrong is the answer."""

    @wraps(answer)
    def refusing(asked: Asked) -> Document:
        try:
            return answer(asked)
        except UsageError as error:
            raise Refused(404, str(error)) from error
        except (StreamError, OSError) as error:
            # The checkpoint may have been deleted meanwhile, because a newer checkpoint is complete.
            raise Refused(409, f"the newest checkpoint could not be read; ask again: {error}") from error

    return refusing


def _snapshot(asked: Asked) -> SnapshotData:
    job = asked.job
    directory, path = job["settings"].get("penstock-checkpoint-directory"), newest(job)["path"]
    if directory is None:
        raise Refused(409, "the job has no checkpoint directory, so its state cannot be looked at")
    folder, _ = roots.split(path)
    is_full = path.startswith("/") or roots.scheme_of(path) is not None
    try:
        return SnapshotData(folder if is_full else roots.below(directory, folder))
    except UsageError as error:
        # Nothing is there: the folder of a checkpoint is deleted when a newer checkpoint is complete.
        raise Refused(409, f"the newest checkpoint is gone; ask again: {error}") from error


def _operator(asked: Asked) -> str:
    """The operator that the path names."""
    wanted = asked.path["operatorid"]
    for vertex in asked.job["vertices"]:
        for operator in vertex["operators"]:
            if wanted in (operator["id"], operator["key"]):
                return str(operator["key"])
    raise Refused(404, f"the job has no operator {wanted[:64]}")


@_refusing
def states(asked: Asked) -> Document:
    """The states of an operator in the newest checkpoint."""
    operator, found = _operator(asked), _snapshot(asked)
    return {
        "checkpoint": found.metadata.checkpoint,
        "operator": operator,
        "states": [{**asdict(info), "id": f"{info.kind}:{info.name}"} for info in found.states(operator)],
    }


@_refusing
def rows(asked: Asked) -> Document:
    """A state in the newest checkpoint: how many rows each key group has; or, with `key`, the rows of one key. The key
    is a value, or a JSON object with a value for each key column."""
    operator, name, found = _operator(asked), asked.path["state"], _snapshot(asked)
    info = found.state(operator, name)
    told: Document = {"checkpoint": found.metadata.checkpoint, "operator": operator, **asdict(info)}
    if "key" in asked.query:
        return {**told, "found": _rows_of(found, operator, name, _parts(asked.query["key"]))}
    if info.size_bytes > LARGEST_STATE_BYTES:
        raise Refused(409, f"the state has {info.size_bytes} bytes; at most {LARGEST_STATE_BYTES} are read for a count")
    return {**told, "key_groups": _groups(found, operator, name)}


def _parts(key: str) -> tuple[str, ...]:
    if not key.startswith("{"):
        return (key,)
    try:
        given = msgspec.json.decode(key, type=dict[str, str | int | float | bool])
    except msgspec.DecodeError as error:
        raise Refused(400, f"key is no JSON object of plain values: {error}") from None
    return tuple(f"{name}={value}" for name, value in given.items())


def _rows_of(found: SnapshotData, operator: str, name: str, key: tuple[str, ...]) -> list[Document]:
    wanted = wanted_key(found.key_schema(operator, name), key)
    groups = groups_of_key(wanted, found.snapshot_of(operator).max_parallelism)
    shown: list[Document] = []
    for table in found.tables(operator, name, groups):
        of_key = rows_of_key(table, wanted).slice(0, MOST_ROWS - len(shown))
        shown += [{column: _shown(value) for column, value in row.items()} for row in shown_rows(of_key)]
    return shown


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode().strip('"')
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _groups(found: SnapshotData, operator: str, name: str) -> list[list[int]]:
    """Each key group that has rows, with the number of its rows."""
    column = "key_group"
    counts: Counter[int] = Counter()
    for table in found.tables(operator, name, ALL_GROUPS):
        if column in table.schema.names:
            column_of_groups: Any = table.column(column)
            values = column_of_groups.value_counts()
            counts.update({each["values"]: each["counts"] for each in values.to_pylist()})
    return [[group, count] for group, count in sorted(counts.items())]
