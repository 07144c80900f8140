"""The places of landed DataFrames, and which places are believed.

    <landing>/<job>/inputs/<operator>/part-….parquet             a file of a DataFrame
    <landing>/<job>/inputs/<operator>/<token>/part-….parquet     the same, of a job that may have several drivers

A snapshot names the files of a DataFrame that are still to be read. The files may have been landed for another job, in
another landing folder, for an operator that had another name. Anybody may have written a snapshot, so a file is read
only if it has the place and the name of a landed file. No link below the landing folder is followed.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from penstock.connectors.split_places import crafted, leads_below
from penstock.core.recovery.layout import INPUTS
from penstock.core.recovery.places import is_plain

_DEPTHS = (4, 5)
"""How many names the path of a landed file has, from the folder of the job on."""


class LandedPlaces:
    """The files that Spark has landed for DataFrames, of any job."""

    def check(self, file: str) -> None:
        """Raise `CorruptFile` unless `file` is such a file."""
        names = file.split("/")
        is_file = names[-1].startswith("part-") and PurePosixPath(file).suffix == ".parquet"
        for depth in _DEPTHS:
            landing, landed = "/".join(names[:-depth]), names[-depth:]
            is_inside = file.startswith("/") and len(names) > depth and all(map(is_plain, landed))
            if is_inside and landed[1] == INPUTS and is_file and leads_below(landing, file):
                return
        raise crafted(file, "no job lands DataFrames there")
