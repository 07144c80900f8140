"""The pages on the command line and on metrics, which `generate.py` writes: from the commands as click knows them, and
from the list of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import click

from penstock.cli.commands import main
from penstock.metrics.prometheus import SERIES, USER_METRIC
from penstock.terminal.failures import EXIT_CODES

WRITTEN_BY = "<!-- Written by `make docs` from {source}; change that, not this. -->"


def cli_page() -> str:
    """The text of cli.md."""
    lines = [
        "# Commands",
        "",
        WRITTEN_BY.format(source="the commands in src/penstock/cli and src/penstock/bench"),
        "",
        "`penstock COMMAND --help` shows the same in a terminal. `penstock completion SHELL` prints what makes a shell",
        "complete commands, options and the names of running jobs.",
        "",
        "A JOB is named by its id, by its name, or by the beginning of either. Without `--url` a command finds the",
        "jobs of this user on this host. With `--url http://host:port` it asks the page of a driver elsewhere, with",
        "the token in `--token-file` if that driver asks for one.",
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
        "What goes wrong is one line on standard error, `penstock: …`, with what to do in brackets. Only a bug of",
        "Penstock shows a traceback.",
    ]
    for name, command in sorted(main.commands.items()):
        lines += _command_lines(f"penstock {name}", command, level=2)
    return "\n".join(lines) + "\n"


def _command_lines(name: str, command: click.Command, *, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    pieces = " ".join(piece for piece in command.collect_usage_pieces(context))
    yield from ["", f"{'#' * level} {name}", "", "```", f"{name} {pieces}".rstrip(), "```", ""]
    yield " ".join(_prose(command.help).split())
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield from ["", "| option | |", "|---|---|"]
        for option in options:
            yield _option_row(option, context)
    if isinstance(command, click.Group):
        for inner, found in sorted(command.commands.items()):
            yield from _command_lines(f"{name} {inner}", found, level=level + 1)


def _option_row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    shown = text.replace("|", "\\|")
    return f"| `{names}` | {shown} |".replace("<", "&lt;") if "<" in shown else f"| `{names}` | {shown} |"


def _prose(text: str | None) -> str:
    return (text or "").replace("\b", "").replace("<", "&lt;")


def metrics_page() -> str:
    """The text of metrics.md."""
    lines = [
        "# Metrics",
        "",
        WRITTEN_BY.format(source="src/penstock/metrics/prometheus.py"),
        "",
        "The page of a driver has these metrics at the address `/metrics`, in the text format of Prometheus, if the",
        "extra `metrics` is installed. [How to operate jobs](../guide/operating.md#metrics) shows how to use them.",
        "",
        "The label `job` is the id of the job, `job_name` its name, `step` the id of a chain of steps, `subtask` the",
        "number of the subtask from 0, `slot` a slot of the job. Keys of records are never labels. When a job has",
        "ended, only its state and its counts are left.",
        "",
        "| metric | kind | labels | |",
        "|---|---|---|---|",
    ]
    for series in SERIES:
        labels = ", ".join(f"`{label}`" for label in series.labels)
        lines.append(f"| `{series.shown_name}` | {series.kind} | {labels} | {series.help} |")
    lines += [
        "",
        "## Metrics of the program's functions",
        "",
        "A counter, gauge or histogram `rejected` that a function has made with `context.metrics` is here as",
        f"`{USER_METRIC}rejected_total`, `{USER_METRIC}rejected` or `{USER_METRIC}rejected_bucket`, with the labels",
        "`job`, `job_name`, `step` (the id of the step that has the function) and `subtask`. It begins at zero with",
        "each attempt.",
    ]
    return "\n".join(lines) + "\n"
