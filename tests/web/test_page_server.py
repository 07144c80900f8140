"""The server of a process: where it listens, what it does to the program's log, and how it ends."""

from __future__ import annotations

import logging
import socket

import httpx
import pytest
from web_rig import KEY, Played

import penstock as ps
from penstock.core.errors import HostError, SettingsError
from penstock.spark import page
from penstock.web import server
from penstock.web.logs import RecentLines


@pytest.fixture
def closed():
    yield
    server.close()


def show(web):
    played = Played()
    return server.show(
        web, job="bids-1", name="bids", driven=played, ask=lambda answer: answer(played.facts), settings={}, folders=()
    )


def test_all_jobs_of_a_process_are_at_one_address(closed):
    first = show(ps.Web(port=0))
    assert show(ps.Web(port=1)) == first
    assert httpx.get(f"{first}/jobs").json() == {"jobs": [{"id": KEY, "status": "RUNNING"}]}


def test_the_next_port_is_taken_if_the_port_is_not_free(closed, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=f"port {port}"):
            show(ps.Web(port=port))
        monkeypatch.setattr(server, "FIRST_PORT", port)
        assert show(ps.Web()) != f"http://127.0.0.1:{port}"


def test_a_server_that_has_ended_answers_nothing(closed):
    address = show(ps.Web(port=0))
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/jobs")
    assert httpx.get(f"{show(ps.Web(port=0))}/jobs").status_code == 200


def test_the_log_of_the_driver_is_served(closed):
    address = show(ps.Web(port=0))
    logging.getLogger("penstock.some.part").warning("a line of %s", "log")
    (named,) = httpx.get(f"{address}/jobmanager/logs").json()["logs"]
    text = httpx.get(f"{address}/jobmanager/logs/{named['name']}").text
    assert "a line of log" in text
    assert httpx.get(f"{address}/jobmanager/log").text == text


def test_the_logs_of_slots_are_served(closed):
    address = show(ps.Web(port=0))
    manager = httpx.get(f"{address}/taskmanagers").json()["taskmanagers"][1]["id"]
    (named,) = httpx.get(f"{address}/taskmanagers/{manager}/logs").json()["logs"]
    assert named["name"] == "slot-1.log"
    text = httpx.get(f"{address}/taskmanagers/{manager}/logs/slot-1.log").text
    assert text.splitlines()[0].endswith("INFO x window[1]: it was said")
    assert httpx.get(f"{address}/taskmanagers/{manager}/stdout").text == "printed\n"
    assert httpx.get(f"{address}/taskmanagers/{manager}/logs/other").status_code == 404


def test_warnings_of_a_program_without_logging_are_still_shown(monkeypatch):
    shown, root, own = [], logging.getLogger(), logging.getLogger("penstock")

    class Last(logging.Handler):
        def emit(self, record):
            shown.append(record.getMessage())

    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(own, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", Last(logging.WARNING))
    kept = RecentLines()
    own.addHandler(kept)
    own.addHandler(RecentLines())
    logging.getLogger("penstock.some.part").warning("first")
    logging.getLogger("penstock.some.part").info("no warning")
    root.addHandler(logging.NullHandler())
    logging.getLogger("penstock.some.part").warning("second")
    assert shown == ["first"]
    assert "second" in kept.read(None, None, "penstock.log")


# --- what a user says ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host": "0.0.0.0"}, "there is no token"),
        ({"host": ""}, "host is ''"),
        ({"port": 70_000}, "port is 70000"),
        ({"port": True}, "port is True"),
        ({"token": "short"}, "at least 16"),
        ({"token": "a token with blanks in it"}, "printable ASCII"),
        ({"token": 5}, "token is a int"),
        ({"history": -1}, "history is -1"),
        ({"names": "one"}, "names is 'one'"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, told):
    with pytest.raises(SettingsError, match=told):
        ps.Web(**given)


def test_a_token_file_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="other users can read"):
        ps.Web(token=file)
    file.chmod(0o600)
    web = ps.Web(host="0.0.0.0", token=file)
    assert web.secret == "0123456789abcdef"
    assert "0123456789" not in repr(ps.Web(token="0123456789abcdef"))


def test_a_program_without_the_packages_has_no_page(monkeypatch):
    monkeypatch.setattr(page, "BY_DEFAULT", True)
    assert page.chosen_web(None) == ps.Web()
    assert page.chosen_web(False) is None
    monkeypatch.setattr(page, "NEEDED", ("no_such_package",))
    assert page.chosen_web(None) is None
    with pytest.raises(SettingsError, match=r"install penstock\[web\]"):
        page.chosen_web(True)
