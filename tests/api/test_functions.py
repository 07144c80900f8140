"""Functions with state, as a program is written: what is declared, what is refused, and how steps are named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.backends import as_state_settings
from penstock.api.program import Program
from penstock.api.state import StateKind
from penstock.api.state_declarations import declared_states
from penstock.core.errors import SettingsError, UsageError
from penstock.settings import JobSettings, StateSettings
from penstock.testing import collect, scripted


class Keyed(ps.KeyedFunction):
    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row, context):
        return None


class Broadcast(ps.KeyedBroadcastFunction):
    def on_row(self, row, context):
        return None

    def on_broadcast(self, row, context):
        return None


class Plain(ps.ProcessFunction):
    def on_row(self, row, context):
        return None


@pytest.fixture
def program():
    return Program(JobSettings(parallelism=2))


@pytest.fixture
def clicks(program):
    source = scripted([{"user": "a", "ts": 1}], schema="user string, ts timestamp")
    return program.read(source, name="clicks").watermark("ts")


# --- declarations ----------------------------------------------------------------------------------------------------


def test_types_are_given_in_any_form():
    class Typed:
        a = ps.value_state("a", "array<string>")
        b = ps.value_state("b", int)
        c = ps.value_state("c", pa.date32())
        d = ps.value_state("d", object)
        e = ps.map_state("e", key=str, value=object)

    specs = {name: state.spec for name, state in declared_states(Typed).items()}
    assert [specs[n].type for n in "abcde"] == [pa.list_(pa.string()), pa.int64(), pa.date32(), None, None]
    assert specs["e"].map_key == pa.string()
    assert str(specs["e"]) == "map<string, object>"
    assert str(specs["b"]) == "value<int64>"


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: ps.value_state("", "int"), "'' cannot be the name of a state"),
        (lambda: ps.value_state(7, "int"), "7 cannot be the name of a state"),
        (lambda: ps.value_state("n", "integr"), "the type of state 'n' is 'integr'"),
        (lambda: ps.value_state("n", list), "the type of state 'n' is <class 'list'>, which is no type"),
        (lambda: ps.value_state("n", "int", ttl="1h"), "the ttl of state 'n' is '1h'"),
        (lambda: ps.map_state("n", key="array<int>", value="int"), "the key type of state 'n' is list"),
        (lambda: ps.reducing_state("n", "int", 5), "reduce of state 'n' is 5, which is no function"),
        (lambda: ps.aggregating_state("n", "int", create=int, add=None), "add of state 'n' is None"),
        (lambda: ps.aggregating_state("n", "int", create=int, add=max, result=1), "result of state 'n' is 1"),
        (lambda: ps.ttl("0s"), "a ttl of 0 would keep nothing"),
        (lambda: ps.ttl("1h", on="read"), "on is 'read'"),
        (lambda: ps.ttl(5), "has no unit"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_made(declare, text):
    with pytest.raises(UsageError, match=text):
        declare()


def test_one_name_for_two_states_is_refused_when_the_class_is_made():
    with pytest.raises(UsageError, match="Twice declares state 'n' twice: as value<int64> and as list<int64>"):

        class Twice(ps.KeyedFunction):
            a = ps.value_state("n", "bigint")
            b = ps.list_state("n", "bigint")


def test_one_name_for_two_states_is_refused_when_the_object_is_used(clicks):
    class Late(Keyed):
        def __init__(self):
            self.other = ps.value_state("seen", "string")

    with pytest.raises(UsageError, match="declares state 'seen' twice: as value<int64> and as value<string>"):
        clicks.key_by("user").process(Late(), schema="n int")


def test_a_ttl_is_part_of_what_is_declared():
    with pytest.raises(UsageError, match="as value<int64> and as value<int64> with a ttl of 1000 ms"):

        class Twice(ps.KeyedFunction):
            a = ps.value_state("n", "bigint")
            b = ps.value_state("n", "bigint", ttl=ps.ttl("1s"))


def test_a_subclass_inherits_declarations_and_may_replace_them():
    class Sub(Keyed):
        seen = ps.list_state("all", "bigint")
        more = ps.value_state("more", "int")

    assert [state.spec.name for state in declared_states(Sub()).values()] == ["all", "more"]

    class Without(Keyed):
        seen = None

    assert declared_states(Without) == {}


def test_the_same_state_may_have_two_names_in_a_class():
    class Two(Keyed):
        again = ps.value_state("seen", "bigint")

    assert len(declared_states(Two)) == 2


def test_declarations_on_an_instance_count():
    class Made(Keyed):
        def __init__(self):
            self.own = ps.broadcast_state("own", key=int, value=str)

    kinds = {name: state.spec.kind for name, state in declared_states(Made()).items()}
    assert kinds == {"seen": StateKind.VALUE, "own": StateKind.BROADCAST}


# --- steps -----------------------------------------------------------------------------------------------------------


def test_a_keyed_function_is_exchanged_by_key_and_named_by_it(program, clicks):
    clicks.key_by("user").process(Keyed(), schema="n int").write(collect())
    assert program.explain().splitlines()[-3:] == [
        " └─ hash by user ─► [2] process → collect  (2 subtasks)",
        "         process  clicks.process-user",
        "         collect  clicks.to-collect",
    ]


def test_a_connected_function_has_two_inputs(program, clicks):
    rules = program.read(scripted([{"r": 1}], schema="r int"), name="rules")
    clicks.key_by("user").connect(rules).process(Broadcast(), schema="n int", name="joined").write(collect())
    text = program.explain()
    assert "hash by user ─► [3] joined" in text
    assert "broadcast ─► [3] joined" in text
    edges = {edge.partitioning.value: edge.input_number for edge in program.plan().edges}
    assert edges == {"hash": 0, "broadcast": 1}


def test_a_function_of_a_stream_is_chained_and_has_state_only_if_it_declares_some(program, clicks):
    class Stateful(Plain):
        parts = ps.split_list_state("parts", "int")

    branch = clicks.process(Plain(), schema="n int").process(Stateful(), schema="n int")
    branch.write(collect())
    ids = [operator.operator for vertex in program.plan().vertices for operator in vertex.operators]
    assert ids == ["clicks", "clicks.watermark", "clicks.process-2", "clicks.process", "clicks.to-collect"]


def test_event_time_goes_on_in_a_column_of_the_same_name_and_type(clicks):
    kept = clicks.key_by("user").process(Keyed(), schema="user string, ts timestamp")
    kept.key_by("user").window(ps.tumbling("1s"))
    lost = clicks.key_by("user").process(Keyed(), schema="user string", name="another")
    with pytest.raises(UsageError, match="the event time in 'ts' was lost in 'another'"):
        lost.key_by("user").window(ps.tumbling("1s"))
    clicks.key_by("user").reduce(lambda a, b: b).key_by("user").window(ps.tumbling("1s"))


def test_repartition_needs_columns_that_can_be_keys(clicks):
    with pytest.raises(UsageError, match="there is no column 'usr'"):
        clicks.repartition("usr")
    with pytest.raises(UsageError, match="a key needs at least one column"):
        clicks.repartition()


@pytest.mark.parametrize("again", [lambda s: s.rebalance(), lambda s: s.broadcast()])
def test_how_records_are_dealt_out_is_what_was_said_last(program, clicks, again):
    again(clicks.repartition("user")).write(collect())
    assert [edge.keys for edge in program.plan().edges] == [()]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda s: s.key_by("user").process(Keyed, schema="n int"), "takes an object, not the class Keyed"),
        (lambda s: s.key_by("user").process(Plain(), schema="n int"), "takes a function of class KeyedFunction"),
        (lambda s: s.key_by("user").process(Broadcast(), schema="n int"), "Broadcast needs a broadcast stream"),
        (lambda s: s.key_by("user").process(ps.KeyedFunction(), schema="n int"), "KeyedFunction has no on_row"),
        (lambda s: s.key_by("user").connect(7), "connect takes a stream"),
        (lambda s: s.key_by("user").connect(s).process(Keyed(), schema="n int"), "of class KeyedBroadcastFunction"),
        (lambda s: s.process(lambda row: row, schema="n int"), "takes a function of class ProcessFunction"),
        (lambda s: s.process(ps.ProcessFunction(), schema="n int"), "ProcessFunction has no on_row or on_batch"),
        (lambda s: s.process(_Both(), schema="n int"), "_Both has on_row and on_batch"),
        (lambda s: s.process(_WithKeyedState(), schema="n int"), "declares value state 'seen', which needs a key"),
        (lambda s: s.key_by("user").reduce(5), "reduce takes a function"),
        (lambda s: s.key_by("user").process(Keyed(), schema="nonsense"), "schema is 'nonsense'"),
    ],
)
def test_what_cannot_be_is_refused_when_the_step_is_made(clicks, use, text):
    with pytest.raises(UsageError, match=text):
        use(clicks)


class _Both(Plain):
    def on_batch(self, batch, context):
        return None


class _WithKeyedState(Plain):
    seen = ps.value_state("seen", "bigint")


def test_streams_of_two_programs_cannot_be_connected(clicks):
    other = Program().read(scripted([{"r": 1}], schema="r int"))
    with pytest.raises(UsageError, match="a stream of the same environment"):
        clicks.key_by("user").connect(other)


# --- where it is kept ------------------------------------------------------------------------------------------------


def test_the_back_end_is_chosen_by_name_or_by_settings():
    assert as_state_settings(None) == as_state_settings("memory") == as_state_settings(ps.memory()) == StateSettings()
    for wrong in ("disk", StateSettings(backend="disk")):
        with pytest.raises(SettingsError, match="state backend is 'disk'"):
            as_state_settings(wrong)
    with pytest.raises(UsageError, match="state_backend is 7"):
        as_state_settings(7)


def test_the_back_end_on_disk_has_settings_of_its_own():
    assert as_state_settings("rocksdb") == ps.rocksdb() == StateSettings(backend="rocksdb")
    made = ps.rocksdb(local_directory=Path("/somewhere"), write_buffer_bytes=2**20, block_cache_bytes=2**21)
    assert made == StateSettings(
        backend="rocksdb", local_directory="/somewhere", write_buffer_bytes=2**20, block_cache_bytes=2**21
    )
    with pytest.raises(SettingsError, match=r"write buffer is 5 bytes(.|\n)*block cache is 6 bytes"):
        ps.rocksdb(write_buffer_bytes=5, block_cache_bytes=6)


def test_timers_that_a_program_makes_itself_say_where_those_of_the_key_are():
    timers = ps.Timers()
    for call in (timers.event_times, timers.processing_times, lambda: timers.at_event_time(1)):
        with pytest.raises(ps.UsageError, match="belong to no key"):
            call()
