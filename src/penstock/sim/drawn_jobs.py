"""What every seed decides first: the job and its input, and the settings of the job."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.settings import (
    CheckpointSettings,
    ExponentialDelay,
    FixedDelay,
    JobSettings,
    Mode,
    NetworkSettings,
    Restart,
    Retention,
    SlotSettings,
)
from penstock.sim.jobs import PAIRS, PIPELINES, TICK_US, Shape, Workload

ROW_BYTES = 32
"""The size of a record in a channel."""


STEADY_BATCHES = 40
"""How many batches a steady stream has at most, over all splits."""


VERTICES = {
    Shape.DIAMOND: 5,
    Shape.UNION: 3,
    Shape.UNION_WINDOW: 3,
    Shape.TWO_SINKS: 3,
    Shape.TWICE: 3,
    Shape.PIPELINES: 3,
    Shape.SLICES: 3,
    Shape.MIXED: 3,
    Shape.FEWER: 3,
    Shape.LIMIT_BESIDE: 4,
    Shape.SIDES: 3,
    Shape.LATE: 4,
    Shape.MATCHES: 4,
    Shape.ASKS_WINDOW: 3,
    Shape.JOIN: 2,
    Shape.CHANGES: 4,
    Shape.RUNNING: 3,
    Shape.CHOOSES: 4,
}
"""The number of vertices, with one source, of the shapes that have more than two vertices."""


def with_possible_timeout(
    checkpoint: CheckpointSettings, workload: Workload, work_us: tuple[int, int]
) -> CheckpointSettings:
    """The settings with a time-out that is long enough for a slot to write the snapshots of all its tasks, however many
    checkpoints are under way, and for a barrier to get through the queues before a slow step. With a shorter time-out
    checkpoints might never complete, and the job might not come to its end."""
    tasks = VERTICES.get(workload.shape, 2) + workload.sources - 1
    writing_us = 2 * tasks * work_us[1] * checkpoint.max_concurrent
    # A diamond hands every batch to the slow step twice.
    batches = workload.splits * workload.sources * (2 if workload.shape is Shape.DIAMOND else 1)
    waiting_us = 4 * workload.slow_us * batches
    possible = checkpoint.timeout_ms * 1_000 >= 3 * (writing_us + waiting_us)
    return checkpoint if possible else replace(checkpoint, timeout_ms=10_000)


def draw_other_rows(random: Random, workload: Workload) -> tuple[int, ...]:
    """The rows of further sources, which end with the first source, or long before the first source."""
    shape, rows = workload.shape, workload.rows
    if shape.most_sources == 1:
        return ()
    count = 1 if shape in (*PAIRS, *PIPELINES) else random.randint(1, shape.most_sources - 1)
    return tuple(max(1, random.choice((rows // 10, rows // 3, rows))) for _ in range(count))


def draw_workload(random: Random, shape: Shape, parallelism: int, duration_ms: int) -> Workload:
    """A job of the given shape, and its input. Without failures, reading the input takes `duration_ms`."""
    splits = random.randint(1, parallelism + 2 if shape.most_sources == 1 else parallelism)
    batch_rows = random.choice((1, 4, 16))
    batches = max(2, random.choice((6, 20, 40)) // splits)
    burst = random.choice((1, 3, 10))
    return Workload(
        shape=shape,
        splits=splits,
        rows=batch_rows * batches - random.randint(0, batch_rows - 1),
        keys=random.choice((1, 3, 20)),
        salt=random.getrandbits(32),
        batch_rows=batch_rows,
        burst=burst,
        pause_ms=pause_between_bursts_ms(parallelism, splits, batches, burst, duration_ms),
        window_us=TICK_US * random.choice((7, 50, 400)),
        disorder_us=TICK_US * random.choice((0, 5, 60)),
        shares_keys=shape.has_windows and random.random() < 0.5,
        slow_us=random.choice((0, 0, 1_000, 4_000, 15_000)),
    )


def steady(workload: Workload, parallelism: int, duration_ms: int) -> Workload:
    """The same records in batches of at most four, evenly over the same time."""
    batch_rows = min(4, workload.batch_rows)
    batches = min(STEADY_BATCHES // workload.splits, -(-workload.rows // batch_rows))
    return replace(
        workload,
        rows=batch_rows * batches,
        batch_rows=batch_rows,
        burst=1,
        pause_ms=pause_between_bursts_ms(parallelism, workload.splits, batches, 1, duration_ms),
    )


def pause_between_bursts_ms(parallelism: int, splits: int, batches: int, burst: int, duration_ms: int) -> int:
    """The pause between two bursts with which reading takes `duration_ms`, without failures."""
    pauses = splits * batches // min(parallelism, splits) // burst
    return duration_ms // max(1, pauses)


def draw_settings(random: Random, parallelism: int, batch_rows: int, duration_ms: int) -> JobSettings:
    """The settings of a job whose sources have batches of `batch_rows`."""
    return JobSettings(
        parallelism=parallelism,
        source_batch_rows=random.choice((max(1, batch_rows // 2), batch_rows, 65_536)),
        checkpoint=_draw_checkpoint(random, duration_ms),
        restart=_draw_restart(random),
        network=random.choice((NetworkSettings(), draw_narrow_network(random, batch_rows))),
        slot=SlotSettings(
            start_timeout_ms=30_000,
            heartbeat_interval_ms=random.choice((300, 900)),
            heartbeat_timeout_ms=random.choice((2_500, 5_000)),
            cancel_timeout_ms=random.choice((1_000, 4_000)),
            deploy_timeout_ms=random.choice((2_000, 10_000)),
        ),
    )


def draw_narrow_network(random: Random, batch_rows: int) -> NetworkSettings:
    """Channels that take less than a batch of the source, or a few: senders wait for credit."""
    channel_bytes = random.choice((batch_rows * ROW_BYTES // 2, batch_rows * ROW_BYTES, batch_rows * ROW_BYTES * 3))
    return NetworkSettings(
        channel_bytes=channel_bytes,
        output_bytes=random.choice((1, channel_bytes)),
        batch_bytes=random.choice((max(1, channel_bytes // 2), channel_bytes)),
    )


def _draw_checkpoint(random: Random, duration_ms: int) -> CheckpointSettings:
    mode, unaligned, aligned_timeout_ms = random.choice(
        (
            (Mode.AT_LEAST_ONCE, False, None),
            (Mode.EXACTLY_ONCE, False, None),
            (Mode.EXACTLY_ONCE, True, None),
            (Mode.EXACTLY_ONCE, True, random.choice((1, 20))),
        )
    )
    # The shortest interval lets checkpoints follow each other without a pause: only in jobs that do not last long.
    shortest = 10 if duration_ms <= 600 else 50
    return CheckpointSettings(
        interval_ms=random.choice((None, shortest, 50, 100, max(50, duration_ms // 6), 2_000)),
        timeout_ms=random.choice((300, 2_000, 2_000, 10_000)),
        min_pause_ms=random.choice((0, 0, 0, 100)),
        max_concurrent=1 if unaligned else random.choice((1, 1, 2, 4)),
        tolerable_failures=random.choice((0, 2, None, None)),
        mode=mode,
        unaligned=unaligned,
        aligned_timeout_ms=aligned_timeout_ms,
        num_retained=random.choice((1, 1, 3)),
        retention=random.choice(tuple(Retention)),
        inline_threshold_bytes=random.choice((0, 200, 20_480)),
        after_tasks_finish=random.random() >= 0.1,
    )


def _draw_restart(random: Random) -> Restart | None:
    drawn = random.random()
    if drawn < 0.3:
        return FixedDelay(attempts=1_000_000, delay_ms=random.choice((50, 500)))
    strategy = ExponentialDelay(initial_ms=random.choice((50, 200)), max_ms=2_000, reset_after_ms=20_000)
    return None if drawn > 0.9 else strategy
