"""Running a cell of a notebook again replaces what it had made; in a script everything stays."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from penstock.api.program import Program
from penstock.core.errors import UsageError


class Notebook:
    """Stands for IPython: which cell runs, and how often there was one."""

    custom_exceptions = (UsageError,)

    def __init__(self, *, tells_ids: bool) -> None:
        self.execution_count = 0
        self.user_ns: dict[str, list[str]] = {"In": [""]}
        self._tells_ids = tells_ids
        self._cell = ""

    def get_parent(self):
        return {"metadata": {"cellId": self._cell} if self._tells_ids else {}}

    def run(self, cell, text=None):
        """Run a cell: its code is called by the test."""
        self.execution_count += 1
        self._cell = cell
        self.user_ns["In"].append(text or cell)


@pytest.fixture(params=[True, False], ids=["with ids", "without ids"])
def notebook(request, monkeypatch):
    made = Notebook(tells_ids=request.param)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))
    return made


def build(program, make_source, make_sink, *, where="price > 1"):
    program.read(make_source()).where(where, name="dear").write(make_sink(), name="out")


def steps(program):
    return [operator.name for vertex in program.plan().vertices for operator in vertex.operators]


def test_the_cell_that_builds_the_pipeline_can_be_run_again_and_again(notebook, make_source, make_sink):
    notebook.run("make")
    program = Program()
    for _ in range(3):
        notebook.run("build")
        build(program, make_source, make_sink)
    assert steps(program) == ["bids", "dear", "out"]


def test_a_cell_whose_text_was_changed_replaces_what_it_made(notebook, make_source, make_sink):
    program = Program()
    notebook.run("build", "where price > 1")
    build(program, make_source, make_sink)
    notebook.run("build", "where price > 2")
    build(program, make_source, make_sink, where="price > 2")
    assert steps(program) == ["bids", "dear", "out"]


def test_what_other_cells_made_stays_and_what_was_built_on_the_cell_goes(notebook, make_source, make_sink):
    program = Program()
    notebook.run("read")
    stream = program.read(make_source())
    notebook.run("write")
    stream.write(make_sink())
    notebook.run("read")
    again = program.read(make_source())
    with pytest.raises(UsageError, match="nothing is done with the results of 'bids'"):
        program.plan()
    with pytest.raises(UsageError, match="its notebook cell was run again") as caught:
        stream.where("price > 1")
    assert "run the cells behind that cell again" in caught.value.hint
    notebook.run("write")
    again.write(make_sink())
    assert len(steps(program)) == 2


def test_two_steps_of_one_name_in_one_cell_are_refused_in_a_notebook_too(notebook, bids):
    notebook.run("build")
    bids.where("price > 1", name="dear")
    with pytest.raises(UsageError, match="two steps are named 'dear'"):
        bids.where("price > 2", name="dear")


def test_in_a_script_the_same_name_is_refused(bids):
    bids.where("price > 1", name="dear")
    with pytest.raises(UsageError, match="two steps are named 'dear'"):
        bids.where("price > 2", name="dear")


def test_a_program_says_what_it_is(program, bids, make_sink):
    assert repr(Program()) == "<Program, parallelism 1, no steps yet>"
    assert repr(program) == f"<Program, parallelism {program.settings.parallelism}, 1 step: bids>"
    bids.where("price > 1").write(make_sink())
    assert repr(program) == f"<Program, parallelism {program.settings.parallelism}, 3 steps: bids, where, picky>"
    for _ in range(9):
        bids.where("price > 1")
    assert repr(program).endswith(", where, …>")
