"""Folders that a program and its slots must both have, on whatever hosts they are: the program puts a file into each of
them, and every slot looks for it before it calls in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.spark.clock import fresh_token


def sign(folders: Iterable[Path]) -> tuple[str, ...]:
    """Files that are found where a folder is the same. What cannot be written is left out: whoever needs it says so."""
    signs: list[Path] = []
    for folder in dict.fromkeys(folders):
        # Spark takes no file for data whose name begins so.
        made = folder / f".penstock-{fresh_token()}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            made.touch()
            signs.append(made)
    return tuple(map(str, signs))


def remove(signs: Sequence[str]) -> None:
    """No slot needs to find them any more."""
    for made in signs:
        with suppress(OSError):
            Path(made).unlink(missing_ok=True)


def lacking(signs: Sequence[str]) -> list[str]:
    """The folders that are not the same here."""
    return [str(Path(made).parent) for made in signs if not Path(made).exists()]


def told(host: str, folder: str) -> str:
    """What is wrong on a host that lacks a folder, and what to do."""
    return (
        f"Spark's workers ({host}) do not have this program's folder {folder}: mount the same one on all hosts, "
        "or choose another; Checkpointing(directory=...) may also be a URI, of object storage for example"
    )
