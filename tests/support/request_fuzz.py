"""Hostile requests to the server of the page, from one seed.

    python tests/support/request_fuzz.py 100000 [seed]     sends so many, and says what came back

Half of the requests are made from the list of addresses, with parameters, bodies and headers that are right, nearly
right, or rubbish; the others are bytes that are hardly HTTP at all, sent to a server that listens. The server must
answer every request, and never with an error of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections import Counter
from urllib.parse import quote

from web_rig import KEY, SOURCE, WINDOW, Rig

WORDS = (KEY, SOURCE, WINDOW, "0", "1", "2", "3", "99", "-1", "zz", "", "..", "%00", "NaN", "9" * 40, "é", "a" * 300)
VALUES = (
    *WORDS,
    "CONFIGURED",
    "FULL",
    "NATIVE",
    "/data/checkpoints/x",
    "/etc",
    "s3://b/x",
    "cancel",
    "stop",
    "1-2",
    "0,1",
)
NAMES = (
    *("get", "agg", "subtasks", "jobs", "taskmanagers", "maxExceptions", "failureLabelFilter", "mode", "type"),
    *("parallelism", "details", "job", "subtaskindex"),
)
FIELDS = (
    *("triggerId", "target-directory", "targetDirectory", "drain", "cancel-job", "formatType", "checkpointType"),
    *("savepoint-path", SOURCE, WINDOW, "parallelism", "lowerBound", "upperBound"),
)
METHODS = ("GET", "GET", "GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW")


class Fuzz:
    """A stream of requests."""

    def __init__(self, routes, seed):
        self._draw = random.Random(seed)
        self._routes = [route for route in routes if route.by != "stream"]

    def request(self):
        """Method, path, query, headers and body."""
        draw = self._draw
        route = draw.choice(self._routes)
        parts = [
            draw.choice(WORDS) if part.startswith(":") and draw.random() < 0.6 else part for part in _filled(route)
        ]
        path = "/".join(parts)
        if draw.random() < 0.3:
            path = f"/v1{path}"
        if draw.random() < 0.1:
            path = path[: draw.randrange(len(path) + 1)] or "/"
        if draw.random() < 0.05:
            path += draw.choice(("/", "//", "/..", "/%2e%2e", "/\0", "?", "#"))
        method = route.method if draw.random() < 0.8 else draw.choice(METHODS)
        return method, path, self._query(), self._headers(), self._body()

    def _query(self):
        draw = self._draw
        pairs = [(draw.choice(NAMES), draw.choice(VALUES)) for _ in range(draw.randrange(3))]
        text = "&".join(f"{name}={quote(value) if draw.random() < 0.8 else value}" for name, value in pairs)
        return text.encode("utf-8", "replace")

    def _headers(self):
        draw, headers = self._draw, {"host": "127.0.0.1:8081"}
        for name, values in (
            ("host", ("evil", "", "localhost", "\x7f", "[::1", "127.0.0.1:x")),
            ("origin", ("http://127.0.0.1:8081", "null", "http://[", "é")),
            ("referer", ("http://127.0.0.1:8081/", "http://[x", "")),
            ("sec-fetch-site", ("same-origin", "cross-site", "x")),
            ("cookie", ("penstock-session=x", "a=b; ;;=", "\x01")),
            ("authorization", ("Bearer x", "Bearer", "x" * 1_000)),
            ("content-type", ("application/json", "text/plain", "multipart/form-data", "")),
            ("content-length", ("5", "-1", "99999999999999999999", "x")),
            ("accept", ("text/html", "*/*", "x")),
        ):
            if draw.random() < 0.08:
                headers[name] = draw.choice(values)
        return headers

    def _body(self):
        draw = self._draw
        kind = draw.randrange(6)
        if kind == 0:
            return b""
        if kind == 1:
            return draw.randbytes(draw.randrange(200))
        if kind == 2:
            return b"[" * draw.randrange(5_000)
        return json.dumps(self._value(3)).encode()

    def _value(self, depth):
        draw = self._draw
        kind = draw.randrange(8 if depth else 5)
        if kind >= 5:
            return {draw.choice(FIELDS): self._value(depth - 1) for _ in range(draw.randrange(5))}
        return draw.choice(((None, True, False), VALUES, (0, 1, 5, -1, 1e300, 2**70), ([],), ([{}],))[kind])


def _filled(route):
    """The parts of the path of a route, with parameters that exist."""
    known = {"jobid": KEY, "vertexid": WINDOW, "checkpointid": "3", "subtaskindex": "1", "attempt": "1"}
    known |= {"taskmanagerid": "bids-1-slot-0.1.0", "triggerid": "0" * 31 + "1"}
    return [known.get(part[1:], part) if part.startswith(":") else part for part in route.path.split("/")]


async def ask(app, request):
    """Send one request to the application, without a network. Returns the status and the body."""
    method, path, query, headers, body = request
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query,
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8081),
    }
    parts, status, sent = [], [], [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return sent.pop() if sent else {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start":
            status.append(message["status"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status[0] if status else None, b"".join(parts)


async def send_all(rig, count, seed):
    """Send `count` requests. Returns how often each status came, and the requests that went wrong."""
    fuzz, statuses, wrong = Fuzz(rig.routes, seed), Counter(), []
    for _ in range(count):
        request = fuzz.request()
        try:
            status, body = await ask(rig.app, request)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is found
            wrong.append((request, repr(error)))
            continue
        statuses[status] += 1
        if status is None or status == 500:
            wrong.append((request, body))
        elif status >= 400 and request[0] != "HEAD" and status != 401:
            found = json.loads(body)
            if list(found) != ["errors"]:
                wrong.append((request, body))
    return statuses, wrong


# --- bytes that are hardly HTTP ------------------------------------------------------------


def raw_bytes(draw):
    """What a broken client sends."""
    line = b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    return draw.choice(
        (
            draw.randbytes(draw.randrange(1, 400)),
            line + b"\r\n",
            line + b"X: " + b"a" * draw.choice((100, 70_000)) + b"\r\n\r\n",
            line + b"Content-Length: 10\r\n\r\nabc",
            line + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            line + b"Host: two\r\n\r\n",
            line.replace(b"HTTP/1.1", draw.choice((b"HTTP/9.9", b"", b"HTTP/1.0"))) + b"\r\n",
            line.replace(b"/jobs", quote(draw.choice(WORDS)).encode() or b"/") + b"\r\n",
            b"GET http://evil/jobs HTTP/1.1\r\nHost: evil\r\n\r\n",
            b"\r\n" * 50,
        )
    )


def send_raw(port, count, seed):
    """Send so many of them to a port. Returns how often each first line of an answer came."""
    draw, answers = random.Random(seed), Counter()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            try:
                connection.sendall(raw_bytes(draw))
                connection.shutdown(socket.SHUT_WR)
                first = connection.recv(64).split(b"\r\n")[0]
            except ConnectionError:
                first = b"closed"
        answers[first.decode("latin-1")] += 1
    return answers


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rig = Rig()
    statuses, wrong = asyncio.run(send_all(rig, count, seed))
    rig.close()
    print(f"{count} requests from seed {seed}: {dict(sorted(statuses.items()))}, {len(wrong)} wrong")  # noqa: T201
    for each in wrong[:5]:
        print(each)  # noqa: T201
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
