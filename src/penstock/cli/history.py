"""`penstock history`: the page and the REST interface over jobs that have ended."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path

import click

from penstock.api.web import Web
from penstock.core.errors import UsageError
from penstock.spark.page import NEEDED
from penstock.terminal.failures import reported_failures


@click.command("history")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="The port. Default: 8081, or the first free port after it."
)
@click.option("--token-file", type=click.Path(path_type=Path), help="A file with the token that requests must have.")
def history(*, directory: Path, host: str, port: int | None, token_file: Path | None) -> None:
    """Show jobs that have ended, from the archive in DIRECTORY, until Ctrl-C.

    DIRECTORY is the folder that programs were given with Environment(web=ps.Web(archive=...)).
    """
    with reported_failures():
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise UsageError(f"{' and '.join(missing)} is not installed", hint="install penstock[web]")
        if not directory.is_dir():
            raise UsageError(
                f"{directory} is no folder", hint="give the folder of Environment(web=ps.Web(archive=...))"
            )
        serve(directory, Web(host=host, port=port, token=token_file), until=threading.Event())


def serve(directory: Path, web: Web, *, until: threading.Event) -> None:
    """Serve the archive in a folder until the event is set, or until Ctrl-C."""
    from penstock.web.archive import Archive
    from penstock.web.server import Server

    found = Archive(str(directory)).read()
    server = Server(web)
    for document in reversed(found.values()):
        server.jobs.add_ended(document)
    server.start()
    click.echo(f"{len(found)} jobs that have ended are shown at {server.address}")
    try:
        while not until.wait(0.5):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
