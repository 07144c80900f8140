"""What a seed may add to a job and its world: other steps, other windows, slow loops, a hook, another way to end.

Each function draws what it adds, and returns the same world with the addition. Whatever is added last is drawn last, so
that the draws before stay the same: a seed that has found a bug still finds the bug.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.core.alignment.times import Alignment
from penstock.settings import BacklogInterval, Mode, NoRestart, Retention
from penstock.sim.again import draw_again, draw_early_end
from penstock.sim.asking import draw_asks
from penstock.sim.changes import draw_updates
from penstock.sim.connected import draw_wait
from penstock.sim.drawn_jobs import draw_other_rows, pause_between_bursts_ms, with_possible_timeout
from penstock.sim.faults import (
    Fault,
    breaks_links,
    draw_busy_loops,
    draw_driver_faults,
    draw_rescale_faults,
    draw_slot_crashes,
    draw_task_errors,
)
from penstock.sim.jobs import (
    APART,
    ASIDE,
    PAIRS,
    PLACED,
    TICK_US,
    Choice,
    Shape,
    Sought,
    Workload,
)
from penstock.sim.joining import draw_joining
from penstock.sim.kept_runs import draw_runs
from penstock.sim.marking_hook import draw_hook
from penstock.sim.on_driver import draw_on_driver
from penstock.sim.programs import draw_rerun
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import sinks_of
from penstock.sim.user import UserRequest, Wish, draw_rescales, draw_savepoint_and_cancel
from penstock.sim.window_kinds import BY_CLOCK, TIMED, WindowKind

REPLAYING_SHARE = 0.2
"""The share of worlds whose sinks replay what they kept."""


def varied(random: Random, drawn: Scenario, duration_ms: int) -> Scenario:
    """The same world, perhaps with rescales, several regions, parts on the driver, a savepoint that outlives the job, a
    hook, busy loops, a long silence, or another end of the second job; and then with other steps."""
    rescales = draw_rescales(random, duration_ms=duration_ms)
    drawn = _with_rescales(random, drawn, rescales) if rescales else drawn
    drawn = _taken_apart(random, drawn) if random.random() < 0.25 else drawn
    drawn = replace(drawn, seen_share=random.choice((0.0, 0.0, 0.5, 1.0)))
    drawn = _with_parts_on_driver(random, drawn, duration_ms) if random.random() < 0.2 else drawn
    drawn = _left_with_a_savepoint(random, drawn, duration_ms) if random.random() < 0.06 else drawn
    drawn = _with_a_hook(random, drawn) if random.random() < 0.1 else drawn
    drawn = _with_busy_loops(random, drawn) if random.random() < 0.1 else drawn
    # A hook makes the whole job one region.
    apart = drawn.workload.shape in APART and drawn.hook is None and not any(map(breaks_links, drawn.faults))
    drawn = _outlasting_silence(random, drawn) if apart and random.random() < 0.2 else drawn
    on_driver = drawn.workload.on_driver
    if on_driver is not None and on_driver.sources and random.random() < 0.3:
        spoiled = replace(on_driver, spoils_after=random.choice((1, 2, 4)))
        drawn = replace(drawn, workload=replace(drawn.workload, on_driver=spoiled))
    if drawn.again is not None and random.random() < 0.15:
        drawn = replace(drawn, again=draw_early_end(random, drawn.again))
    drawn = _with_other_steps(random, drawn)
    if random.random() < REPLAYING_SHARE:
        drawn = replace(drawn, workload=replace(drawn.workload, replays=True))
    return drawn


def _with_other_steps(random: Random, drawn: Scenario) -> Scenario:
    """The same world, perhaps with small slices, a backlog, shared files, a program that is run again, windows of
    another kind, rows that wait, steps with subtasks of their own, side outputs, async calls, aligned sources, or a
    join."""
    drawn = _in_slices(random, drawn) if random.random() < 0.4 else drawn
    drawn = _with_a_backlog(random, drawn) if random.random() < 0.15 else drawn
    drawn = _sharing_files(random, drawn) if random.random() < 0.2 else drawn
    drawn = _run_by_name(random, drawn) if drawn.again is not None and random.random() < 0.2 else drawn
    if drawn.workload.shape in (Shape.WINDOW, Shape.UNION_WINDOW):
        drawn = _with_other_windows(random, drawn)
    pairs = drawn.workload.shape in PAIRS and drawn.workload.on_driver is None
    drawn = _with_rows_that_wait(random, drawn) if pairs and random.random() < 0.3 else drawn
    shape = drawn.workload.shape
    single = shape.most_sources == 1 and len(sinks_of(shape)) == 1
    drawn = _placed(random, drawn) if single and random.random() < 0.25 else drawn
    shape, plain = drawn.workload.shape, drawn.workload.on_driver is None
    single = shape.most_sources == 1 and shape not in APART
    drawn = _with_side_outputs(random, drawn) if single and plain and random.random() < 0.15 else drawn
    shape = drawn.workload.shape
    single = shape.most_sources == 1 and len(sinks_of(shape)) == 1 and shape not in (*PLACED, *ASIDE)
    drawn = _with_async_calls(random, drawn) if single and random.random() < 0.2 else drawn
    takes = drawn.workload.shape in (Shape.WINDOW, Shape.UNION_WINDOW, Shape.ASKS_WINDOW, Shape.LATE)
    drawn = _with_lateness(random, drawn) if takes and random.random() < 0.4 else drawn
    can_wait = drawn.workload.shape.has_time and not drawn.workload.induces
    drawn = _aligned(random, drawn) if can_wait and random.random() < 0.25 else drawn
    takes = drawn.workload.shape in (Shape.WINDOW, Shape.UNION_WINDOW) and _is_exactly_once(drawn)
    if takes and random.random() < 0.3:
        drawn = replace(drawn, workload=replace(drawn.workload, updates=draw_updates(random)))
    if drawn.workload.shape is Shape.LATE and _is_exactly_once(drawn) and random.random() < 0.5:
        drawn = replace(drawn, workload=replace(drawn.workload, updates=draw_updates(random)))
    has_runs = drawn.workload.shape in (Shape.WINDOW, Shape.UNION_WINDOW, Shape.ASKS_WINDOW, Shape.LATE)
    drawn = replace(drawn, workload=replace(drawn.workload, runs=draw_runs(random))) if has_runs else drawn
    pairs = drawn.workload.shape in PAIRS and drawn.workload.on_driver is None
    drawn = _joined(random, drawn) if pairs and random.random() < 0.4 else drawn
    drawn = _aggregating(random, drawn)
    takes = drawn.workload.shape in (Shape.KEYED, Shape.RUNNING)
    drawn = _with_a_table(random, drawn) if takes and random.random() < 0.2 else drawn
    takes = drawn.workload.shape in (Shape.WINDOW, Shape.UNION_WINDOW)
    drawn = _with_untimed_windows(random, drawn) if takes and random.random() < 0.3 else drawn
    # Records of a key that several splits have come in no order, and then no record is the first.
    takes = drawn.workload.shape is Shape.RUNNING and not drawn.workload.shares_keys
    drawn = _choosing(random, drawn) if takes and random.random() < 0.5 else drawn
    takes = drawn.workload.shape is Shape.JOIN and _is_exactly_once(drawn)
    drawn = _meeting(random, drawn) if takes and random.random() < 0.25 else drawn
    takes = drawn.workload.shape in (Shape.KEYED, Shape.RUNNING) and drawn.workload.on_driver is None
    takes = takes and _is_exactly_once(drawn)
    drawn = _sorting(random, drawn) if takes and random.random() < 0.4 else drawn
    takes = drawn.workload.shape in (Shape.RUNNING, Shape.CHOOSES) and not drawn.workload.shares_keys
    drawn = _matching(random, drawn) if takes and random.random() < 0.4 else drawn
    if drawn.workload.shape in (Shape.JOIN, Shape.CHANGES):
        drawn = _with_workload(drawn, replace(drawn.workload, runs=draw_runs(random)))
    if drawn.workload.shape is Shape.TABLE and random.random() < 0.5:
        return _with_workload(drawn, replace(drawn.workload, refreshes=True))
    return _filling(random, drawn) if drawn.workload.shape is Shape.LIMIT else drawn


def _filling(random: Random, drawn: Scenario) -> Scenario:
    """The same world, perhaps with a source that only the full limit can end, or with a branch beside the limit, for
    which the source goes on."""
    draw = random.random()
    if draw < 0.4:
        return _with_workload(drawn, replace(drawn.workload, endless=True))
    return _with_workload(drawn, replace(drawn.workload, shape=Shape.LIMIT_BESIDE)) if draw < 0.7 else drawn


def _aggregating(random: Random, drawn: Scenario) -> Scenario:
    """The same world, perhaps with running aggregates, on either back end."""
    shape = drawn.workload.shape
    single = shape.most_sources == 1 and shape not in (*APART, *PLACED, *ASIDE, Shape.TWO_SINKS, Shape.ASKS)
    # Records that count more than once would raise a total beyond the number of records.
    if not single or shape.has_windows or not _is_exactly_once(drawn) or random.random() < 0.4:
        return drawn
    workload = replace(drawn.workload, shape=Shape.RUNNING, shares_files=random.random() < 0.5)
    return _with_workload(drawn, workload)


def _choosing(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a step that chooses records, in the place of a running aggregate."""
    workload = replace(drawn.workload, shape=Shape.CHOOSES, choice=random.choice(tuple(Choice)))
    return _with_workload(drawn, workload)


