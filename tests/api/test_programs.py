"""A program is refused while something in it leads nowhere; else its plan is what was written."""

from __future__ import annotations

import pytest

from penstock.api.aggregates import count, max  # noqa: A004
from penstock.api.functions import KeyedFunction, ProcessFunction
from penstock.api.program import Program
from penstock.api.state_declarations import map_state, split_list_state, value_state
from penstock.api.windows import tumbling
from penstock.core.errors import SettingsError, UsageError
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.settings import JobSettings


def test_settings_are_checked_when_the_program_is_made():
    with pytest.raises(SettingsError, match="parallelism is 0"):
        Program(JobSettings(parallelism=0))


def test_the_plan_has_the_parallelism_of_the_settings(make_source, make_sink):
    program = Program(JobSettings(parallelism=3, max_parallelism=12))
    program.read(make_source()).write(make_sink())
    plan = program.plan()
    assert (plan.parallelism, plan.max_parallelism) == (3, 12)
    assert program.settings.parallelism == 3


def test_a_program_without_steps_is_refused(program):
    with pytest.raises(UsageError, match="the program has no steps"):
        program.plan()


def test_a_stream_that_leads_nowhere_is_refused_and_named(program, bids, make_sink):
    bids.write(make_sink())
    program.plan()
    bids.where("price > 1")
    bids.select("price").name("prices")
    with pytest.raises(UsageError) as caught:
        program.plan()
    assert "nothing is done with the results of 'where' made at test_programs.py:" in caught.value.message
    assert ", 'prices' (select) made at test_programs.py:" in caught.value.message
    assert "end each stream with .write(sink)" in (caught.value.hint or "")


def test_a_source_alone_leads_nowhere(program, bids):
    with pytest.raises(UsageError, match="nothing is done with the results of 'bids'"):
        program.plan()


def test_a_failed_step_leaves_nothing_behind(program, bids, make_sink):
    with pytest.raises(UsageError):
        bids.where("price")
    with pytest.raises(UsageError):
        bids.map_batches(lambda batch: None)
    bids.write(make_sink())
    assert [vertex.name for vertex in program.plan().vertices] == ["bids → picky"]


@pytest.mark.parametrize("wrong", ["bids", None, list])
def test_only_a_source_can_be_read(program, wrong):
    with pytest.raises(UsageError, match="read takes a source, not "):
        program.read(wrong)


def test_a_source_must_not_name_a_column_twice(program, make_source):
    source = make_source()
    source._schema = source.schema.append(source.schema.field("price"))
    with pytest.raises(UsageError, match="the schema of source 'bids' has 2 columns named 'price'"):
        program.read(source)


def test_an_unfinished_program_can_be_explained(program, bids):
    bids.where("price > 1")
    assert "[1] bids → where" in program.explain()


def test_the_program_of_the_readme_is_explained(program, bids, make_sink):
    timed = bids.watermark("ts", delay="4s", idle_after="30s")
    hot = timed.where("price > 100").key_by("auction").window(tumbling("10s")).aggregate(n=count(), top=max("price"))
    hot.write(make_sink())
    timed.rebalance().select("auction", euro="price * 0.9").write(make_sink(), name="raw bids")
    assert program.explain() == (
        "parallelism 2 of at most 128\n"
        "\n"
        "[1] bids → watermark  (source, 2 subtasks)\n"
        " │   bids       bids\n"
        " │   watermark  bids.watermark\n"
        " ├─ forward ─► [2] where → combine  (2 subtasks)\n"
        " │   │   where    bids.where\n"
        " │   │   combine  bids.combine\n"
        " │   └─ hash by auction ─► [3] window → picky  (2 subtasks)\n"
        " │           window  bids.window-auction: tumbling 10 s\n"
        " │           picky   bids.to-picky\n"
        " └─ rebalance ─► [4] select → raw bids  (2 subtasks)\n"
        "         select    bids.select\n"
        "         raw bids  raw-bids-0fa41d9a"
    )


class Visits(KeyedFunction):
    seen = value_state("seen", "bigint")
    pages = map_state("pages", key="string", value="double")

    def on_row(self, row, context):
        return row


class Offsets(ProcessFunction):
    known = split_list_state("known", "string")

    def on_row(self, row, context):
        return row


def test_a_checkpoint_says_what_the_program_declares_about_every_state(program, bids, make_sink):
    processed = bids.watermark("ts").process(Offsets(), schema=bids.schema, name="offsets")
    visits = processed.key_by("auction").process(Visits(), schema=bids.schema, name="visits")
    visits.key_by("auction").window(tumbling("1s")).aggregate(n=count()).name("window").write(make_sink())
    labels = {o: label for v in checkpoint_graph(program.plan()).vertices for o, label in v.labels.items()}
    assert {name: str(state) for name, state in labels["visits"].states.items()} == {
        "seen": "value<int64>",
        "pages": "map<string, double>",
    }
    assert labels["visits"].keys == ("auction: int64",)
    assert str(labels["offsets"].states["known"]) == "split-list<string>"
    assert str(labels["window"].states["windows"]).startswith("window<1000000 us, offset 0 us, n=count(), columns ")
