"""`penstock completion`: what makes a shell complete commands, options and the names of running jobs."""

from __future__ import annotations

import re
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from penstock.core.errors import StreamError, UsageError
from penstock.net import control
from penstock.terminal.failures import reported_failures

_INSTALLED = {
    "bash": 'eval "$(penstock completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(penstock completion zsh)"   # in ~/.zshrc',
    "fish": "penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


@click.command("completion", epilog="; ".join(_INSTALLED.values()))
@click.argument("shell", type=click.Choice(sorted(_INSTALLED)))
def completion(*, shell: str) -> None:
    """Print what makes a SHELL complete the commands and options of penstock, and the names of running jobs.

    For bash, put `eval "$(penstock completion bash)"` into ~/.bashrc; for zsh, the same with zsh into ~/.zshrc; for
    fish, write the output to ~/.config/fish/completions/penstock.fish.
    """
    with reported_failures():
        kind = get_completion_class(shell)
        if kind is None:
            raise UsageError(f"completion for {shell} is not known")
        root = click.get_current_context().find_root()
        click.echo(kind(root.command, {}, "penstock", "_PENSTOCK_COMPLETE").source())


def jobs_beginning_with(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The running jobs whose names begin so."""
    try:
        jobs = control.running_jobs()
    except (StreamError, OSError):
        # Somebody who presses the tab key wants no error.
        return []
    names = {re.sub(r"-[0-9a-f]{8}$", "", job): job for job in jobs}
    return [CompletionItem(name, help=job) for name, job in names.items() if name.startswith(begun.lower())]


def complete_jobs(command: click.Command) -> None:
    """Have the argument JOB of a command, and of the commands in it, completed with the running jobs."""
    inner: Any = command.commands.values() if isinstance(command, click.Group) else ()
    for each in inner:
        complete_jobs(each)
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.name == "job":
            parameter._custom_shell_complete = jobs_beginning_with  # noqa: SLF001  # click sets it in the constructor only
