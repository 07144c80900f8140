"""All commands, put together."""

from __future__ import annotations

import click

from penstock.bench.backpressure import backpressure
from penstock.bench.coordinator import coordinator
from penstock.bench.kafka import kafka_bench
from penstock.bench.nexmark import nexmark_bench
from penstock.bench.operators import operators
from penstock.bench.processor import processor
from penstock.bench.recovery import recovery
from penstock.bench.state import state as state_bench
from penstock.bench.torture import torture
from penstock.bench.window import bench
from penstock.cli.checkpoints import checkpoints
from penstock.cli.completion import complete_jobs, completion
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.history import history
from penstock.cli.jobs import COMMANDS as JOB_COMMANDS
from penstock.cli.looking import exceptions, info, logs
from penstock.cli.nexmark import nexmark
from penstock.cli.report import report
from penstock.cli.run import run
from penstock.cli.sim import sim
from penstock.cli.state import state
from penstock.cli.top import top
from penstock.cli.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="penstock", message="%(prog)s %(version)s")
def main() -> None:
    """Continuous, stateful, exactly-once stream processing on Spark."""


for _command in (
    *(run, demo, *JOB_COMMANDS, info, checkpoints, exceptions, logs, top, report),
    *(completion, doctor, bench, history, nexmark, sim, state, torture, verify),
):
    main.add_command(_command)
bench.add_command(backpressure)
bench.add_command(coordinator)
bench.add_command(kafka_bench)
bench.add_command(nexmark_bench)
bench.add_command(operators)
bench.add_command(processor)
bench.add_command(recovery)
bench.add_command(state_bench)
complete_jobs(main)
