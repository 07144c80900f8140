"""Which run of which notebook cell makes a step, so that a cell that is run again replaces the steps it made before."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """One run of a cell."""

    cell: str
    """The id that the notebook gave the cell, or the cell's text if the notebook tells no ids."""
    run: int
    """The number that the notebook shows in front of the cell."""

    def is_rerun_of(self, other: CellRun | None) -> bool:
        """Whether `other` is another run of the same cell."""
        return other is not None and other.cell == self.cell and other.run != self.run


def current_cell_run() -> CellRun | None:
    """The run of the cell that is running; None outside of a notebook."""
    notebook = sys.modules.get("IPython")
    shell = None if notebook is None else notebook.get_ipython()
    if shell is None:
        return None
    return CellRun(cell=_id_of_cell(shell) or _text_of_cell(shell), run=int(shell.execution_count))


def _id_of_cell(shell: Any) -> str:
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return str(parent.get("metadata", {}).get("cellId", ""))


def _text_of_cell(shell: Any) -> str:
    texts = shell.user_ns.get("In", [])
    return str(texts[-1]) if texts else ""
