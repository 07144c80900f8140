"""All commands, put together."""

from __future__ import annotations

import click

from penstock.cli.backpressure import backpressure
from penstock.cli.bench import bench
from penstock.cli.coordinator_bench import coordinator
from penstock.cli.demo import demo
from penstock.cli.jobs import COMMANDS as JOB_COMMANDS
from penstock.cli.processor_bench import processor
from penstock.cli.recovery import recovery
from penstock.cli.sim import sim
from penstock.cli.state import state
from penstock.cli.state_bench import state as state_bench
from penstock.cli.torture import torture
from penstock.cli.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="penstock", message="%(prog)s %(version)s")
def main() -> None:
    """Continuous, stateful, exactly-once stream processing on Spark."""


for _command in (demo, *JOB_COMMANDS, bench, sim, state, torture, verify):
    main.add_command(_command)
bench.add_command(backpressure)
bench.add_command(coordinator)
bench.add_command(processor)
bench.add_command(recovery)
bench.add_command(state_bench)
