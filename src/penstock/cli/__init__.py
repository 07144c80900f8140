"""The command line: one file per command, and beside them what the commands share.

Slots of the benchmarks import some of these files: so the package itself imports no command before it is asked for
`main`, which has them all.
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
