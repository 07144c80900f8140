"""From HTTP requests to answers: the application that the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.web.access import Access
from penstock.web.answers.asking import Asked, Refused
from penstock.web.answers.own import head, shown
from penstock.web.changes import changes
from penstock.web.openapi import openapi
from penstock.web.routes import Content, Found, NotAllowed, Route, Table, further_route
from penstock.web.watched_jobs import WatchedJobs

log = logging.getLogger(__name__)

LARGEST_BODY = 65_536
BODY_WITHIN_S = 10.0
MOST_STREAMS = 32
MOST_READERS = 2
"""How many requests read files at the same time."""
STREAM_EVERY_S = 0.25
LONGEST_QUERY = 16_384

PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}
SECURITY = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Penstock</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="login.css">
<h1>Penstock</h1>{said}<form method="post" action="/penstock/login">
<label>Token <input type="password" name="token" autocomplete="current-password" autofocus></label>
<button>Log in</button></form></html>"""


class App:
    """The application of one server."""

    def __init__(
        self,
        *,
        jobs: WatchedJobs,
        routes: list[Route],
        access: Access,
        about: Callable[[], Mapping[str, Any]],
        more: Mapping[str, Callable[[WatchedJobs], tuple[bytes, str]]] | None = None,
        page: Path = PAGE,
    ) -> None:
        """`more` are further addresses that are answered by GET, with a body and its type."""
        self._jobs = jobs
        further = [further_route(path) for path in more or {}]
        self._table = Table([*routes, *further])
        self._access = access
        self._about = about
        self._more = dict(more or {})
        self._page = page.resolve()
        self._streams = 0
        self._readers = asyncio.Semaphore(MOST_READERS)
        self._openapi = msgspec.json.encode(
            openapi(self._table.routes, version=str(about()["version"]), needs_token=access.needs_token)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            return
        except Refused as refused:
            response = _refusal(refused)
        except Exception:
            # What went wrong is for the log: the answer must not tell a stranger about this process.
            log.exception("the page could not answer %s %s", scope["method"], scope["path"][:200])
            response = _json({"errors": ["Internal server error.", "The log of the driver says why."]}, 500)
        for name, value in SECURITY.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        method, path = request.method, request.scope["path"]
        if "\0" in path or len(request.scope["query_string"]) > LONGEST_QUERY:
            raise Refused(400, "this address is not well-formed")
        headers = {name.lower(): value for name, value in request.headers.items()}
        found: Found | Refused
        try:
            found = self._table.find(method, path)
        except Refused as refused:
            found = refused
        changes_something = method not in ("GET", "HEAD", "OPTIONS") or (
            isinstance(found, Found) and found.route.changes
        )
        verdict = self._access.check(method, path, headers, changes=changes_something)
        if verdict is not None:
            if verdict.must_log_in and method == "GET" and "text/html" in headers.get("accept", ""):
                return Response(status_code=303, headers={"location": "/penstock/login"})
            response = _json({"errors": [verdict.text]}, verdict.status)
            if verdict.must_log_in:
                response.headers["www-authenticate"] = "Bearer"
            return response
        if isinstance(found, Found):
            return await self._by_name(request, found)
        if isinstance(found, NotAllowed):
            if method == "OPTIONS":
                return Response(status_code=204, headers={"allow": ", ".join(found.methods)})
            response = _refusal(found)
            response.headers["allow"] = ", ".join(found.methods)
            return response
        if method in ("GET", "HEAD") and (asset := self._asset(path)) is not None:
            return asset
        raise found

    # --- answers from documents ------------------------------------------------------------

    async def _answer(self, request: Request, found: Found) -> Response:
        route = found.route
        body = await _body(request) if route.body is not None or route.method not in ("GET", "HEAD") else {}
        await self._jobs.refresh()
        asked = Asked(
            documents=self._jobs.documents,
            about=self._about(),
            history=self._jobs.history,
            path=found.path,
            query=_query(request),
            body=body,
        )
        if route.blocks:
            async with self._readers:
                answer = await asyncio.to_thread(route.answer, asked)
        else:
            answer = route.answer(asked)
        if route.content is Content.TEXT:
            return Response(str(answer), route.status, media_type="text/plain; charset=utf-8")
        return _json(answer, route.status)

    # --- addresses of other kinds ----------------------------------------------------------

    async def _by_name(self, request: Request, found: Found) -> Response:
        match found.route.by:
            case "stream":
                return await self._stream(request)
            case "description":
                return Response(self._openapi, media_type="application/json")
            case "login":
                return await self._log_in(request)
            case "further":
                await self._jobs.refresh()
                content, kind = self._more[found.route.path](self._jobs)
                return Response(content, headers={"content-type": kind})
            case _:
                return await self._answer(request, found)

    async def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(_LOGIN.format(said=""), media_type="text/html")
        content = await _content(request)
        given = ""
        for part in content.decode("utf-8", "replace").split("&"):
            name, _, value = part.partition("=")
            if name == "token":
                given = unquote_plus(value)
        if not self._access.is_token(given):
            text = _LOGIN.format(said=f"<p>{escape('The token is wrong.')}</p>")
            return Response(text, 401, media_type="text/html")
        return Response(status_code=303, headers={"location": "/", "set-cookie": self._access.cookie()})

    def _asset(self, path: str) -> Response | None:
        """A file of the page. Only files that lie in the folder of the page, and whose type is known."""
        name = path.strip("/") or "index.html"
        parts = name.split("/")
        if any(part in ("", ".", "..") or part.startswith(".") or "\\" in part for part in parts):
            return None
        file = self._page.joinpath(*parts)
        kind = _TYPES.get(file.suffix)
        try:
            if kind is None or not file.is_file() or not file.resolve().is_relative_to(self._page):
                return None
            content = file.read_bytes()
        except OSError:
            return None
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})

    # --- the stream ------------------------------------------------------------------------

    async def _stream(self, request: Request) -> Response:
        wanted = _query(request).get("job")
        await self._jobs.refresh()
        if wanted is not None:
            _ = Asked(documents=self._jobs.documents, about={}, path={"jobid": wanted}).job
        if self._streams >= MOST_STREAMS:
            raise Refused(503, f"{MOST_STREAMS} pages are open; close one, or ask /penstock/jobs instead")
        return StreamingResponse(self._events(request, wanted), media_type="text/event-stream")

    async def _events(self, request: Request, wanted: str | None) -> Any:
        """A whole picture first, and then what changes, a few times a second at most."""
        self._streams += 1
        try:
            sent = self._picture(wanted)
            yield _event("snapshot", sent)
            quiet_s = 0.0
            while not await request.is_disconnected():
                await asyncio.sleep(STREAM_EVERY_S)
                await self._jobs.refresh()
                now = self._picture(wanted)
                made = changes(sent, now)
                quiet_s = 0.0 if made else quiet_s + STREAM_EVERY_S
                if made:
                    yield _event("changes", made)
                elif quiet_s >= 10.0:
                    quiet_s = 0.0
                    yield b": still here\n\n"
                sent = now
        finally:
            self._streams -= 1

    def _picture(self, wanted: str | None) -> dict[str, Any]:
        documents = self._jobs.documents
        found: dict[str, Any] = {"jobs": {key: head(job) for key, job in documents.items()}}
        if wanted is not None:
            found["job"] = shown(documents[wanted]) if wanted in documents else None
        return found


def _event(kind: str, content: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, headers={"content-type": "application/json; charset=UTF-8"})


def _refusal(refused: Refused) -> Response:
    texts = ["\n  hint: ".join(refused.texts)] if refused.status < 500 else list(refused.texts)
    return _json({"errors": texts}, refused.status)


def _query(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, value)
    return found


async def _content(request: Request) -> bytes:
    """The body of a request, if it comes in time and is not too large."""
    given = request.headers.get("content-length", "0")
    if given.isascii() and given.isdigit() and len(given) < 19 and int(given) > LARGEST_BODY:
        raise Refused(413, f"the body has more than {LARGEST_BODY} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST_BODY:
                    raise Refused(413, f"the body has more than {LARGEST_BODY} bytes")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_WITHIN_S:.0f} s") from None
    return b"".join(parts)


async def _body(request: Request) -> dict[str, Any]:
    """The body as JSON; an empty body is an empty object."""
    content = await _content(request)
    if not content.strip():
        return {}
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(400, "Request did not match expected format: the body is no JSON.") from None
    if not isinstance(found, dict):
        raise Refused(400, "Request did not match expected format: the body is no JSON object.")
    return found
