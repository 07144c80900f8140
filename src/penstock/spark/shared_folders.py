"""Folders that a program and its slots must share, on whatever hosts they run. The program puts a file, a *sign*, into
each folder. Every slot looks for the signs before the slot calls the master."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.spark.clock import fresh_token


def sign(folders: Iterable[Path]) -> tuple[str, ...]:
    """Put a sign into each folder, and return the paths of the signs. A host that finds a sign has the same folder. A
    folder that cannot be written is left out: the step that needs the folder raises an error of its own."""
    signs: list[Path] = []
    for folder in dict.fromkeys(folders):
        # Spark takes a file whose name begins with a dot for no data.
        made = folder / f".penstock-{fresh_token()}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            made.touch()
            signs.append(made)
    return tuple(map(str, signs))


def remove(signs: Sequence[str]) -> None:
    """Delete the signs: no slot needs to find them any more."""
    for made in signs:
        with suppress(OSError):
            Path(made).unlink(missing_ok=True)


def lacking(signs: Sequence[str]) -> list[str]:
    """The folders that this host does not share with the program: the host cannot find the signs in them."""
    return [str(Path(made).parent) for made in signs if not Path(made).exists()]


def told(host: str, folder: str) -> str:
    """A text that says which host lacks which folder, and what to do."""
    return (
        f"Spark's workers ({host}) do not have this program's folder {folder}: mount the same folder on all hosts, "
        "or choose another folder; Checkpointing(directory=...) may also be a URI, of object storage for example"
    )
