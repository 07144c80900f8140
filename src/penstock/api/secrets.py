"""Passwords and keys that a program names and does not contain."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import UsageError

_KINDS = ("env", "file")


@dataclass(frozen=True)
class Secret:
    """A reference to a secret. The secret itself is read where it is used, in the process that uses it: so it is in no
    plan, no checkpoint, no log and no text of an error. `secret` makes references."""

    reference: str

    def reveal(self) -> str:
        """The secret. Raises `UsageError` if this process does not have the secret."""
        kind, _, place = self.reference.partition(":")
        if kind == "env":
            found = os.environ.get(place)
            if found is None:
                raise UsageError(
                    f"the environment variable {place} is not set in this process, and a secret is to be read from it",
                    hint="set the variable for the driver and for the executors; on a cluster with "
                    f"spark.executorEnv.{place}, or use ps.secret('file:...') with a mounted file",
                )
            return found
        try:
            return Path(place).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"the file {place!r} with a secret cannot be read: {error}",
                hint="the driver and all executors need the file at the same path",
            ) from error

    def __str__(self) -> str:
        return f"secret({self.reference!r})"


def secret(reference: str) -> Secret:
    """A password or key that is read where it is used: "env:NAME" from an environment variable, "file:/path" from the
    text of a file. The text of the program, its plan, its checkpoints and its logs have the reference only.

    >>> import penstock as ps
    >>> print(ps.secret("env:KAFKA_PASSWORD"))
    secret('env:KAFKA_PASSWORD')
    """
    kind, _, place = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if kind not in _KINDS or not place:
        raise UsageError(
            "ps.secret needs a reference, and was given something else",
            hint="write ps.secret('env:NAME') or ps.secret('file:/path'); do not write the secret itself",
        )
    return Secret(reference)
