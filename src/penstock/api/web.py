"""How a user says where the page of a program listens, and who may ask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.errors import SettingsError
from penstock.core.recovery import roots

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FIRST_PORT = 8081
_LEAST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class Web:
    """Options for the page and the REST interface of a program, for `Environment(web=...)`.

    >>> import penstock as ps
    >>> ps.Web(port=9000).port
    9000
    >>> ps.Web(host="::1").token is None  # other hosts cannot reach it, so it needs no token
    True
    """

    host: str = "127.0.0.1"
    """The address to listen at. An address that other hosts can reach needs a `token`."""
    port: int | None = None
    """The port. None: 8081, or the first port after 8081 that is free. 0: any free port."""
    token: str | os.PathLike[str] | None = field(default=None, repr=False)
    """A secret of at least 16 characters, or the path of a file with the secret. With a token every request must have
    it: in the header `Authorization: Bearer ...`, or by the login page."""
    names: Sequence[str] = ()
    """Further names by which browsers reach the server, for example behind a proxy. A request with any other name is
    refused."""
    archive: str | os.PathLike[str] | None = None
    """A folder into which the last picture of each job that has ended is written; `penstock history` shows it."""
    history: int = 50
    """How many jobs that have ended stay visible."""
    savepoint_directories: Sequence[str | os.PathLike[str]] = ()
    """Folders, besides the checkpoint directory, below which requests may have savepoints written and deleted."""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise SettingsError(problems)

    def _problems(self) -> list[str]:
        problems: list[str] = []
        if not isinstance(self.host, str) or not self.host.strip():
            problems.append(f"host is {self.host!r}; give an address of this host, for example '127.0.0.1'")
        elif self.host not in LOOPBACK and self.token is None:
            problems.append(f"host is {self.host!r}, which other hosts can reach, and there is no token; give token=")
        is_port = isinstance(self.port, int) and not isinstance(self.port, bool) and 0 <= self.port <= 65_535
        if self.port is not None and not is_port:
            problems.append(f"port is {self.port!r}; give a whole number from 0 to 65535, or None")
        if isinstance(self.history, bool) or not isinstance(self.history, int) or self.history < 0:
            problems.append(f"history is {self.history!r}; give a whole number from 0")
        problems += _problems_with_token(self.token)
        for name, given in (("names", self.names), ("savepoint_directories", self.savepoint_directories)):
            if isinstance(given, str | bytes) or not isinstance(given, Sequence):
                problems.append(f"{name} is {given!r}; give a list")
        return problems

    @property
    def secret(self) -> str | None:
        """The token. A token file is read every time."""
        return None if self.token is None else _secret_of(self.token)

    @property
    def folders(self) -> tuple[str, ...]:
        """The savepoint directories as full paths or URIs."""
        given = [os.fspath(folder) for folder in self.savepoint_directories]
        return tuple(f if roots.scheme_of(f) is not None else str(Path(f).expanduser().absolute()) for f in given)


def _secret_of(given: str | os.PathLike[str]) -> str:
    return given if isinstance(given, str) else Path(given).expanduser().read_text(encoding="utf-8").strip()


def _problems_with_token(given: object) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, str | os.PathLike):
        return [f"token is a {type(given).__name__}; give a text, or the path of a file"]
    if not isinstance(given, str):
        try:
            if Path(given).expanduser().stat().st_mode & 0o077:
                return [f"token: other users can read the file {os.fspath(given)}; give the file mode 0600"]
        except OSError as error:
            return [f"token: the file {os.fspath(given)} cannot be read: {error.strerror}"]
    secret = _secret_of(given)
    if len(secret) < _LEAST_TOKEN:
        return [f"token has {len(secret)} characters; give at least {_LEAST_TOKEN}"]
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        return ["token has characters that a header cannot have; give printable ASCII without blanks"]
    return []
