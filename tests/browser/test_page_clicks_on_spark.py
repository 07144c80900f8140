"""The page over jobs on a real Spark: every view and every action is clicked through while the jobs run."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from page_browser import is_empty
from waiting import wait_for_it

import penstock as ps
from penstock.web import server
from penstock.web.ids import job_id

pytestmark = pytest.mark.slow

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RATE = 500
HOSTILE = "<img src=x onerror=alert(1)>"
VIEWS = ["overview", "graph", "checkpoints", "restarts", "state", "logs", "settings", "actions"]


@pytest.fixture
def page():
    """The server of the page ends with the test."""
    yield
    server.close()


def make(first, count):
    numbers = np.arange(first, first + count)
    return {"id": numbers, "user": numbers % 7, "ts": numbers * 1_000}


def start(spark, folder, name, request):
    """A job that fails once for each file `fail` that is there."""
    folder.mkdir(exist_ok=True)
    trap = str(folder / "fail")

    def checked(batch: pa.RecordBatch):
        from pathlib import Path

        if Path(trap).exists():
            Path(trap).unlink()
            raise ValueError(f"the trap was there {HOSTILE}")
        return batch

    env = ps.Environment(
        spark,
        parallelism=1,
        checkpointing=ps.Checkpointing(interval="500ms", directory=folder / "cp", history=100),
        restart=ps.fixed_delay(attempts=3, delay="100ms"),
        web=ps.Web(port=0, savepoint_directories=[folder / "mine"]),
    )
    rows = env.read(ps.generate(make, schema="id bigint, user bigint, ts timestamp", rate=RATE), name="bids")
    kept = rows.where("id % 2 = 0", name="even").map_batches(checked, name=HOSTILE).watermark("ts", delay="100ms")
    counted = kept.key_by("user").window(ps.tumbling("200ms")).aggregate(n=ps.count(), most=ps.max("id"))
    counted.write(ps.json(str(folder / "out")), name="counts")
    job = env.start(name)
    request.addfinalizer(job.cancel)
    wait_for_it(lambda: job.view().checkpoints.counts.completed >= 3, "three checkpoints")
    return job


def begin(page, title):
    page.click(f".action-list >> text={title}")
    page.wait_for_selector("dialog[open]")


def confirm(page):
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .said")
    said = page.inner_text("dialog .said")
    failed = page.query_selector_all("dialog .said.bad-text")
    page.click("dialog >> text=Close")
    page.wait_for_selector("dialog", state="detached")
    assert not failed, said
    return said


def test_a_job_is_looked_at_in_every_view(spark, tmp_path, page, look, browser, request):
    job = start(spark, tmp_path, f"looked at {HOSTILE}", request)
    watched = look(server._RUNNING[0].address)
    shown = watched.open()
    shown.click(f"#jobs a.strong:has-text({HOSTILE!r})")
    shown.wait_for_selector(".answers .good:has-text('Healthy?')")
    for view in VIEWS:
        shown.click(f".tabs >> text={view.capitalize()}")
        shown.wait_for_selector("main .panel")
        assert not is_empty(browser, shown.screenshot()), view

    # The graph: what runs where, and what a task runs.
    key = job_id(str(job.id))
    shown = watched.view(key, "graph")
    assert shown.locator(".node").count() == 2
    assert "by user" in shown.inner_text(".edge-label")
    shown.click(f".node:has-text({HOSTILE!r})")
    shown.wait_for_selector("#task")
    assert "id % 2 = 0" in shown.inner_text("#task .runs >> nth=1")
    assert "checked" in shown.inner_text("#task")
    shown.wait_for_function("() => !document.querySelector('.node').innerText.includes('in 0/s')")
    shown.wait_for_function("() => document.querySelector('#task').innerText.includes('State')")

    # Checkpoints: one of them, with its phases and a sentence.
    shown = watched.view(key, "checkpoints", "newest")
    shown.wait_for_selector(".gantt-row .piece")
    assert shown.inner_text(".diagnosis")
    assert shown.locator("#plots canvas").count() == 2
    assert shown.locator(".strip-bar").count() >= 3

    # State: one key of a window.
    shown = watched.view(key, "state")
    shown.click("#state a.strong:has-text('window')")
    shown.click("#states a.strong >> nth=0")
    shown.wait_for_selector("#key form")
    shown.wait_for_selector("#key-groups canvas")
    for _ in range(100):
        shown.fill("#key input", "3")
        shown.click("#key >> text=Look up")
        shown.wait_for_selector("#key table, #key .empty:not(:has-text('…'))")
        if shown.query_selector("#key table") is not None:
            break
    assert "3" in shown.inner_text("#key tbody")
    # A checkpoint was deleted while it was read, for a newer one: the page asked again.
    watched.forgive("409")

    # A failure of the user's code: the restart, with its traceback.
    (tmp_path / "fail").touch()
    shown = watched.view(key, "restarts")
    shown.wait_for_selector(".trace pre")
    assert f"the trap was there {HOSTILE}" in shown.inner_text(".trace pre")
    shown.wait_for_selector("#attempts >> text=Read again")
    shown.wait_for_selector(".answers .good:has-text('after 1 restart')")
    assert "trap was there" in watched.view(key, "logs").wait_for_selector("pre.log").inner_text()


def test_every_action_is_clicked(spark, tmp_path, page, look, request):
    job = start(spark, tmp_path, "driven", request)
    key = job_id(str(job.id))
    watched = look(server._RUNNING[0].address)
    shown = watched.view(key, "actions")

    begin(shown, "Take a checkpoint")
    assert "has completed" in confirm(shown)

    begin(shown, "Take a savepoint")
    shown.fill("dialog input[type=text]", str(tmp_path / "mine"))
    assert str(tmp_path / "mine") in confirm(shown)
    assert len(list((tmp_path / "mine").iterdir())) == 1

    begin(shown, "Change the parallelism")
    shown.fill("dialog input[type=number]", "2")
    assert "parallelism 2" in confirm(shown)
    shown.wait_for_selector(".job-head:has-text('parallelism 2')")
    shown = watched.view(key, "restarts")
    shown.wait_for_selector("#rescales >> text=completed")

    shown = watched.view(key, "actions")
    begin(shown, "Stop with a savepoint")
    shown.check("dialog >> text=Drain")
    assert "The job has ended" in confirm(shown)
    job.wait()
    shown.wait_for_selector(".answers >> text=The job has ended")
    assert shown.locator(".action-list button[disabled]").count() == 5
    assert "Take a savepoint" in shown.inner_text("#done")

    # A second job of the same program, and the end of it.
    second = start(spark, tmp_path / "second", "cancelled", request)
    shown = watched.open()
    shown.wait_for_selector("#jobs >> text=driven")
    shown.click("#jobs a.strong:has-text('cancelled')")
    shown.click(".tabs >> text=Actions")
    begin(shown, "Cancel")
    assert "cancelled" in confirm(shown)
    wait_for_it(lambda: second.view().state is ps.JobState.CANCELLED, "the end")
    shown.keyboard.press("0")
    shown.wait_for_selector("#jobs .state.done >> nth=1")
