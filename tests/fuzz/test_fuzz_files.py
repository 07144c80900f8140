"""Files that were changed by accident or on purpose: refused with a name, or read as values of the right types.

Every file of the golden snapshots is mutated: cut, flipped, spliced with itself and with others, replaced by foreign
ones, its numbers tweaked. As it would happen to a file: the checksum then gives it away, always. And with a checksum
that was made to fit, so that the decoder itself is reached: it must refuse, or give what has the types it promises.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import golden_content as content
import msgspec
import pyarrow as pa
import pytest
import xxhash
from golden_content import CHECKPOINT, JOB
from state_rig import GROUPS, Step

from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.core.ids import Term
from penstock.core.messages import ChannelState, StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint
from penstock.core.recovery.places import with_full_paths
from penstock.core.recovery.tenure import Inheritance, JobOutcome
from penstock.runtime.task.inflight import ChannelReader
from penstock.runtime.task.operators.window_table import Header, decode
from penstock.savepoints.tables import StateFileContent
from penstock.state.backend import TimerKind
from penstock.state.format import TIMERS, CanonicalFile
from penstock.storage import tenure
from penstock.storage.completed import decode_pointer
from penstock.storage.metadata import decode_metadata, encode_metadata
from penstock.storage.snapshots import SnapshotReader
from penstock.wire.codec import BatchCodec

GOLDEN = Path(__file__).parents[1] / "golden" / "v2"
QUICK = os.environ.get("PENSTOCK_EXAMPLES") == "quick"
SHARE = 20 if QUICK else 1
"""In `make check` one input in so many is tried."""

FILES = {str(path.relative_to(GOLDEN)): path.read_bytes() for path in sorted(GOLDEN.rglob("*")) if path.is_file()}
OTHERS = [*FILES.values(), b"PAR1" * 50, b"\x00" * 300, b"{}", bytes(range(256)), b"\xff" * 64]
METADATA_PATH = f"{content.DIRECTORY}/{JOB}/chk-{CHECKPOINT}/_metadata"
POINTER_PATH = f"{content.DIRECTORY}/{layout.completed_file(layout.job_folder(JOB), CHECKPOINT)}"
OUTCOME_PATH = f"{content.DIRECTORY}/{layout.outcome_file(layout.job_folder(JOB), Term(0))}"
TENURE_PATH = f"{content.DIRECTORY}/{layout.tenure_file(layout.job_folder(JOB), Term(0))}"

REFUSED = (CorruptFile, StorageError, UsageError)
INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")


# --- mutations -------------------------------------------------------------------------------------------------------


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))] if random.random() < 0.7 else data[random.randrange(1, len(data)) :]


def flip(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def overwrite(random: Random, data: bytes) -> bytes:
    value, place = random.choice(INTERESTING), random.randrange(len(data))
    return data[:place] + value + data[place + len(value) :]


def splice(random: Random, data: bytes) -> bytes:
    other = data if random.random() < 0.5 else random.choice(OTHERS)
    start, place = random.randrange(len(other)), random.randrange(len(data))
    piece = other[start : start + random.randrange(1, 200)]
    return data[:place] + piece + data[place + (len(piece) if random.random() < 0.5 else 0) :]


def leave_out(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + data[place + random.randrange(1, 32) :]


def beginning(random: Random, data: bytes) -> bytes:
    """Headers are small and would hardly be hit."""
    changed = bytearray(data)
    place = random.randrange(min(len(data), 64))
    changed[place] = random.randrange(256)
    return bytes(changed)


def another(random: Random, data: bytes) -> bytes:
    return random.choice(OTHERS)


MUTATIONS = (cut, flip, flip, overwrite, splice, leave_out, beginning, another)


def mutants(data: bytes, count: int, seed: int, mutations=MUTATIONS):
    """So many changed versions of a file, none of which is the file itself."""
    random, made = Random(seed), 0
    while made < max(1, count // SHARE):
        mutant = random.choice(mutations)(random, data)
        if random.random() < 0.1 and mutant:
            mutant = random.choice(mutations)(random, mutant)
        if mutant != data:
            made += 1
            yield mutant


def read_all(inputs, read, check=lambda found: None) -> Counter:
    """Read each of them: refused, or with a value that `check` accepts."""
    outcomes: Counter = Counter()
    for data in inputs:
        try:
            found = read(data)
        except REFUSED:
            outcomes["refused"] += 1
        else:
            check(found)
            outcomes["read"] += 1
    return outcomes


# --- as it would happen to a file ------------------------------------------------------------------------------------


def sealed(data: bytes) -> bytes:
    """Metadata and outcomes, whose header fits the data."""
    return struct.pack(">4sHQQ", data[:4], 1, len(data) - 22, xxhash.xxh3_64_intdigest(data[22:])) + data[22:]


def pointed(data: bytes) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(struct.pack(">Q", CHECKPOINT) + data[30:])
    return struct.pack(">4sHQQQ", b"PCKP", 1, CHECKPOINT, len(data) - 30, checksum) + data[30:]


def read_outcome(data: bytes) -> JobOutcome:
    return tenure.outcome_format.decode("outcome", data)


def read_tenure(data: bytes) -> Inheritance:
    return tenure.inheritance_format.decode("tenure", data)


def read_pointer(data: bytes) -> CompletedCheckpoint:
    return tenure.decode_completed(CHECKPOINT, decode_pointer("pointer", CHECKPOINT, data))


def read_metadata(data: bytes) -> CheckpointMetadata:
    return decode_metadata("metadata", data)


@pytest.mark.parametrize(
    ("path", "read", "count"),
    [
        (METADATA_PATH, read_metadata, 10_000),
        ("savepoint/_metadata", read_metadata, 5_000),
        (POINTER_PATH, read_pointer, 10_000),
        (OUTCOME_PATH, read_outcome, 5_000),
        (TENURE_PATH, read_tenure, 5_000),
    ],
)
def test_a_record_that_was_changed_is_refused(path, read, count):
    outcomes = read_all(mutants(FILES[path], count, seed=1), read, lambda found: whole(read, path, found))
    assert outcomes["refused"] > 0.9 * outcomes.total()


def whole(read, path, found):
    """A mutant can be another file of the same kind, which is read as what it is; nothing else gets through."""
    assert found in [_or_none(read, data) for data in FILES.values()], path


def _or_none(read, data):
    try:
        return read(data)
    except REFUSED:
        return None


@pytest.mark.parametrize("name", ["every-0-0", "pairs-0-0", "windows-0-0", "channels-0"])
def test_state_that_was_changed_does_not_fit_its_handle(name):
    data = next(found for path, found in FILES.items() if path.endswith(name))
    file = StateFile(path=name, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))
    for mutant in mutants(data, 5_000, seed=2):
        with pytest.raises(CorruptFile, match=name):
            SnapshotReader(Only(mutant)).get(file)


class Only:
    """A store with one file."""

    def __init__(self, data):
        self._data = data

    def read(self, path, *, limit=None):
        return self._data


# --- with a checksum that fits ---------------------------------------------------------------------------------------


def small_metadata() -> bytes:
    """Without the state inside, which is fuzzed by itself: what is left is what metadata is made of."""
    found = decode_metadata("metadata", FILES[METADATA_PATH])
    operators = dict(found.operators)
    every = operators["every"]
    subtasks = {
        n: msgspec.structs.replace(s, keyed=tuple(msgspec.structs.replace(f, inline=b"x") for f in s.keyed))
        for n, s in every.subtasks.items()
    }
    operators["every"] = msgspec.structs.replace(every, subtasks=subtasks)
    return encode_metadata(msgspec.structs.replace(found, operators=operators))


def test_metadata_that_fits_its_checksum_is_read_with_the_right_types_or_refused():
    def check(found):
        assert type(found) is CheckpointMetadata
        # What was read can be written, and is the same: every field has a type that it may have.
        assert decode_metadata("metadata", encode_metadata(found)) == found
        with suppress(CorruptFile):
            with_full_paths(found, "/somewhere")
        assert isinstance(found.size, int)
        assert all(isinstance(file, StateFile) for file in found.files)

    inputs = (sealed(mutant) for mutant in mutants(small_metadata(), 25_000, seed=3) if len(mutant) >= 22)
    outcomes = read_all(inputs, read_metadata, check)
    assert outcomes["read"]
    assert outcomes["refused"] > outcomes.total() / 4


def test_pointers_outcomes_and_tenures_that_fit_their_checksums_are_read_with_the_right_types_or_refused():
    def same(kind):
        def check(found):
            assert type(found) is kind
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=kind) == found

        return check

    inputs = (pointed(mutant) for mutant in mutants(FILES[POINTER_PATH], 10_000, seed=4) if len(mutant) >= 30)
    assert read_all(inputs, read_pointer, same(CompletedCheckpoint))["refused"]
    inputs = (sealed(mutant) for mutant in mutants(FILES[OUTCOME_PATH], 5_000, seed=5) if len(mutant) >= 22)
    assert read_all(inputs, read_outcome, same(JobOutcome))["refused"]
    inputs = (sealed(mutant) for mutant in mutants(FILES[TENURE_PATH], 5_000, seed=6) if len(mutant) >= 22)
    assert read_all(inputs, read_tenure, same(Inheritance))["refused"]


def typed_state() -> bytes:
    """Keyed state without pickled objects: those are trusted, and unpickling changed ones proves nothing."""

    class Typed:
        big, text, tags = content.Every.big, content.Every.text, content.Every.tags
        moment, scores, events = content.Every.moment, content.Every.scores, content.Every.events

    step = Step("memory", Typed)
    for key in content.KEYS:
        handles = step.at(key)
        values = content.expected(key)
        for name in ("big", "text", "tags", "moment"):
            handles[name].set(values[name])
        handles["events"].extend(values["events"])
        handles["scores"].set("a", 1.5)
        step.timers(key).add(TimerKind.EVENT_TIME, 5)
    ((file,),) = step.save()
    data = step.store.get(file)
    step.close()
    return data


def read_state(data: bytes):
    """Everything that a restore does with a file."""
    file = CanonicalFile(data, what="the file")
    found = []
    for entry in file.header.tables:
        file.key_schema(entry)
        if entry.kind != TIMERS:
            spec = file.spec_of(entry)
            found.append((spec, list(file.rows(entry, spec, (0, GROUPS - 1), now=0))))
    return found, list(file.timers((0, GROUPS - 1)))


def right_state(found):
    states, timers = found
    for spec, rows in states:
        kind = spec.type
        for _, inner, entry in rows:
            value = entry[0] if spec.ttl is not None else entry
            if spec.ttl is not None:
                assert type(entry[1]) is int
            if kind is not None:
                # What is of the type goes into a column of it again.
                pa.array([value], kind)
            if spec.map_key is not None:
                pa.array([inner], spec.map_key)
    for _, group, kind, time_us in timers:
        assert (type(group), type(kind), type(time_us)) == (int, TimerKind, int)


def no_pickles(inputs):
    """A flag in the header can turn values into pickles: those are left out, as they are everywhere here."""
    return (data for data in inputs if b'_value":true' not in data and b'_key":true' not in data)


@pytest.mark.parametrize("start", ["anywhere", "in the header"])
def test_keyed_state_that_fits_its_checksum_is_read_with_the_right_types_or_refused(start):
    data = typed_state()
    if start == "anywhere":
        inputs = mutants(data, 8_000, seed=6)
    else:
        size = 10 + int.from_bytes(data[6:10], "big")
        inputs = (head + data[size:] for head in mutants(data[:size], 12_000, seed=7) if head)
    outcomes = read_all(no_pickles(inputs), read_state, right_state)
    assert outcomes["refused"]


def test_state_is_shown_as_a_table_or_refused():
    def read(data):
        file = StateFileContent(data, what="the file")
        return [rows for table in file.tables for rows in file.row_tables(table.name, table.kind)]

    def check(tables):
        for table in tables:
            table.validate(full=True)

    read_all(no_pickles(mutants(typed_state(), 2_000, seed=8)), read, check)
    read_all(mutants(FILES["savepoint/windows-0-0"], 2_000, seed=9), read, check)


def test_windows_that_fit_their_checksum_are_read_with_the_right_types_or_refused():
    def check(found):
        rows, header = found
        rows.validate(full=True)
        assert type(header) is Header
        assert all(name in rows.schema.names for name in header.layout.keys) or not rows.num_rows

    inputs = mutants(FILES["savepoint/windows-0-0"], 15_000, seed=10)
    outcomes = read_all(inputs, lambda data: decode(data, (3, 12)), check)
    assert outcomes["refused"]


def test_in_flight_data_that_fits_its_checksum_is_read_with_the_right_types_or_refused():
    """Also with places in the metadata that are not those of batches."""
    data, ranges = content.channel_file()
    random = Random(11)

    def read(mutant):
        file = StateFile(path=None, size=len(mutant), checksum=xxhash.xxh3_64_intdigest(mutant), inline=mutant)
        places = ranges if random.random() < 0.7 else [(random.randrange(-10, 600), random.randrange(-10, 600))]
        state = ChannelState(edge=0, upstream=0, downstream=0, file=file, ranges=tuple(places))
        reader = ChannelReader(None, SnapshotReader(Only(mutant)), {0: BatchCodec(content.IN_FLIGHT)})
        return reader.read((state,))

    def check(found):
        for batches in found.values():
            for batch in batches:
                assert batch.schema == content.IN_FLIGHT
                batch.validate(full=True)
                batch.to_pylist()

    outcomes = read_all(mutants(data, 10_000, seed=12), read, check)
    assert outcomes["refused"]
