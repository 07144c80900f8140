"""Which request creates an object for one of several writers only, as a server sees it."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from penstock.storage.exclusive import Unsupported, open_exclusive


class Bucket(http.server.ThreadingHTTPServer):
    """Answers every upload with the next of the given statuses, and notes its path and condition."""

    def __init__(self, statuses: list[int]) -> None:
        self.statuses = statuses
        self.uploads: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), Answers)


class Answers(http.server.BaseHTTPRequestHandler):
    server: Bucket

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.uploads.append((self.path, self.headers["x-goog-if-generation-match"]))
        self.send_response(self.server.statuses.pop(0))
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing is said."""


@pytest.fixture
def on_google(tmp_path, monkeypatch):
    """Opens what creates objects in Google Cloud Storage, at a server of this host that answers as it is told."""
    servers: list[Bucket] = []

    def opened(*statuses: int):
        server = Bucket(list(statuses))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        account = {"gcs_base_url": base, "disable_oauth": True, "client_email": "", "private_key": ""}
        (tmp_path / "account.json").write_text(json.dumps({**account, "private_key_id": ""}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
        create = open_exclusive("gs://bucket/x", None, "bucket")
        assert not isinstance(create, str)
        return server, create

    yield opened
    for server in servers:
        server.shutdown()
        server.server_close()


def test_google_is_asked_for_an_object_that_has_no_generation_yet(on_google):
    server, create = on_google(200, 412)
    assert create("x/names/%2Ea", b"first")
    assert not create("x/names/%2Ea", b"second")
    assert server.uploads == [("/bucket/x%2Fnames%2F%252Ea", "0")] * 2


def test_an_answer_that_got_lost_never_makes_a_second_winner(on_google):
    _, create = on_google(500, 412)
    assert not create("x/a", b"it was stored, and the service failed to say so")


def test_rights_that_are_missing_are_an_error_and_not_a_service_without_conditions(on_google):
    _, create = on_google(403, 405)
    with pytest.raises(OSError, match="403"):
        create("x/a", b"")
    with pytest.raises(Unsupported, match="405"):
        create("x/a", b"")
