"""The page in a real Chromium, with played jobs: every view, hostile names, a thousand subtasks, narrow and dark."""

from __future__ import annotations

import json

import pytest
from page_browser import NARROW, Served, is_empty
from web_rig import BEGAN, HOSTILE, KEY, NOW, SOURCE, WINDOW, make_facts

from penstock.core.job.events import JobState
from penstock.core.view_texts import duration_text, size_text
from penstock.web.changes import changes

pytestmark = pytest.mark.slow

VIEWS = ["overview", "graph", "checkpoints", "restarts", "state", "logs", "settings", "actions"]
PLACES = [
    *[(view,) for view in VIEWS],
    ("graph", SOURCE),
    ("graph", WINDOW),
    ("checkpoints", 3),
    ("checkpoints", 2),
    ("checkpoints", "newest"),
    ("restarts", 1),
    ("logs", "driver", "a.log"),
    ("actions", "stop"),
]
MANY = 1_000
TOKEN = "a token of sixteen characters"
UPDATE_MS = 100
# How long the browser takes to lay out the page after each of the next updates.
LAY_OUT = """
() => new Promise((resolve) => {
  const measured = [];
  const watch = new MutationObserver(() => {
    const began = performance.now();
    void document.body.offsetHeight;
    measured.push(performance.now() - began);
    if (measured.length < 8) return;
    watch.disconnect();
    resolve(measured);
  });
  watch.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
})
"""


@pytest.fixture
def serve():
    """Starts servers, and ends them."""
    running = []

    def start(**facts):
        running.append(Served(**facts))
        return running[-1]

    yield start
    for each in running:
        each.close()


def text_of(page):
    return page.inner_text("body")


# --- every view ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [None, NARROW], ids=["wide", "narrow"])
def test_every_view_shows_something(serve, look, browser, size, dark):
    served = serve()
    watched = look(served.address, dark=dark, **({} if size is None else {"size": size}))
    for place in PLACES:
        page = watched.view(KEY, *place)
        page.wait_for_selector("main .panel")
        assert not is_empty(browser, page.screenshot()), place
        # Nothing sticks out: what is wider scrolls in its own box.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) < 200) == dark


def test_all_jobs_are_listed_and_lead_to_their_views(serve, look):
    watched = look(serve().address)
    page = watched.open()
    page.click("#jobs a.strong")
    page.wait_for_selector(".job-head")
    for number, view in enumerate(VIEWS, start=1):
        page.keyboard.press(str(number))
        page.wait_for_function("(view) => location.hash.includes(view)", arg=f"/{view}")
    page.keyboard.press("0")
    page.wait_for_selector("#jobs")


def test_the_head_of_a_job_answers_four_questions(serve, look):
    page = look(serve().address).view(KEY)
    said = [part.inner_text() for part in page.query_selector_all(".answers > div")]
    assert [text.split("\n")[0] for text in said] == ["Healthy?", "Keeping up?", "Last checkpoint?", "A crash now?"]
    assert "after 1 restart" in said[0]
    assert "checkpoint 3 took 1.0 s" in said[2]
    assert "would be read again" in said[3]


def test_the_numbers_of_a_view_go_on(serve, look):
    served = serve()
    page = look(served.address).view(KEY, "graph")
    first = page.inner_text(".graph")
    page.wait_for_function("(first) => document.querySelector('.graph').innerText !== first", arg=first)


def test_the_timeline_of_a_checkpoint_has_a_bar_for_every_subtask_the_slowest_first(serve, look):
    page = look(serve().address).view(KEY, "checkpoints", 3)
    page.wait_for_selector(".gantt-row")
    assert len(page.query_selector_all(".gantt-row")) == 1 + 4  # the driver, and the subtasks
    assert page.inner_text(".diagnosis") == served_sentence(page)
    page.click("#timeline >> text=Numbers")
    page.wait_for_selector("#timeline table")
    page.click("#timeline th >> text=Took")
    assert page.get_attribute("#timeline th[aria-sort]", "aria-sort") == "descending"


