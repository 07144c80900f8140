"""An S3 server of this host, in a process of its own: what the tests of object storage talk to.

It keeps its objects while it is told to stop and start listening, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What a client of the server must have in its environment."""
CONDITIONS = "PENSTOCK_TEST_S3_CONDITIONS"


class S3Server:
    """A server on loopback, with a bucket named `bucket`."""

    def __init__(self, *, allows: int | None = None, conditions: str = "heeded") -> None:
        """With `allows`, only so many calls are let through for whoever comes; then credentials count. Conditions of
        uploads may be `heeded`, `ignored`, as by a server that does not know them, or `refused`."""
        environment = {**os.environ, **CREDENTIALS, CONDITIONS: conditions}
        if allows is not None:
            environment["INITIAL_NO_AUTH_ACTION_COUNT"] = str(allows)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.port = int(self._answer())
        self._request("bucket", method="PUT")

    @property
    def pid(self) -> int:
        return self._process.pid

    def uri(self, path: str, **options: str) -> str:
        """The URI of `path` in the bucket."""
        query = {"endpoint_override": f"127.0.0.1:{self.port}", "scheme": "http", "region": "us-east-1", **options}
        return f"s3://bucket/{path}?" + "&".join(f"{key}={value}" for key, value in query.items())

    def stop(self) -> None:
        """Connections are refused from here on."""
        self._say("stop")

    def start(self) -> None:
        """Listen again, at the same port, with the same objects."""
        self._say("start")

    def keys(self) -> list[str]:
        """All objects there are, folder markers too."""
        return list(json.loads(self._say("keys")))

    def uploads(self) -> int:
        """How many uploads in parts have begun and not been completed."""
        return int(self._say("uploads"))

    def hold_parts(self) -> None:
        """Parts of uploads are taken in, and not answered before `release_parts`."""
        self._say("hold")

    def parts_held(self) -> int:
        """How many parts wait for their answer."""
        return int(self._say("held"))

    def release_parts(self) -> None:
        self._say("release")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)
        self._process.stdout.close()

    def _say(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the S3 server has ended"
        return line.strip()

    def _request(self, path: str, *, method: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=120):
            pass


class Gate:
    """The application, with a gate before the parts of uploads, and one upload with a condition at a time: moto looks
    whether an object is there, and only then stores it."""

    def __init__(self, app: Any, conditions: str) -> None:
        self._app = app
        self._conditions = conditions
        self._one_by_one = threading.Lock()
        self._lock = threading.Lock()
        self.is_open = threading.Event()
        self.is_open.set()
        self.waiting = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if "partNumber=" in environ.get("QUERY_STRING", ""):
            with self._lock:
                self.waiting += 1
            self.is_open.wait()
            with self._lock:
                self.waiting -= 1
        if environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ:
            if self._conditions == "refused":
                start_response("501 Not Implemented", [])
                return [b"<Error><Code>NotImplemented</Code></Error>"]
            if self._conditions == "ignored":
                del environ["HTTP_IF_NONE_MATCH"]
            with self._one_by_one:
                return self._app(environ, start_response)
        return self._app(environ, start_response)


def serve() -> None:
    """Be the server."""
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from ports import own_port

    app = Gate(DomainDispatcherApplication(create_backend_app), os.environ[CONDITIONS])
    port = own_port()
    server = _listen(app, port)
    print(port, flush=True)
    for line in sys.stdin:
        buckets = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.values()
        answer = "done"
        match line.strip():
            case "stop":
                server.shutdown()
                server.server_close()
            case "start":
                server = _listen(app, port)
            case "hold":
                app.is_open.clear()
            case "held":
                answer = str(app.waiting)
            case "release":
                app.is_open.set()
            case "keys":
                answer = json.dumps(sorted(key for bucket in buckets for key in bucket.keys))
            case "uploads":
                answer = str(sum(len(bucket.multiparts) for bucket in buckets))
        print(answer, flush=True)


def _listen(app: Any, port: int) -> BaseWSGIServer:
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", port, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    serve()
