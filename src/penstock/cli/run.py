"""`penstock run`: a program that is given by an import string, with settings from the command line."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from penstock.core.errors import StreamError, UsageError
from penstock.terminal.failures import reported_failures

if TYPE_CHECKING:
    from penstock.spark.environment import Environment

_SHOWN = 8


@click.command("run")
@click.argument("program")
@click.option("--from", "restore", metavar="PATH", help="Start from this savepoint or checkpoint, a path or a URI.")
@click.option("--fresh", is_flag=True, help="Start over, whatever earlier runs of the program have done.")
@click.option("--parallelism", type=click.IntRange(min=1), help="How many slots the job has.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value for an argument of ps.Environment, such as checkpointing.interval=5s, or for a setting of "
    "Spark, such as spark.ui.port=4050. May be given several times.",
)
@click.option(
    "--master", metavar="URL", help="The master of Spark, such as local[4]. Default: what Spark is set up for."
)
@click.option("--name", help="The name of the job. Default: the name of the function, or of the module.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end, and no progress.")
def run(*, program: str, **options: Any) -> None:
    """Run PROGRAM, written MODULE:NAME, and wait for its end.

    NAME is a function that takes an environment and builds the program with it; or an environment that the module has
    made; or a function without arguments that returns one. MODULE is looked for in the current folder first.

    Exits with 1 if the job failed or was cancelled, and with 2 if it could not begin.
    """
    with reported_failures():
        summary = _run(program, **options)
        if options["as_json"]:
            click.echo(json.dumps(summary))


def _run(  # noqa: PLR0913  # the options of the command
    program: str,
    *,
    restore: str | None,
    fresh: bool,
    parallelism: int | None,
    assignments: Sequence[str],
    master: str | None,
    name: str | None,
    quiet: bool,
    as_json: bool,
) -> dict[str, Any]:
    # Imported here and not above, so that the other commands need not wait for Spark.
    from penstock.spark.overrides import in_place_of_arguments, read_overrides

    module_name, attribute = _parts_of(program)
    overrides = read_overrides(assignments, parallelism=parallelism)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if master is not None or overrides.spark:
        start_spark(master, overrides.spark)
    with in_place_of_arguments(overrides):
        module = _imported(module_name)
        env = _environment(module, attribute)
    _send_along(env, module)
    chosen = name or (attribute if callable(getattr(module, attribute)) else module_name.rpartition(".")[2])
    began = time.monotonic()
    view = env.run(chosen.replace("_", "-"), restore=restore, fresh=fresh, quiet=quiet or as_json)
    return {
        "job": view.job,
        "state": view.state.value,
        "seconds": round(time.monotonic() - began, 3),
        "rows_read": view.rows_read,
        "rows_out": view.rows_out,
        "restarts": view.restarts,
        "checkpoints_completed": view.checkpoints.counts.completed,
        "checkpoints_failed": view.checkpoints.counts.failed,
    }


def _parts_of(program: str) -> tuple[str, str]:
    module, separator, attribute = program.partition(":")
    if not separator or not module or not attribute.isidentifier():
        raise UsageError(
            f"{program!r} names no program", hint="write module:function, such as jobs.orders:main, without .py"
        )
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"{module!r} is a path and no module", hint=f"write {dotted}:{attribute}")
    return module, attribute


def start_spark(master: str | None, settings: Mapping[str, str]) -> Any:
    """A session at this master, with these settings. Raises `HostError` if Spark does not start."""
    from pyspark.sql import SparkSession

    from penstock.spark.java import session_of

    builder = SparkSession.builder
    if master is not None:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return session_of(builder)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"no module is called {error.name!r}", hint=_near_modules(error.name)) from None
        raise _not_imported(name, error) from error
    except (StreamError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a module may raise anything, `SystemExit` included
        raise _not_imported(name, error) from error


def _near_modules(name: str) -> str:
    parent, _, last = name.rpartition(".")
    places = sys.modules[parent].__path__ if parent in sys.modules else [str(Path.cwd())]
    known = [found.name for found in pkgutil.iter_modules(list(places))]
    near = get_close_matches(last, known, n=1)
    prefix = f"{parent}." if parent else ""
    if near:
        return f"did you mean {prefix}{near[0]}?"
    return f"the modules in {places[0]} are {', '.join(known[:_SHOWN])}" if known else f"{places[0]} has no module"


def _not_imported(name: str, error: BaseException) -> UsageError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = (str(error).splitlines() or [""])[0]
    return UsageError(f"module {name!r} could not be imported: {type(error).__name__}: {text}{place}")


def _environment(module: ModuleType, attribute: str) -> Environment:
    from penstock.spark.environment import Environment

    if not hasattr(module, attribute):
        known = [name for name, value in vars(module).items() if _is_program(value, module)]
        near = get_close_matches(attribute, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the programs in the module are {', '.join(known[:_SHOWN])}"
        raise UsageError(
            f"module {module.__name__!r} has no {attribute!r}", hint=hint if known else "the module has no program"
        )
    found = getattr(module, attribute)
    if isinstance(found, Environment):
        return found
    if not callable(found):
        raise UsageError(
            f"{attribute!r} in module {module.__name__!r} is of type {type(found).__name__}",
            hint="give a function that takes an environment, or an environment",
        )
    return _built(found, f"{module.__name__}:{attribute}")


def _is_program(value: Any, module: ModuleType) -> bool:
    from penstock.spark.environment import Environment

    return isinstance(value, Environment) or (
        inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")
    )


def _built(function: Callable[..., Any], program: str) -> Environment:
    from penstock.spark.environment import Environment

    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        raise UsageError(
            f"{program} takes {', '.join(parameter.name for parameter in needed)}",
            hint="a program is a function that takes one argument, the environment",
        )
    if needed:
        env = Environment()
        function(env)
        return env
    made = function()
    if not isinstance(made, Environment):
        raise UsageError(
            f"{program} takes no argument and returned {type(made).__name__}",
            hint="take an environment as the only argument, or return one",
        )
    return made


def _send_along(env: Environment, module: ModuleType) -> None:
    """On a cluster, send the file of the module to the executors: there is no current folder of ours."""
    from penstock.spark.connect import is_connect
    from penstock.spark.preflight import is_local

    file = getattr(module, "__file__", None)
    if file is None or "." in module.__name__ or Path(file).name == "__init__.py" or "site-packages" in file:
        return
    spark = env.spark
    if is_connect(spark):
        spark.addArtifacts(file, pyfile=True)
    elif not is_local(spark):
        spark.sparkContext.addPyFile(file)