def served_sentence(page):
    return page.evaluate(f"async () => (await (await fetch('penstock/checkpoints/{KEY}/3')).json()).sentence")


def test_a_failed_checkpoint_says_why_and_who_is_missing(serve, look):
    page = look(serve().address).view(KEY, "checkpoints", 2)
    page.wait_for_selector(".gantt-row.missing")
    assert "missing" in page.inner_text(".gantt")
    assert "failed" in page.inner_text(".diagnosis")
    assert page.query_selector_all("#failures li") != []


def test_a_restart_shows_the_traceback_of_the_user(serve, look):
    page = look(serve().address).view(KEY, "restarts")
    page.wait_for_selector(".trace pre")
    assert "ValueError: 5" in page.inner_text(".trace pre")
    assert "from checkpoint 1" in page.inner_text("#attempts")
    assert "Read again" in page.inner_text("#attempts") or "Down" in page.inner_text("#attempts")


def test_a_panel_can_be_copied_as_json(serve, look):
    watched = look(serve().address)
    watched.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = watched.view(KEY, "checkpoints")
    page.click("#counts .copy")
    page.wait_for_selector("#counts .copy:has-text('Copied')")
    found = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert found["counts"]["failed"] == 1


def test_what_a_setting_differs_in_is_said(serve, look):
    page = look(serve().address).view(KEY, "settings")
    page.fill("#settings input[type=search]", "parallelism")
    assert "the default is 1" in page.inner_text("#settings tbody tr:has-text('parallelism')")
    page.fill("#settings input[type=search]", "nothing of this name")
    assert "No setting" in page.inner_text("#settings")


def test_a_log_can_be_searched(serve, look):
    page = look(serve().address).view(KEY, "logs")
    page.wait_for_selector("pre.log")
    assert page.inner_text("pre.log").strip() == "abc"
    page.fill("#logs input[type=search]", "xyz")
    page.wait_for_function("() => document.querySelector('pre.log').innerText.trim() === ''")


# --- actions ---------------------------------------------------------------------------------------------------------


def act(page, name, fill=None):
    page.click(f".action-list >> text={name}")
    page.wait_for_selector("dialog[open]")
    if fill is not None:
        fill(page)
    page.click("dialog button[type=submit]")


@pytest.mark.parametrize(
    ("title", "fill", "did", "said"),
    [
        ("Take a checkpoint", None, ("checkpoint", False), "Checkpoint 7 has completed"),
        ("Take a checkpoint", lambda page: page.check("dialog >> text=Full"), ("checkpoint", True), "has completed"),
        ("Take a savepoint", None, ("savepoint", None, False), "/data/checkpoints/savepoints/sp-8"),
        (
            "Take a savepoint",
            lambda page: page.fill("dialog input[type=text]", "/data/checkpoints/mine"),
            ("savepoint", "/data/checkpoints/mine", False),
            "sp-8",
        ),
        ("Stop with a savepoint", None, ("stop", None, False, False), "The job has ended"),
        (
            "Stop with a savepoint",
            lambda page: page.check("dialog >> text=Drain"),
            ("stop", None, True, False),
            "The job has ended",
        ),
        (
            "Change the parallelism",
            lambda page: page.fill("dialog input[type=number]", "3"),
            ("rescale", 3),
            "runs with parallelism 3",
        ),
    ],
    ids=["checkpoint", "full", "savepoint", "folder", "stop", "drain", "rescale"],
)
def test_an_action_is_confirmed_and_its_result_is_shown(serve, look, title, fill, did, said):
    served = serve()
    page = look(served.address).view(KEY, "actions")
    act(page, title, fill)
    page.wait_for_selector("dialog .said")
    assert said in page.inner_text("dialog .said")
    assert served.job.did == [did]
    page.click("dialog >> text=Close")
    page.wait_for_selector("dialog", state="detached")
    assert said in page.inner_text("#done")


