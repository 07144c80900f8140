"""A source ends when everything that reads its records is full, and not before."""

from __future__ import annotations

from penstock.core.full_steps import EndSource, FullSteps, FullTold, PlannedStep, StepsBegan, StepsStopped
from penstock.core.ids import Epoch, Instant, OperatorId, TaskId, VertexId

FIRST, SECOND = Epoch(1), Epoch(2)


def task(name: str, subtask: int = 0) -> TaskId:
    return TaskId(VertexId(name), subtask)


def step(name: str, *feeds: str, source: bool = False, subtasks: int = 1) -> PlannedStep:
    return PlannedStep(
        operator=OperatorId(name),
        tasks=tuple(task(name, number) for number in range(subtasks)),
        feeds=tuple(map(OperatorId, feeds)),
        is_source=source,
    )


def job(*steps: PlannedStep) -> FullSteps:
    made = FullSteps()
    assert made.handle(StepsBegan(epoch=FIRST, steps=steps), Instant(0)) == []
    return made


def full(machine: FullSteps, name: str, epoch: Epoch = FIRST) -> list[EndSource]:
    return machine.handle(FullTold(task=task(name), epoch=epoch, operator=OperatorId(name)), Instant(0))


def ended(name: str, *epochs: Epoch) -> EndSource:
    tasks = tuple((task(name, number), epoch) for number, epoch in enumerate(epochs))
    return EndSource(operator=OperatorId(name), tasks=tasks)


def test_all_tasks_of_a_source_that_feeds_only_a_full_step_end():
    machine = job(
        step("read", "map", source=True, subtasks=2), step("map", "limit"), step("limit", "write"), step("write")
    )
    assert full(machine, "limit") == [ended("read", FIRST, FIRST)]


def test_a_source_that_another_branch_reads_goes_on():
    machine = job(step("read", "limit", "write-2", source=True), step("limit", "write"), step("write"), step("write-2"))
    assert full(machine, "limit") == []


def test_a_step_that_nothing_reads_needs_its_records():
    machine = job(step("read", "limit", "calls", source=True), step("limit", "write"), step("write"), step("calls"))
    assert full(machine, "limit") == []


def test_a_source_ends_with_the_last_of_the_steps_that_it_feeds():
    machine = job(
        step("read", "limit", "limit-2", source=True),
        step("limit", "union"),
        step("limit-2", "union"),
        step("union", "write"),
        step("write"),
    )
    assert full(machine, "limit-2") == []
    assert full(machine, "limit") == [ended("read", FIRST)]


def test_a_later_limit_that_is_full_ends_the_source_of_an_earlier_limit():
    machine = job(step("read", "limit", source=True), step("limit", "limit-2"), step("limit-2", "write"), step("write"))
    assert full(machine, "limit-2") == [ended("read", FIRST)]
    assert full(machine, "limit") == []


def test_of_several_sources_those_end_whose_records_nothing_needs():
    machine = job(
        step("read", "union", source=True),
        step("read-2", "union", "write-2", source=True),
        step("union", "limit"),
        step("limit", "write"),
        step("write"),
        step("write-2"),
    )
    assert full(machine, "limit") == [ended("read", FIRST)]


def test_a_step_that_says_twice_that_it_is_full_ends_its_source_once():
    machine = job(step("read", "limit", source=True), step("limit", "write"), step("write"))
    assert full(machine, "limit") == [ended("read", FIRST)]
    assert full(machine, "limit") == []


def test_an_earlier_attempt_of_a_step_is_not_heard():
    machine = job(step("read", "limit", source=True), step("limit", "write"), step("write"))
    machine.handle(StepsStopped(), Instant(0))
    assert full(machine, "limit") == []
    again = StepsBegan(epoch=SECOND, steps=(step("read", "limit", source=True), step("limit", "write"), step("write")))
    machine.handle(again, Instant(0))
    assert full(machine, "limit") == []
    assert full(machine, "limit", SECOND) == [ended("read", SECOND)]


def test_a_region_that_is_restarted_ends_again_and_the_others_do_not():
    steps = (
        step("read", "limit", source=True),
        step("limit", "write"),
        step("write"),
        step("read-2", "limit-2", source=True),
        step("limit-2", "write-2"),
        step("write-2"),
    )
    machine = job(*steps)
    assert full(machine, "limit") == [ended("read", FIRST)]
    assert full(machine, "limit-2") == [ended("read-2", FIRST)]
    restarted = (task("read"), task("limit"), task("write"))
    machine.handle(StepsBegan(epoch=SECOND, steps=steps, restarted=restarted), Instant(0))
    assert full(machine, "limit") == []
    assert full(machine, "limit", SECOND) == [ended("read", SECOND)]
    assert full(machine, "limit-2") == []


def test_a_diamond_of_many_layers_is_walked_through_once():
    """Two steps in each of 60 layers, each of which reads both steps of the layer before: 2^60 paths."""
    layers = [[f"{side}-{layer}" for side in ("left", "right")] for layer in range(60)]
    steps = [step("read", *layers[0], source=True)]
    for here, there in zip(layers, [*layers[1:], ["limit"]], strict=True):
        steps += [step(name, *there) for name in here]
    machine = job(*steps, step("limit", "write"), step("write"))
    assert full(machine, "limit") == [ended("read", FIRST)]
    assert machine.next_deadline() is None
    machine.validate()
