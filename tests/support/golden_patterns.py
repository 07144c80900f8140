"""What the golden snapshots of patterns contain, and how they are read.

Two subtasks have taken in records of some keys, of which a part waits for event time. There are partial matches of all
parts of a pattern, some of which share records, and matches that wait for partial matches that began before them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from penstock.api.pattern_steps import TIMED_OUT, PatternStep
from penstock.api.patterns import any_of, pattern
from penstock.api.steps import LateRecords
from penstock.api.streams.matching import pattern_step
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import StateSettings

GROUPS = 16
PARALLELISM = 2
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64()), ("ts", pa.timestamp("us"))])
KINDS = ("all", "skips")
PATTERNS = {
    "all": pattern("a", where="v < 4")
    .times(1, 3)
    .allow_combinations()
    .not_next("x", where="v = 9")
    .followed_by(any_of(b="v > sum(a.v)", c="x IS NULL"))
    .not_followed_by("d", where="v = a.v", within="9s")
    .within("20s"),
    "skips": pattern("a", where="v > 2")
    .followed_by("b", where="v > a.v")
    .optional()
    .greedy()
    .followed_by_any("c", where="v < a.v")
    .within("15s")
    .skip_to_last("a"),
}


def step(kind: str) -> PatternStep:
    """The step of a kind."""
    return pattern_step(PATTERNS[kind], ("k",), LateRecords(time_column="ts", schema=SCHEMA))


def row(number: int) -> dict[str, Any]:
    """A record."""
    return {
        "k": None if number % 5 == 0 else f"key {number % 5}",
        "v": number * 7 % 10,
        "x": None if number % 6 == 0 else number / 4,
        "ts": number // 2 * 1_000_000,
    }


class _Files:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: Any) -> StateFile:
        data = bytes(memoryview(data))
        self.data[name := str(len(self.data))] = data
        return StateFile(path=name, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))

    def put_shared(self, data: Any, key: str) -> StateFile:
        return self.put(data)

    def get(self, file: StateFile) -> bytes:
        return self.data[str(file.path)]

    def pieces(self, file: StateFile) -> Any:
        yield self.get(file)


class _Kept:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Nothing reads watermarks here."""


class _Subtask:
    """One subtask of a step."""

    def __init__(
        self, kind: str, subtask: int, parallelism: int, restored: Any, files: _Files, state: StateSettings
    ) -> None:
        self.output, self.given_up = _Kept(), _Kept()
        self.context = OperatorContext(
            job=JobId("job"),
            epoch=Epoch(1),
            task=TaskId(VertexId("vertex"), subtask),
            operator="step",
            name="step",
            parallelism=parallelism,
            max_parallelism=GROUPS,
            key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
            now=lambda: Instant(1_000),
            background=None,  # type: ignore[arg-type]  # nothing is done in the background
            restored=tuple(restored or ()),
            fresh=restored is None,
            reader=files,
            fail=lambda error: None,
            state=state,
        )
        self.operator: Any = build_operator(step(kind))
        self.operator.load(self.context)
        self.operator.sides = {TIMED_OUT: self.given_up}
        self.operator.open(self.context, self.output)

    def take(self, first: int, last: int) -> None:
        """Process the records of the subtask's key groups."""
        batch = pa.RecordBatch.from_pylist([row(number) for number in range(first, last)], SCHEMA)
        groups = key_groups(batch, ("k",), GROUPS)
        own = self.context.key_groups
        _all_of(self.operator.process(batch.filter(pa.array((groups >= own[0]) & (groups <= own[1])))))

    def watermark(self, time_us: int) -> None:
        """Event time has come to a time."""
        _all_of(self.operator.watermark(time_us))

    def snapshot(self, files: _Files) -> OperatorState:
        """The state, written to files."""
        state: OperatorState = self.operator.snapshot(CheckpointId(1), CheckpointOptions(canonical=True))(files)
        return state

    def shown(self) -> list[str]:
        """What has come out, as texts."""
        found = [("match", row) for row in self.output.rows] + [("timed out", row) for row in self.given_up.rows]
        return [f"{what} {_short(row)}" for what, row in found]


def _short(row: dict[str, Any]) -> str:
    """The key, the seconds of the records of each name, and the second at which the result was certain."""
    taken = [part if isinstance(part, list) else [part] for part in list(row.values())[1:-1]]
    seconds = ["+".join(f"{each['ts']:%-M:%S}" for each in part if each) for part in taken]
    return f"{row['k']} {' '.join(seconds)} at {row['match_time']:%-M:%S}"


def _all_of(work: Any) -> None:
    while work is not None and work.go_on():
        pass


def _begun(subtask: _Subtask) -> None:
    subtask.take(0, 120)
    subtask.watermark(20_000_000)
    subtask.take(120, 130)
    subtask.watermark(40_000_000)


def files() -> dict[str, bytes]:
    """The files, by their paths."""
    found: dict[str, bytes] = {}
    for kind in KINDS:
        written = _Files()
        for number in range(PARALLELISM):
            subtask = _Subtask(kind, number, PARALLELISM, None, written, StateSettings())
            _begun(subtask)
            state = subtask.snapshot(written)
            found.update({f"{kind}/{number}-{i}": written.get(file) for i, file in enumerate(state.keyed)})
            found[f"{kind}/{number}-lists.json"] = msgspec.json.encode(state.union_lists)
        found[f"{kind}/to-come.json"] = json.dumps(expected(kind), indent=1).encode()
    return found


def expected(kind: str) -> list[str]:
    """What comes out after the restore, as texts, of a step that was never restored."""
    subtask = _Subtask(kind, 0, 1, None, _Files(), StateSettings())
    _begun(subtask)
    subtask.output.rows.clear()
    subtask.given_up.rows.clear()
    subtask.take(70, 150)
    subtask.watermark(MAX_WATERMARK)
    return sorted(subtask.shown())


def restored(kind: str, folder: Path, parallelism: int, state: StateSettings) -> list[str]:
    """What comes out after a restore of the files of a folder, as texts."""
    read = _Files()
    states = []
    for number in range(PARALLELISM):
        paths = (path for path in folder.glob(f"{number}-*") if path.suffix != ".json")
        names = sorted(paths, key=lambda path: int(path.name.partition("-")[2]))
        handles = tuple(read.put(path.read_bytes()) for path in names)
        own = range_of(number, parallelism=PARALLELISM, groups=GROUPS)
        lists = msgspec.json.decode((folder / f"{number}-lists.json").read_bytes(), type=dict[str, tuple[bytes, ...]])
        states.append(OperatorState(operator="step", keyed=handles, key_groups=own, union_lists=lists))
    shown: list[str] = []
    for number in range(parallelism):
        subtask = _Subtask(kind, number, parallelism, states, read, state)
        subtask.take(70, 150)
        subtask.watermark(MAX_WATERMARK)
        shown += subtask.shown()
        subtask.operator.close()
    return sorted(shown)
