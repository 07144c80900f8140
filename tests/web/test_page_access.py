"""Who may ask: no page elsewhere, nobody without the token if there is one, and only this page by GET."""

from __future__ import annotations

import pytest
from web_rig import KEY, Rig

TOKEN = "a-secret-of-some-length"


@pytest.fixture
def guarded():
    made = Rig(token=TOKEN)
    yield made
    made.close()


@pytest.mark.parametrize("host", ["127.0.0.1:8081", "localhost:9", "[::1]:8081", "LOCALHOST"])
def test_names_of_loopback_are_known(rig, host):
    assert rig.ask("GET", "/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.com", "127.0.0.1.evil.com:8081", "", "127.0.0.1@evil.com", "localhost.evil"])
def test_a_page_whose_name_leads_here_is_refused(rig, host):
    assert rig.ask("GET", "/jobs", headers={"host": host}).status_code == 421


def test_further_names_can_be_allowed():
    rig = Rig(hosts=["jobs.example.com"])
    assert rig.ask("GET", "/jobs", headers={"host": "jobs.example.com:80"}).status_code == 200
    rig.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.com"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "rubbish"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "stop"), ("PATCH", ""), ("GET", "checkpoints")])
def test_a_page_of_another_site_is_refused(rig, headers, method, path):
    assert rig.ask(method, f"/jobs/{KEY}/{path}", headers=headers).status_code == 403
    assert rig.job.did == []


def test_a_link_from_another_site_may_be_followed_but_changes_nothing(rig):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert rig.ask("GET", "/", headers=headers).status_code == 200
    assert rig.ask("GET", f"/jobs/{KEY}/yarn-cancel", headers=headers).status_code == 403
    assert rig.job.did == []


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "none"}, {"referer": "http://evil.com/x"}])
def test_a_get_that_cancels_needs_a_proof_that_the_page_is_ours(rig, headers):
    assert rig.ask("GET", f"/jobs/{KEY}/yarn-cancel", headers=headers).status_code == 403
    assert rig.ask("GET", f"/jobs/{KEY}/yarn-stop", headers=headers).status_code == 403
    assert rig.ask("HEAD", f"/jobs/{KEY}/yarn-cancel", headers=headers).status_code == 403
    assert rig.job.did == []


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"referer": "http://127.0.0.1:8081/#/job"}])
def test_the_button_of_flinks_page_cancels(rig, headers):
    answer = rig.ask("GET", f"/jobs/{KEY}/yarn-cancel", headers=headers)
    assert (answer.status_code, answer.json()) == (202, {})
    assert rig.job.did == [("cancel",)]


# --- tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong-but-just-as-long"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": "Bearer"},
        {"cookie": f"penstock-session={TOKEN}"},
        {"cookie": "penstock-session="},
        {"cookie": "\x01=;;"},
    ],
)
@pytest.mark.parametrize("path", ["/jobs", "/openapi.json", "/penstock/stream", "/metrics", "/", "/nothing"])
def test_nothing_is_told_without_the_token(guarded, headers, path):
    answer = guarded.ask("GET", path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY not in answer.text


def test_the_token_in_the_header_opens_everything(guarded):
    headers = {"authorization": f"bearer {TOKEN}", "host": "any.name"}
    assert guarded.ask("GET", "/jobs", headers=headers).status_code == 200
    assert guarded.ask("GET", f"/jobs/{KEY}/yarn-cancel", headers=headers).status_code == 202


def test_the_login_page_gives_a_cookie_that_does_not_show_the_token(guarded):
    wrong = guarded.ask("POST", "/penstock/login", data={"token": "x"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    right = guarded.ask("POST", "/penstock/login", data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    value = cookie.partition(";")[0]
    assert guarded.ask("GET", "/jobs", headers={"cookie": value}).status_code == 200
    # The cookie alone does not prove where a request comes from.
    assert guarded.ask("GET", f"/jobs/{KEY}/yarn-cancel", headers={"cookie": value}).status_code == 403
    elsewhere = {"cookie": value, "origin": "http://evil.com"}
    assert guarded.ask("POST", f"/jobs/{KEY}/stop", headers=elsewhere).status_code == 403
    assert guarded.job.did == []


def test_a_browser_is_sent_to_the_login_page(guarded):
    answer = guarded.ask("GET", "/", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/penstock/login")
    assert guarded.ask("GET", "/penstock/login").status_code == 200


# --- files of the page -------------------------------------------------------------------


def test_the_page_may_load_only_its_own_files(rig):
    answer = rig.ask("GET", "/")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path",
    ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/.hidden", "//etc/passwd", "/%2fetc/passwd", "/index.html%00.js"],
)
def test_only_files_of_the_page_are_served(rig, path):
    answer = rig.ask("GET", path)
    assert answer.status_code in (400, 404)
    assert "import" not in answer.text