def test_an_action_can_be_left_alone(serve, look):
    served = serve()
    page = look(served.address).view(KEY, "actions")
    page.click(".action-list >> text=Cancel")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.click(".action-list >> text=Cancel")
    page.click("dialog >> text=Do nothing")
    page.wait_for_selector("dialog", state="detached")
    assert served.job.did == []


def test_cancelling_is_over_when_the_job_has_ended(serve, look):
    served = serve()
    page = look(served.address).view(KEY, "actions")
    act(page, "Cancel")
    page.wait_for_selector("dialog progress")
    served.job.facts = make_facts(JobState.CANCELLED)
    page.wait_for_selector("dialog .said")
    assert ("cancel",) in served.job.did
    page.click("dialog >> text=Close")
    page.wait_for_selector(".action-list button[disabled]")
    assert "The job has ended" in page.inner_text(".answers")


def test_progress_is_shown_and_a_failure_says_why(serve, look):
    served = serve()
    from penstock.core.errors import SnapshotFailed

    served.job.failing = SnapshotFailed("the savepoint failed: the disk is full <b>now</b>")
    served.job.gate.clear()
    page = look(served.address).view(KEY, "actions")
    act(page, "Take a savepoint")
    page.wait_for_selector("dialog progress")
    served.job.gate.set()
    page.wait_for_selector("dialog .said.bad-text")
    assert "the disk is full <b>now</b>" in page.inner_text("dialog .said")


def test_a_folder_that_is_not_allowed_is_refused_in_words(serve, look):
    watched = look(serve().address)
    page = watched.view(KEY, "actions", "savepoint")
    page.fill("dialog input[type=text]", "/etc")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .said.bad-text")
    assert "no folder that the program allows" in page.inner_text("dialog .said")
    watched.forgive("403")


# --- hostile names ---------------------------------------------------------------------------------------------------


def test_hostile_names_are_texts(serve, look):
    hostile = f"{HOSTILE}<img src=x onerror=alert(2)>&amp;'\""
    watched = look(serve(job_name=hostile, name=hostile).address)
    page = watched.open()
    assert hostile in text_of(page)
    for place in PLACES:
        page = watched.view(KEY, *place)
        page.wait_for_selector("main .panel")
        assert page.query_selector_all("main script, main img, main b.x, main iframe") == []
    page = watched.view(KEY, "graph")
    assert hostile in text_of(page)
    assert page.title().startswith(hostile)


@pytest.mark.parametrize(
    "place", ["#/job/%E0%A4%A", "#/job/<img src=x onerror=alert(1)>/graph", "#/job//..", "#/x/y/z"]
)
def test_a_hostile_address_is_harmless(serve, look, place):
    watched = look(serve().address)
    page = watched.open(place)
    page.wait_for_selector("main .empty, main #jobs")
    assert page.query_selector_all("main img") == []
    watched.forgive("40")


# --- with a token ----------------------------------------------------------------------------------------------------


def test_with_a_token_one_logs_in_first(serve, look):
    watched = look(serve(token=TOKEN).address)
    page = watched.page
    page.goto(f"{watched.address}/")
    page.fill("input[type=password]", "wrong")
    page.click("button")
    page.wait_for_selector("text=The token is wrong.")
    page.fill("input[type=password]", TOKEN)
    page.click("button")
    page.wait_for_selector(".connection.live")
    page.click("#jobs a.strong")
    page.wait_for_selector(".job-head")
    page.click(".tabs >> text=Actions")
    act(page, "Take a checkpoint")
    page.wait_for_selector("dialog .said")
    # The browser itself notes that the first token was refused.
    watched.forgive("401")


# --- a thousand subtasks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [("overview",), ("graph", WINDOW), ("checkpoints", 3)], ids=lambda place: place[0])
def test_a_thousand_subtasks_are_quick_to_show(serve, look, browser, place):
    watched = look(serve(parallelism=MANY).address)
    page = watched.view(KEY, *place)
    page.wait_for_selector(".gantt-row, #task tbody tr, #operators tbody tr")
    page.wait_for_function("() => performance.getEntriesByName('penstock-update').length >= 12", timeout=240_000)
    drawn, laid_out = watched.measured(), page.evaluate(LAY_OUT)
    # Other programs of this machine can make any update late, but none quicker than it is.
    assert min(drawn) + min(laid_out) < UPDATE_MS, (drawn, laid_out)
    # The page shows the first rows of a long table, and draws the cells of all subtasks: it does not grow with them.
    assert page.evaluate("document.querySelectorAll('*').length") < 5_000
    assert not is_empty(browser, page.screenshot())


