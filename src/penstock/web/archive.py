"""A folder with the last pictures of jobs that have ended."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import msgspec

from penstock.web.ids import is_id

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{32}\.json")
LARGEST_BYTES = 64 * 1_048_576


class Archive:
    """One folder, with one file per job."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser().absolute()

    def write(self, document: dict[str, Any]) -> None:
        """Keep a picture. A folder that cannot be written costs the picture, and not the job."""
        name = f"{document['id']}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The file appears as a whole.
            partial = self._folder / f".{name}.partial"
            partial.write_bytes(msgspec.json.encode(document))
            partial.replace(self._folder / name)
        except OSError as error:
            log.warning("the picture of job %r could not be kept in %s: %s", document["name"], self._folder, error)

    def read(self) -> dict[str, dict[str, Any]]:
        """All pictures, by the id of the job, the job that ended last first. Files that are no pictures are left
        out."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            if _NAME.fullmatch(file.name) is None or not file.is_file() or file.stat().st_size > LARGEST_BYTES:
                continue
            try:
                document = msgspec.json.decode(file.read_bytes())
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s is no picture of a job: %s", file, error)
                continue
            if isinstance(document, dict) and is_id(str(document.get("id"))) and document.get("format") == 1:
                found.append(document)
        found.sort(key=lambda document: -(document.get("ended") or 0))
        return {document["id"]: document for document in found}
