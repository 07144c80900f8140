"""`penstock sim`: run whole jobs in simulated worlds, and report the rules that were broken in them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from penstock.sim.run import Result


@click.command("sim")
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="How many worlds to run.")
@click.option(
    "--first-seed", type=click.IntRange(min=0), default=1, show_default=True, help="The seed of the first world."
)
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
@click.option(
    "--verbose", is_flag=True, help="Show the parameters and the log of each failing world, or of the only world."
)
@click.pass_context
def sim(context: click.Context, *, seeds: int, first_seed: int, as_json: bool, verbose: bool) -> None:
    """Run whole jobs, with crashes and lost messages, in virtual time. One seed decides everything in a world.

    For every world in which a rule was broken, prints the command that runs that world again, and the broken rules.
    Exits with 1 if a rule was broken.
    """
    # A world runs in one thread, so a pool of threads would only cost time. Polars reads this variable when it is
    # imported with the data plane. The data plane is imported here and not above, so that the other commands need not
    # wait for the import.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from penstock.sim.run import run_seed

    totals = {
        "seeds": seeds,
        "violations": 0,
        "crashes": 0,
        "restores": 0,
        "repairs": 0,
        "checkpoints": 0,
        "virtual_seconds": 0.0,
    }
    virtual_ms = 0
    for seed in range(first_seed, first_seed + seeds):
        result = run_seed(seed, keep_log=verbose)
        totals["violations"] += len(result.violations)
        totals["crashes"] += result.crashes
        totals["restores"] += result.restores
        totals["repairs"] += result.repairs
        totals["checkpoints"] += result.checkpoints
        virtual_ms += result.virtual_ms
        if result.violations or (verbose and seeds == 1):
            _show(result, verbose=verbose)
    totals["virtual_seconds"] = virtual_ms / 1_000
    if as_json:
        click.echo(json.dumps(totals))
    else:
        click.echo(
            f"{seeds} worlds, {virtual_ms / 1_000:,.0f} virtual seconds: {totals['crashes']} crashes, "
            f"{totals['restores']} restores, {totals['checkpoints']} checkpoints, {totals['violations']} violations"
        )
    if totals["violations"]:
        context.exit(1)


def _show(result: Result, *, verbose: bool) -> None:
    if verbose:
        for line in (*result.header, *result.log):
            click.echo(line)
    if result.violations:
        click.echo(result.reproduce)
    for violation in result.violations:
        click.echo(f"  {violation}")