def test_all_of_a_thousand_subtasks_can_be_seen(serve, look):
    page = look(serve(parallelism=MANY).address).view(KEY, "graph", WINDOW)
    page.wait_for_selector("#task canvas")
    rows = "#task table >> nth=1 >> tbody tr"
    assert page.locator(rows).count() == 50
    page.click("#task >> text=Show more")
    page.wait_for_function("() => document.querySelectorAll('#task tbody tr').length > 200")
    page.click("#task th >> text=Subtask")
    page.hover("#task canvas", position={"x": 4, "y": 4})
    page.wait_for_function("() => document.querySelector('#task .cells-text').innerText.includes('window[0]')")


# --- the connection --------------------------------------------------------------------------------------------------


def test_a_lost_connection_is_shown_and_comes_back(serve, look):
    served = serve()
    watched = look(served.address)
    page = watched.view(KEY, "graph")
    served.end()
    page.wait_for_selector(".lost")
    assert "No connection to the driver" in text_of(page)
    assert "window" in page.inner_text(".graph")
    served.begin()
    page.wait_for_selector(".connection.live")
    page.wait_for_selector(".lost", state="detached")
    watched.forgive("ERR_")


def test_a_job_that_has_ended_stays(serve, look):
    served = serve()
    page = look(served.address).view(KEY)
    served.job.facts = make_facts(JobState.FAILED)
    page.wait_for_selector(".answers .bad:has-text('The job has ended')")
    assert "ValueError: 5" in page.inner_text(".answers")
    page.keyboard.press("0")
    page.wait_for_selector("#jobs .state.bad")


# --- the same as elsewhere -------------------------------------------------------------------------------------------


def test_sizes_and_durations_are_said_as_the_terminal_says_them(serve, look):
    page = look(serve().address).open()
    numbers = [0, 1, 7, 12, 99.4, 999, 999.6, 1_000, 1_234, 9_949, 9_951, 59_940, 59_960, 123_456, 3_599_000, 7_384_000]
    sizes = [*numbers, 999_499, 999_501, 5.5e9, 1e15]
    found = page.evaluate(
        "async ([times, sizes]) => { const words = await import('./words.js');"
        " return [times.map(words.duration), sizes.map(words.size)]; }",
        [numbers, sizes],
    )
    assert found == [[duration_text(each) for each in numbers], [size_text(each) for each in sizes]]


def test_the_page_takes_changes_as_the_server_means_them(serve, look):
    page = look(serve().address).open()
    documents = [
        {"a": 1, "rows": {"in": 1, "out": [1, 2]}, "vertices": [{"x": 1, "y": [1]}, {"x": 2, "y": [2]}]},
        {"a": 1, "rows": {"in": 2, "out": [1, 2, 3]}, "vertices": [{"x": 1, "y": [5]}, {"x": 2}]},
        {"b": None, "rows": {"out": []}, "vertices": []},
        {"vertices": [{"x": {"deep": [NOW]}}], "rows": None},
    ]
    cases = [(one, changes(one, other), other) for one in documents for other in documents]
    found = page.evaluate(
        "async (cases) => { const live = await import('./live.js');"
        " return cases.map(([one, changes]) => live.applied(one, changes)); }",
        [[one, made] for one, made, _ in cases],
    )
    assert found == [other for _, _, other in cases]


def test_times_are_those_of_the_reader(serve, look):
    page = look(serve().address).open()
    found = page.evaluate("async (at) => (await import('./words.js')).moment(at)", BEGAN)
    assert len(found) == len("2026-11-18 04:33:11")