def _meeting(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a function over both sources, in the place of a join."""
    workload = replace(drawn.workload, shape=Shape.MEETS, shares_files=random.random() < 0.5)
    return _with_workload(drawn, workload)


def _sorting(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a sort by event time, in the place of an exchange or of a running aggregate."""
    return _with_workload(drawn, replace(drawn.workload, shape=Shape.SORTED, runs=draw_runs(random)))


def _matching(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a step that looks for matches. A drain lets all time be over, and no match goes on behind
    that: so users stop the job without drain."""
    drawn = replace(drawn, requests=_without_drain(drawn.requests))
    if drawn.again is not None:
        drawn = replace(drawn, again=replace(drawn.again, requests=_without_drain(drawn.again.requests)))
    workload = replace(drawn.workload, shape=Shape.MATCHES, sought=random.choice(tuple(Sought)))
    return _with_workload(drawn, workload)


def _without_drain(requests: tuple[UserRequest, ...]) -> tuple[UserRequest, ...]:
    return tuple(replace(each, wish=Wish.STOP) if each.wish is Wish.DRAIN else each for each in requests)


def _with_untimed_windows(random: Random, drawn: Scenario) -> Scenario:
    """The same world with windows that have nothing to do with event time. The records of a window of a number of
    records follow from their order: such windows are there only where each key has an order, and records count
    once."""
    workload = drawn.workload
    kinds = [WindowKind.GLOBAL, *BY_CLOCK]
    if _is_exactly_once(drawn) and not workload.shares_keys:
        kinds.append(WindowKind.COUNT)
    kind = random.choice(kinds)
    updates = workload.updates if kind is WindowKind.GLOBAL else None
    if updates is not None and not updates.is_early:
        updates = None
    keyed = workload.keyed or kind is WindowKind.COUNT
    return replace(drawn, workload=replace(workload, windows=kind, keyed=keyed, updates=updates, lateness_us=0))


def _with_lateness(random: Random, drawn: Scenario) -> Scenario:
    """The same world with windows that allow lateness: records that would be late without it count."""
    greatest_us = drawn.workload.greatest_delay_us
    workload = replace(drawn.workload, lateness_us=random.choice((TICK_US, greatest_us // 2, greatest_us)))
    return replace(drawn, workload=workload)


def _aligned(random: Random, drawn: Scenario) -> Scenario:
    """The same world with sources that may not read far ahead of each other."""
    drift_us, interval_ms = TICK_US * random.choice((0, 5, 20, 100)), random.choice((20, 200))
    align = Alignment(group="all", drift_us=drift_us, interval_ms=interval_ms)
    return replace(drawn, workload=replace(drawn.workload, align=align))


def _placed(random: Random, drawn: Scenario) -> Scenario:
    """The same world with steps that have a number of subtasks of their own, or that hand on the first records only."""
    workload = replace(drawn.workload, shape=random.choice(PLACED), shares_keys=False)
    if workload.shape is Shape.LIMIT:
        if drawn.settings.checkpoint.mode is Mode.AT_LEAST_ONCE or workload.on_driver is not None:
            # Records that are counted twice take the place of others.
            workload = replace(workload, shape=Shape.GLOBAL)
        else:
            # Only the records of a single split have an order, and so only these have first records.
            workload = replace(workload, splits=1)
    return _with_workload(drawn, workload)


def _with_other_windows(random: Random, drawn: Scenario) -> Scenario:
    """The same world with windows of any kind, by key or over all records. Where records count more than once there are
    no sessions: a record of a session that has fired would make another session, which nothing tells from a wrong
    session."""
    kinds = [kind for kind in TIMED if kind is not WindowKind.SESSION or _is_exactly_once(drawn)]
    workload = replace(drawn.workload, windows=random.choice(kinds), keyed=random.random() < 0.8)
    return replace(drawn, workload=workload)


def _is_exactly_once(drawn: Scenario) -> bool:
    return drawn.settings.checkpoint.mode is Mode.EXACTLY_ONCE


def _with_side_outputs(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a job that has side outputs. Where late records are read, records are out of order by more
    than a window."""
    workload = replace(drawn.workload, shape=random.choice(ASIDE))
    if workload.shape is Shape.LATE:
        window_us, disorder_us = TICK_US * random.choice((3, 7, 50)), TICK_US * random.choice((20, 60))
        kind = random.choice(TIMED)
        workload = replace(workload, window_us=window_us, disorder_us=disorder_us, windows=kind)
    return _with_workload(drawn, workload)


def _sharing_files(random: Random, drawn: Scenario) -> Scenario:
    """The same world with keyed state whose files checkpoints share. In half of these worlds no fault strikes, and
    several checkpoints are under way at once: when a checkpoint completes, the earlier checkpoints are aborted while
    slots may still be writing them."""
    workload, checkpoint = drawn.workload, drawn.settings.checkpoint
    if workload.shape.most_sources == 1 and len(sinks_of(workload.shape)) == 1:
        workload = replace(workload, shape=Shape.TIMERS)
    drawn = replace(drawn, workload=replace(workload, shares_files=True))
    if random.random() < 0.5 or checkpoint.unaligned or checkpoint.during_backlog is not None:
        return drawn
    crowded = replace(checkpoint, interval_ms=random.choice((10, 30)), min_pause_ms=0, max_concurrent=4)
    settings = replace(drawn.settings, checkpoint=with_possible_timeout(crowded, workload, drawn.work_us))
    return replace(drawn, faults=(), settings=settings)


def _with_rows_that_wait(random: Random, drawn: Scenario) -> Scenario:
    """The same world, in which the rows of the first source wait for the second source."""
    workload = drawn.workload
    wait = draw_wait(random, rule_rows=workload.other_rows[0])
    return replace(drawn, workload=replace(workload, shape=Shape.WAITS, wait=wait))


def _with_async_calls(random: Random, drawn: Scenario) -> Scenario:
    """The same world with an async function, before windows in half of these worlds."""
    shape = random.choice((Shape.ASKS, Shape.ASKS_WINDOW))
    workload = replace(drawn.workload, shape=shape, asks=draw_asks(random))
    return _with_workload(drawn, workload)


def _joined(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a join of the two sources, whose records have the same keys."""
    joining, keys = draw_joining(random, tick_us=TICK_US), random.choice((3, 20))
    workload = replace(drawn.workload, shape=Shape.JOIN, joining=joining, keys=keys, shares_keys=True)
    if _is_exactly_once(drawn) and random.random() < 0.3:
        # A record changes all rows of its key. So there are few records.
        rows, others = min(workload.rows, 20), tuple(min(rows, 20) for rows in workload.other_rows)
        kept_in = random.random() < 0.5
        workload = replace(workload, shape=Shape.CHANGES, rows=rows, other_rows=others, shares_files=kept_in)
    return _with_workload(drawn, workload)


def _with_a_table(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a join of the source with a table."""
    workload = replace(drawn.workload, shape=Shape.TABLE, joining=draw_joining(random, tick_us=TICK_US))
    checkpoint = with_possible_timeout(drawn.settings.checkpoint, workload, drawn.work_us)
    return replace(drawn, workload=workload, settings=replace(drawn.settings, checkpoint=checkpoint))


def _run_by_name(random: Random, drawn: Scenario) -> Scenario:
    """The same world, in which the job has a name; when the program is run again, the job of that name goes on."""
    # A job that begins at the beginning again must be able to read its splits once more, and the checkpoint ids that a
    # hook has been given mean one job.
    is_plain = drawn.hook is None and drawn.workload.on_driver is None
    retention = random.choice((*(Retention.KEEP,) * 5, Retention.DELETE)) if is_plain else Retention.KEEP
    checkpoint = replace(drawn.settings.checkpoint, retention=retention)
    rerun = draw_rerun(random, may_start_over=is_plain)
    # Most jobs that are not cancelled come to the end of their data, and the second run then has nothing to do.
    cancel_at_ms = random.randint(100, drawn.safety_ms) if random.random() < 0.5 else drawn.cancel_at_ms
    restart = NoRestart() if random.random() < 0.2 else drawn.settings.restart
    settings = replace(drawn.settings, checkpoint=checkpoint, restart=restart)
    return replace(drawn, rerun=rerun, settings=settings, cancel_at_ms=cancel_at_ms)


def _with_a_backlog(random: Random, drawn: Scenario) -> Scenario:
    """The same world, in which sources are behind at first; until they have caught up, checkpoints are rarer, or no
    checkpoints are taken."""
    workload, checkpoint = drawn.workload, drawn.settings.checkpoint
    longer_ms = None if checkpoint.interval_ms is None else random.choice((None, 2, 5))
    during = BacklogInterval(interval_ms=longer_ms and longer_ms * (checkpoint.interval_ms or 0))
    return replace(
        drawn,
        workload=replace(workload, behind_rows=random.choice((1, workload.rows // 2, workload.rows))),
        settings=replace(drawn.settings, checkpoint=replace(checkpoint, during_backlog=during)),
    )


def _with_busy_loops(random: Random, drawn: Scenario) -> Scenario:
    """The same world with steps that do not return for a while; in half of these worlds there are no other faults."""
    busy = draw_busy_loops(random, parallelism=drawn.settings.parallelism, safety_ms=drawn.safety_ms)
    faults = (*drawn.faults, *busy) if random.random() < 0.5 else busy
    return replace(drawn, faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)))


def _in_slices(random: Random, drawn: Scenario) -> Scenario:
    """The same world with slots that cut their work into small slices, so that barriers come in the middle of the work;
    and with timers in many of these worlds."""
    workload = drawn.workload
    if workload.shape.most_sources == 1 and len(sinks_of(workload.shape)) == 1 and random.random() < 0.7:
        workload = replace(workload, shape=Shape.TIMERS)
    return replace(drawn, workload=workload, slice_rows=random.choice((1, 1, 2, 5)))


def _with_a_hook(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a hook, and marks in the data."""
    hook = draw_hook(random)
    checkpoint = replace(drawn.settings.checkpoint, hook_timeout_ms=random.choice((500, 3_000)))
    return replace(
        drawn,
        hook=hook,
        workload=replace(drawn.workload, induces=hook.induces),
        settings=replace(drawn.settings, checkpoint=checkpoint),
    )


def _left_with_a_savepoint(random: Random, drawn: Scenario, duration_ms: int) -> Scenario:
    """The same world, in which the user takes a savepoint, cancels the job before or after its next checkpoint, and
    goes on from the savepoint: only the second job may commit what sinks prepared for the savepoint."""
    parallelism, safety_ms, lasting = drawn.settings.parallelism, drawn.safety_ms, drawn.lasting
    again = drawn.again or draw_again(random, parallelism=parallelism, safety_ms=safety_ms, lasting=lasting)
    interval_ms = random.choice((None, drawn.settings.checkpoint.interval_ms, 300))
    checkpoint = replace(drawn.settings.checkpoint, interval_ms=interval_ms)
    return replace(
        drawn,
        again=again,
        requests=draw_savepoint_and_cancel(random, duration_ms=duration_ms),
        settings=replace(drawn.settings, checkpoint=checkpoint),
    )


def _with_rescales(random: Random, drawn: Scenario, rescales: tuple[UserRequest, ...]) -> Scenario:
    faults = draw_rescale_faults(random, safety_ms=drawn.safety_ms, lasting=drawn.lasting)
    return replace(
        drawn,
        requests=tuple(sorted((*drawn.requests, *rescales), key=lambda request: request.at_ms)),
        faults=tuple(sorted((*drawn.faults, *faults), key=lambda fault: fault.at_ms)),
    )


def _taken_apart(random: Random, drawn: Scenario) -> Scenario:
    """The same world with a job of several regions, of which some fail now and then."""
    workload = replace(
        drawn.workload, shape=random.choice((Shape.PIPELINES, Shape.SLICES)), shares_keys=False, other_rows=()
    )
    workload = replace(workload, other_rows=draw_other_rows(random, workload))
    errors = draw_task_errors(random, parallelism=drawn.settings.parallelism, safety_ms=drawn.safety_ms)
    # In half of these worlds there are no other faults, so that most restarts are those of single regions.
    faults = (*drawn.faults, *errors) if random.random() < 0.5 else errors
    if random.random() < 0.4:
        workload, faults = _losing_slots(random, drawn, workload, faults)
    checkpoint = with_possible_timeout(drawn.settings.checkpoint, workload, drawn.work_us)
    settings = replace(drawn.settings, checkpoint=checkpoint)
    return replace(drawn, workload=workload, settings=settings, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))


def _losing_slots(
    random: Random, drawn: Scenario, workload: Workload, faults: tuple[Fault, ...]
) -> tuple[Workload, tuple[Fault, ...]]:
    """A job whose slots have tasks that nothing joins, and slots that die, with or without the other faults."""
    workload = replace(workload, shape=random.choice((Shape.SLICES, Shape.MIXED)), other_rows=())
    workload = replace(workload, other_rows=draw_other_rows(random, workload))
    crashes = draw_slot_crashes(random, parallelism=drawn.settings.parallelism, safety_ms=drawn.safety_ms)
    return workload, (*faults, *crashes) if random.random() < 0.5 else crashes


def _outlasting_silence(random: Random, drawn: Scenario) -> Scenario:
    """The same job, so slow that a slot that stays silent after another slot was replaced is missed before the job
    ends. In some of these worlds slots take as long to come up."""
    settings, workload = drawn.settings, drawn.workload
    silence_ms = settings.slot.heartbeat_timeout_ms * 3 // 2
    batches = -(-workload.rows // workload.batch_rows)
    pause_ms = pause_between_bursts_ms(settings.parallelism, workload.splits, batches, workload.burst, 2 * silence_ms)
    # A few dozen checkpoints are enough.
    checkpoint = replace(settings.checkpoint, interval_ms=max(settings.checkpoint.interval_ms or 0, silence_ms // 10))
    return replace(
        drawn,
        workload=replace(workload, pause_ms=pause_ms),
        settings=replace(settings, checkpoint=checkpoint),
        start_us=random.choice((drawn.start_us, (1_000, 2_000 * silence_ms))),
    )


def _with_parts_on_driver(random: Random, drawn: Scenario, duration_ms: int) -> Scenario:
    workload = draw_on_driver(random, drawn.workload, sinks=sinks_of(drawn.workload.shape), duration_ms=duration_ms)
    checkpoint = drawn.settings.checkpoint
    if not checkpoint.unaligned and random.random() < 0.5:
        # Events of the driver while a checkpoint is under way must be on the right side of the next barrier, too.
        shortest = 10 if duration_ms <= 600 else 50
        checkpoint = replace(checkpoint, interval_ms=shortest, min_pause_ms=0, max_concurrent=random.choice((2, 4)))
    checkpoint = with_possible_timeout(checkpoint, workload, drawn.work_us)
    drawn = replace(drawn, workload=workload, settings=replace(drawn.settings, checkpoint=checkpoint))
    if random.random() < 0.6:
        return drawn
    faults = (*drawn.faults, *draw_driver_faults(random, safety_ms=drawn.safety_ms))
    return replace(drawn, lasting=True, faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)))


def _with_workload(drawn: Scenario, workload: Workload) -> Scenario:
    checkpoint = with_possible_timeout(drawn.settings.checkpoint, workload, drawn.work_us)
    return replace(drawn, workload=workload, settings=replace(drawn.settings, checkpoint=checkpoint))
