"""The command line: one file per command.

A slot may import a file of this package. So the package itself imports no command until `main`, which has all commands,
is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.cli.commands import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    if name == "main":
        from penstock.cli.commands import main

        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
