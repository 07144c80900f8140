"""Who may ask, and from where.

The server of a job can stop the job. Without a token it listens on loopback only, and everybody on the host may ask.
But a web page elsewhere must not: the browser of a user carries requests of any page to any address. So a request is
refused if

* its `Host` is a name that is not known here (a page elsewhere may have its own name lead to this host: DNS rebinding);
* the browser says that it comes from another site (`Origin`, `Sec-Fetch-Site`), unless it is a link that was followed;
* it changes something by GET, and nothing proves that it comes from this server's own page, or from a client with the
  token.

With a token, every request must have it: in the header `Authorization: Bearer …`, or in the cookie that the login page
sets. Tokens are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

COOKIE = "penstock-session"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OPEN = ("/penstock/login", "/penstock/login.css")
"""What may be asked without the token."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a request is refused."""

    status: int
    text: str
    must_log_in: bool = False


class Access:
    """The rules of one server."""

    def __init__(self, *, token: str | None, hosts: Collection[str], is_secure: bool = False) -> None:
        """`hosts` are the names by which the server may be asked, besides those of loopback."""
        self._token = None if token is None else token.encode()
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._is_secure = is_secure

    @property
    def needs_token(self) -> bool:
        """Whether a request needs the token."""
        return self._token is not None

    def check(self, method: str, path: str, headers: Mapping[str, str], *, changes: bool) -> Verdict | None:
        """Why a request is refused; None if it is answered. The names of headers are in lower case."""
        host = headers.get("host", "")
        # A page elsewhere cannot know the token, whatever its name leads to: the cookie belongs to the other name.
        if self._token is None and _name_of(host) not in self._hosts:
            return Verdict(status=421, text=f"this server is not known by the name {_name_of(host)[:200]!r}")
        if self._is_from_elsewhere(method, host, headers, changes=changes):
            return Verdict(status=403, text="this request comes from a page of another site")
        has_header = self._has_header(headers)
        if self._token is not None and path not in OPEN and not has_header and not self._has_cookie(headers):
            return Verdict(status=401, text="the token is missing or wrong", must_log_in=True)
        if changes and method in ("GET", "HEAD") and not has_header and not _is_own_page(host, headers):
            text = "a GET that changes something is answered only to this server's own page, or with the token"
            return Verdict(status=403, text=text)
        return None

    def _is_from_elsewhere(self, method: str, host: str, headers: Mapping[str, str], *, changes: bool) -> bool:
        origin = headers.get("origin")
        if origin is not None and _place_of(origin) != host.lower():
            return True
        site = headers.get("sec-fetch-site", "none").lower()
        if site in ("same-origin", "none"):
            return False
        is_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET" and not changes
        return not is_link

    # --- tokens --------------------------------------------------------------------------

    def _has_header(self, headers: Mapping[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(given.strip())

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        # Both are hashed, so that the time says nothing about the length either.
        return self._token is not None and hmac.compare_digest(_digest(given.encode()), _digest(self._token))

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._session().encode())

    def _session(self) -> str:
        """What the cookie says: it is made from the token, and the token cannot be found from it."""
        return hmac.new(self._token or b"", b"penstock session", hashlib.sha256).hexdigest()

    def cookie(self) -> str:
        """The header that sets the cookie."""
        secure = "; Secure" if self._is_secure else ""
        return f"{COOKIE}={self._session()}; Path=/; HttpOnly; SameSite=Strict; Max-Age=86400{secure}"


def _digest(given: bytes) -> bytes:
    return hashlib.sha256(given).digest()


def _name_of(host: str) -> str:
    """A `Host` without its port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _place_of(url: str) -> str:
    """Host and port of an `Origin` or a `Referer`, as a `Host` would have them; empty if there are none."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _is_own_page(host: str, headers: Mapping[str, str]) -> bool:
    """Whether something proves that a request comes from a page of this server."""
    if "sec-fetch-site" in headers:
        return headers["sec-fetch-site"].lower() == "same-origin"
    given = headers.get("origin") or headers.get("referer")
    return bool(given) and _place_of(given or "") == host.lower()
