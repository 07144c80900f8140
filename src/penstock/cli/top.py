"""`penstock top`: jobs as they run, anew every second: events a second, how far the watermark is behind, and how busy
each step is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.reaching import Jobs, reaching_jobs
from penstock.core.errors import PeerError
from penstock.core.view_texts import duration_text, size_text, time_text
from penstock.runtime.pace import LONGEST_LAG_MS, rate_text
from penstock.terminal.plain_text import plain

WIDTH = 120
"""Where there is no terminal, tables are at least this wide."""
SHARES = ("busy", "blocked", "waiting", "idle")
"""What the time of a subtask is divided into, if its slot reports so: at work; held up by receivers without room, which
is back-pressure; waiting for its turn in the slot; without anything to do."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a job said at one moment."""

    when_s: float
    found: dict[str, Any]


@click.command("top")
@click.argument("job", required=False)
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Show one look, over one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per look and job.")
@reaching_jobs
def top(*, jobs: Jobs, job: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Show how running jobs go, until Ctrl-C: all jobs, or one JOB with its steps."""
    wanted = None if job is None else jobs.find(job)
    before = _looks(jobs, wanted)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, WIDTH))
    if as_json or once or not console.is_terminal:
        while before or wanted is None:
            time.sleep(interval)
            after = _looks(jobs, wanted)
            _print(before, after, console, as_json=as_json)
            if once:
                return
            before = after
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while before or wanted is None:
            time.sleep(interval)
            after = _looks(jobs, wanted)
            live.update(shown(before, after), refresh=True)
            before = after
    click.echo("the job has ended")


def _looks(jobs: Jobs, wanted: str | None) -> dict[str, Look]:
    """What each job says. A job that has ended, or does not answer, is left out."""
    found: dict[str, Look] = {}
    for job in jobs.running() if wanted is None else [wanted]:
        try:
            found[job] = Look(found=jobs.call(job, "info"), when_s=time.monotonic())
        except PeerError:
            continue
    return found


def _print(before: Mapping[str, Look], after: Mapping[str, Look], console: Console, *, as_json: bool) -> None:
    if not as_json:
        console.print(shown(before, after))
        return
    for job, look in after.items():
        click.echo(
            json.dumps({"id": job, **job_numbers(before.get(job), look), "steps": step_numbers(before.get(job), look)})
        )


def shown(before: Mapping[str, Look], after: Mapping[str, Look]) -> RenderableType:
    """All jobs, each with its steps if there are not more jobs than fit."""
    if not after:
        return Text("no job of this user runs on this host")
    parts: list[RenderableType] = []
    for job, look in after.items():
        parts += [
            _headline(job, job_numbers(before.get(job), look)),
            _steps(step_numbers(before.get(job), look)),
            Text(),
        ]
    return Group(*parts)


def job_numbers(before: Look | None, after: Look) -> dict[str, Any]:
    """The numbers of a job, from one look to the next."""
    found, now_ms = after.found, round(time.time() * 1_000)
    latest = found["checkpoints"]["latest_completed"]
    watermark = found["watermark_us"]
    lag = None if watermark is None else now_ms - watermark // 1_000
    return {
        "name": found["name"],
        "state": found["state"],
        "events_per_second": _rate(before, after, found["rows_read"], lambda earlier: earlier["rows_read"]),
        "rows_read": found["rows_read"],
        "watermark_us": watermark,
        "watermark_lag_ms": max(0, lag) if lag is not None and abs(lag) < LONGEST_LAG_MS else None,
        "checkpoint_age_ms": None if not latest else max(0, now_ms - latest["triggered"]),
        "checkpoint_ms": found["last_checkpoint_ms"],
        "checkpoints_failed": found["checkpoints_failed"],
        "restarts": found["restarts"],
    }


def step_numbers(before: Look | None, after: Look) -> list[dict[str, Any]]:
    """The numbers of each vertex of the plan, over all its subtasks, from one look to the next."""
    plan = after.found["plan"]
    if plan is None:
        return []
    return [_of_vertex(vertex, before, after) for vertex in plan["vertices"]]


def _of_vertex(vertex: Mapping[str, Any], before: Look | None, after: Look) -> dict[str, Any]:
    def tasks(found: Mapping[str, Any]) -> list[Mapping[str, float]]:
        return [values for name, values in found["tasks"].items() if name.rpartition("[")[0] == vertex["id"]]

    def total(found: Mapping[str, Any], name: str) -> float:
        return sum(values.get(name, 0) for values in tasks(found))

    now = tasks(after.found)
    watermarks = [values["watermark_us"] for values in now if "watermark_us" in values]
    count = max(1, len(now))
    shares = {
        name: _rate(before, after, total(after.found, f"{name}_ms"), lambda f, name=name: total(f, f"{name}_ms"))
        for name in SHARES
        if any(f"{name}_ms" in values for values in now)
    }
    return {
        "id": vertex["id"],
        "name": vertex["name"],
        "parallelism": vertex["parallelism"],
        "events_in_per_second": _rate(before, after, total(after.found, "rows_in"), lambda f: total(f, "rows_in")),
        "events_out_per_second": _rate(before, after, total(after.found, "rows_out"), lambda f: total(f, "rows_out")),
        "queued_bytes": int(total(after.found, "queued_bytes")),
        "watermark_us": int(min(watermarks)) if watermarks else None,
        "watermark_skew_ms": int((max(watermarks) - min(watermarks)) // 1_000) if watermarks else None,
        **{
            f"{name}_share": None if share is None else min(1.0, share / 1_000 / count)
            for name, share in shares.items()
        },
    }


def _rate(before: Look | None, after: Look, now: float, then: Any) -> float | None:
    """A total's growth per second. None if there was no look before, or if a restart has set the total back."""
    if before is None or before.found.get("epoch") != after.found.get("epoch"):
        return None
    seconds, growth = after.when_s - before.when_s, now - then(before.found)
    return growth / seconds if seconds > 0 and growth >= 0 else None


def _headline(job: str, numbers: Mapping[str, Any]) -> Text:
    parts = [numbers["state"]]
    if numbers["events_per_second"] is not None:
        parts.append(f"{rate_text(numbers['events_per_second'])} events/s")
    if numbers["watermark_lag_ms"] is not None:
        parts.append(f"watermark {duration_text(numbers['watermark_lag_ms'])} behind")
    elif numbers["watermark_us"] is not None:
        parts.append(f"watermark {time_text(numbers['watermark_us'] // 1_000)}")
    if numbers["checkpoint_age_ms"] is not None:
        took = "" if numbers["checkpoint_ms"] is None else f", took {duration_text(numbers['checkpoint_ms'])}"
        parts.append(f"checkpoint {duration_text(numbers['checkpoint_age_ms'])} ago{took}")
    if numbers["restarts"]:
        parts.append(f"restarts {numbers['restarts']}")
    style = "green" if numbers["state"] == "running" else "yellow"
    return Text.assemble((plain(job), "bold"), "  ", (" · ".join(parts), style))


def _steps(steps: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    has_shares = any(f"{name}_share" in step for step in steps for name in SHARES)
    for title in ("step", "subtasks", "in/s", "out/s", "queued", "skew", *(SHARES if has_shares else ())):
        table.add_column(title, justify="left" if title == "step" else "right", no_wrap=True)
    for step in steps:
        cells: list[Text | str] = [
            Text(plain(step["name"]), overflow="ellipsis"),
            str(step["parallelism"]),
            _rate_cell(step["events_in_per_second"]),
            _rate_cell(step["events_out_per_second"]),
            size_text(step["queued_bytes"]),
            "" if step["watermark_skew_ms"] is None else duration_text(step["watermark_skew_ms"]),
        ]
        if has_shares:
            cells += [_share_cell(name, step.get(f"{name}_share")) for name in SHARES]
        table.add_row(*cells)
    return table


def _rate_cell(rate: float | None) -> str:
    return "" if rate is None else rate_text(rate)


def _share_cell(name: str, share: float | None) -> Text:
    if share is None:
        return Text("")
    style = "red" if name in ("busy", "blocked") and share > 0.5 else ""
    return Text(f"{share:.0%}", style=style)
