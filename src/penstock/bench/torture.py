"""`penstock torture`: workers are killed again and again, and no record may be lost, repeated or out of order.

Each round runs one job, with a few kills and one mode of checkpoints. At the end of a round the source is told to end,
the job finishes, and its whole committed output is judged.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.core.errors import HostError, JobFailed, UsageError
from penstock.settings import MINUTE_MS
from penstock.terminal.failures import EXIT_FAILED, reported_failures

if TYPE_CHECKING:
    from penstock.bench.kafka_broker import KafkaBroker
    from penstock.bench.random_kills import RandomKills
    from penstock.bench.sequences import Damage
    from penstock.bench.torture_job import Places
    from penstock.bench.torture_kafka import KafkaOutput
    from penstock.runtime.views import FailureView
    from penstock.spark.job import Job

MODES = ("aligned", "unaligned", "timeout")
ALL_MODES = "all"
FILES, KAFKA = "files", "kafka"
TARGETS = (FILES, KAFKA)
DEFAULT_KILLS = 10
PARALLELISM = 3
SPARE_CORES = 2
KILLS_PER_ROUND = 5
INTERVAL_MS = 100
RESTART_DELAY = "100ms"
SPARE_RESTARTS = 5
BROKER_RESTARTS = 1_000
"""While the broker is away, attempts fail again and again."""
LOOK_EVERY_S = 0.02
STALL_MS = 120_000
"""A job that runs and completes no checkpoint for this long is stuck."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TortureOptions:
    """The options of the command line."""

    kills: int | None
    minutes: float | None
    mode: str
    seed: int
    target: str
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Round:
    """The plan of one round."""

    mode: str
    kills: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The result of one round."""

    kills: int
    checkpoints_completed: int
    recoveries_ms: tuple[int, ...]
    most_persisted_bytes: int
    """The most in-flight data that one checkpoint saved."""
    damage: Damage
    interrupt: KeyboardInterrupt | None = None
    """The interrupt that ended the round early; None if there was no interrupt. The output that had been committed by
    then was judged all the same."""


@click.command("torture")
@click.option(
    "--kills",
    type=click.IntRange(min=1),
    help=f"How many workers to kill.  [default: {DEFAULT_KILLS}; with --minutes: no limit]",
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="End after this many minutes.")
@click.option(
    "--mode",
    type=click.Choice([*MODES, ALL_MODES]),
    default=ALL_MODES,
    show_default=True,
    help="How checkpoints are taken; 'timeout' begins aligned and turns unaligned after 100 ms; 'all' takes all modes "
    "in turn.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Decides which workers are killed, and when.",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default=FILES,
    show_default=True,
    help="Where the output goes: files, or topics of a Kafka broker, which is started, and is killed and started again "
    "in every round.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. The output of a round with lost, repeated or unordered records stays there. Default: a "
    "temporary directory.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def torture(**values: Any) -> None:
    """Kill random workers of a job at random moments, and check every record of its output.

    Ends when all kills are done, when the time is over, or when it is interrupted. Exits with 1 if a record was lost,
    duplicated or out of order.
    """
    with reported_failures():
        sys.exit(run_torture(TortureOptions(**values)))


def run_torture(options: TortureOptions) -> int:
    """Run all rounds and print the result. Returns the exit code. An interrupt is raised again when the result has been
    printed."""
    # Imported here and not above, so that the other commands need not wait for the import of the data plane.
    from penstock.terminal.session import SessionOptions, spark_session, work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    cores = PARALLELISM + SPARE_CORES
    results: list[RoundResult] = []

    def say(text: str) -> None:
        click.echo(text, file=screen)

    with work_directory(options.directory, keep=False, prefix="penstock-torture-") as work:
        say(f"starting Spark local[{cores}] ...")
        session = SessionOptions(application="penstock torture", cores=cores, work=work)
        with _broker(options, work, say=say) as broker, spark_session(session) as spark:
            interrupt = _run_rounds(spark, options, work, results, say=say, broker=broker)
    for line in report(results):
        say(line)
    found = summary(results)
    if options.as_json:
        click.echo(json.dumps(found))
    if any(found[name] for name in ("lost", "duplicated", "out_of_order")):
        return EXIT_FAILED
    if interrupt is not None:
        raise interrupt
    return 0


@contextmanager
def _broker(options: TortureOptions, work: Path, *, say: Say) -> Iterator[KafkaBroker | None]:
    """The broker that the output goes to; None if the output goes to files."""
    if options.target == FILES:
        yield None
        return
    from penstock.bench.kafka_broker import KafkaBroker, missing

    if (reason := missing()) is not None:
        raise HostError(f"no Kafka broker can be started: {reason}")
    say("starting a broker ...")
    with KafkaBroker(work / "broker") as broker:
        yield broker


def _run_rounds(
    spark: Any,
    options: TortureOptions,
    work: Path,
    results: list[RoundResult],
    *,
    say: Say,
    broker: KafkaBroker | None,
) -> KeyboardInterrupt | None:
    """Run the rounds, and add each result to `results`. Returns the interrupt that ended a round; None if no interrupt
    came."""
    from penstock.spark.clock import WallClock

    clock = WallClock()
    deadline_ms = None if options.minutes is None else clock.now() + int(options.minutes * MINUTE_MS)
    try:
        for number, planned in enumerate(rounds(options), start=1):
            place = work / f"round-{number}"
            if place.exists():
                raise UsageError(
                    f"folder {str(place)!r} is left of an earlier run",
                    hint="remove the folder, or give another --directory",
                )
            say(f"round {number}: {PARALLELISM} slots, checkpoints every {INTERVAL_MS} ms, {planned.mode}")
            result = run_round(spark, planned, place, say=say, deadline_ms=deadline_ms, broker=broker)
            results.append(result)
            say(f"round {number}: {_result_text(result)}")
            if result.damage.is_none:
                shutil.rmtree(place, ignore_errors=True)
            if result.interrupt is not None or (deadline_ms is not None and clock.now() >= deadline_ms):
                return result.interrupt
    except KeyboardInterrupt as interrupt:
        return interrupt
    return None


def rounds(options: TortureOptions) -> Iterator[Round]:
    """The rounds to run. If only the time is limited, there is no last round."""
    modes = MODES if options.mode == ALL_MODES else (options.mode,)
    kills = options.kills
    if kills is None and options.minutes is None:
        kills = DEFAULT_KILLS
    # Few kills are spread over all modes.
    most = KILLS_PER_ROUND if kills is None else min(KILLS_PER_ROUND, math.ceil(kills / len(modes)))
    draws = random.Random(options.seed)
    done = 0
    for mode in itertools.cycle(modes):
        count = most if kills is None else min(most, kills - done)
        if not count:
            return
        yield Round(mode=mode, kills=count, seed=draws.getrandbits(32))
        done += count


def run_round(
    spark: Any,
    planned: Round,
    place: Path,
    *,
    say: Say,
    deadline_ms: int | None = None,
    broker: KafkaBroker | None = None,
) -> RoundResult:
    """Run one job in the folder `place`, which must not exist yet. Kill workers of the job, let the job end, and judge
    its committed output. With a `broker` the output goes there, and the broker is killed and started again."""
    from penstock.api.restarts import fixed_delay
    from penstock.bench.random_kills import RandomKills
    from penstock.bench.torture_job import NETWORK, Places, judge, torture_checkpointing, torture_plan
    from penstock.terminal.running import PlannedEnvironment, running_job

    places = Places(place)
    places.control.mkdir(parents=True)
    output = None if broker is None else _topics(broker, place.name)
    environment = PlannedEnvironment(
        spark,
        plan=torture_plan(places, parallelism=PARALLELISM, output=output),
        checkpointing=torture_checkpointing(planned.mode, places, interval_ms=INTERVAL_MS),
        restart=fixed_delay(planned.kills + (SPARE_RESTARTS if broker is None else BROKER_RESTARTS), RESTART_DELAY),
        network=NETWORK,
    )
    kills = RandomKills(random.Random(planned.seed), count=planned.kills, kill=_kill)
    interrupt: KeyboardInterrupt | None = None
    with running_job(environment, f"torture-{planned.mode}") as job:
        try:
            _torture(job, kills, places, say=say, deadline_ms=deadline_ms, broker=broker)
        except KeyboardInterrupt as error:
            say("interrupted; the output that has been committed is judged")
            interrupt = error
    checkpoints = job.view().checkpoints
    return RoundResult(
        kills=kills.done,
        checkpoints_completed=checkpoints.counts.completed,
        recoveries_ms=tuple(kills.recoveries_ms),
        most_persisted_bytes=int(checkpoints.summary.persisted_bytes.max),
        damage=judge(places, parallelism=PARALLELISM, is_finished=interrupt is None, output=output),
        interrupt=interrupt,
    )


def _topics(broker: KafkaBroker, round_: str) -> KafkaOutput:
    from penstock.bench.torture_kafka import KafkaOutput

    output = KafkaOutput(broker.bootstrap, round_)
    output.make_topics(broker, "rows", "windows")
    return output


def _torture(
    job: Job, kills: RandomKills, places: Places, *, say: Say, deadline_ms: int | None, broker: KafkaBroker | None
) -> None:
    """Kill workers of the job until all kills are done or the time is over. Then tell the source to end, and wait for
    the end of the job."""
    from penstock.bench.sequences import tell_to_end
    from penstock.spark.clock import WallClock

    clock, pause = WallClock(), threading.Event()
    stall = Stall(clock.now())
    failures: set[tuple[int, int]] = set()
    told = broker_was_killed = False
    while not job.is_over:
        view, now_ms = job.view(), clock.now()
        notes = [] if told else kills.look(view, now_ms)
        for note in [*_new_failures(view.failures, failures), *notes]:
            say(f"  {note}")
        if broker is not None and not broker_was_killed and kills.done:
            broker_was_killed = True
            say("  the broker is killed, and started again")
            broker.kill()
            broker.start()
        if not told and (kills.is_over or (deadline_ms is not None and now_ms >= deadline_ms)):
            told = True
            tell_to_end(places.control)
        stall.look(view.checkpoints.counts.completed, now_ms)
        pause.wait(LOOK_EVERY_S)
    job.wait()


class Stall:
    """Notices that a job is stuck."""

    def __init__(self, now_ms: int) -> None:
        self._completed = 0
        self._since_ms = now_ms

    def look(self, completed: int, now_ms: int) -> None:
        """Raise `JobFailed` if no checkpoint has been completed for too long."""
        if completed > self._completed:
            self._completed, self._since_ms = completed, now_ms
        elif now_ms - self._since_ms >= STALL_MS:
            raise JobFailed(
                f"the job is stuck: {completed} checkpoints are complete, and no checkpoint was completed for "
                f"{STALL_MS // 1_000} s"
            )


def _new_failures(found: tuple[FailureView, ...], known: set[tuple[int, int]]) -> list[str]:
    notes = []
    for failure in found:
        if (failure.epoch, failure.when) not in known:
            known.add((failure.epoch, failure.when))
            where = f" in {failure.operator!r}, subtask {failure.subtask}" if failure.operator is not None else ""
            text = failure.text.splitlines()[0] if failure.text else "no reason given"
            notes.append(f"attempt {failure.epoch} failed{where}: {text}")
    return notes


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# --- what was found --------------------------------------------------------------------------------------------------


def summary(results: Sequence[RoundResult]) -> dict[str, int]:
    """The result as it is printed for programs."""
    return {
        "kills": sum(result.kills for result in results),
        "checkpoints_completed": sum(result.checkpoints_completed for result in results),
        "lost": sum(result.damage.lost for result in results),
        "duplicated": sum(result.damage.duplicated for result in results),
        "out_of_order": sum(result.damage.out_of_order for result in results),
    }


def report(results: Sequence[RoundResult]) -> list[str]:
    """The result in lines for people."""
    found = summary(results)
    recoveries = [took for result in results for took in result.recoveries_ms]
    longest = f", longest recovery {max(recoveries) / 1_000:.1f} s" if recoveries else ""
    damage = ", ".join(f"{name.replace('_', ' ')} {found[name]}" for name in ("lost", "duplicated", "out_of_order"))
    return [
        f"{found['kills']} workers killed{longest}, {found['checkpoints_completed']} checkpoints completed",
        damage,
    ]


def _result_text(result: RoundResult) -> str:
    from penstock.terminal.screen import size_text

    damage = result.damage
    return (
        f"{result.checkpoints_completed} checkpoints completed, "
        f"up to {size_text(result.most_persisted_bytes)} in flight saved, "
        f"lost {damage.lost}, duplicated {damage.duplicated}, out of order {damage.out_of_order}"
    )
