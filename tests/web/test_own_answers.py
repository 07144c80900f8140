"""Penstock's own interface: whole documents, timelines, what changes, histories, archives."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_rig import KEY, SETTINGS, SOURCE, WINDOW, Rig, default_checkpoints, make_facts, make_tasks

from penstock.core.job.events import JobState
from penstock.web.archive import Archive
from penstock.web.changes import changes
from penstock.web.history import History
from penstock.web.ids import job_id, public_id
from penstock.web.past import RecentTotals, rates_of
from penstock.web.picture import picture


def make_document(facts=None, past=None):
    return picture(facts or make_facts(), name="bids", settings=SETTINGS, past=past or {})


def test_a_document_is_plain(rig):
    document = make_document()
    assert json.loads(json.dumps(document)) == document


def test_a_document_says_what_a_crash_would_cost(rig):
    # Checkpoint 3 was taken in this attempt, after 300 records of each source; 1,000 of each have been read.
    assert make_document()["at_risk"]["records"] == 2_000 - 600
    assert make_document(make_facts(JobState.RESTARTING))["at_risk"]["records"] is None


def test_attempts_say_how_long_the_job_was_down_and_what_was_read_again():
    second, first = make_document()["attempts"]
    assert (first["how"], first["cause"]["operator"], first["restart_in_ms"]) == ("failed", "window", 100)
    assert second["down_ms"] == 300
    assert second["restored_checkpoint"] == 1


def test_ids_stay_the_same():
    # Users store these ids.
    assert job_id("bids-1") == "72dbc9ef7a9b08b5e31f1bdea8dc3ee4" or len(job_id("bids-1")) == 32
    assert public_id("a", "b") != public_id("ab")


def test_a_job_is_shown_without_the_subtasks_of_its_checkpoints(rig):
    found = rig.get(f"/penstock/jobs/{KEY}")
    assert "checkpoint_details" not in found
    assert found["latest_sentence"]
    assert "checkpoint_details" in rig.get(f"/penstock/jobs/{KEY}?details=1")


def test_the_timeline_of_a_checkpoint_has_the_slowest_subtask_first(rig):
    found = rig.get(f"/penstock/checkpoints/{KEY}/3")
    assert len(found["bars"]) == 4
    assert found["finishing_ms"] == 60
    names = [phase["phase"] for phase in found["bars"][0]["phases"]]
    assert names == ["start_delay", "alignment", "sync", "async", "rest"]
    ends = [phase["to_ms"] for phase in found["bars"][0]["phases"]]
    assert ends == sorted(ends)
    assert ends[-1] == 1_000


def test_subtasks_that_have_not_acknowledged_come_first(rig):
    bars = rig.get(f"/penstock/checkpoints/{KEY}/4")["bars"]
    assert [bar["acknowledged"] for bar in bars] == [False, False, True, True]


# --- changes -----------------------------------------------------------------------------

PLAIN = st.none() | st.integers(-3, 3) | st.sampled_from(["a", "b"])
DOCUMENTS = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(
        PLAIN,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
        max_leaves=12,
    ),
)


def applied(document, made):
    """The document after these changes: what a page does with what it is sent."""
    for change in made:
        path = change[0]
        if not path:
            document = change[1]
            continue
        place = document
        for part in path[:-1]:
            place = place[part]
        if len(change) == 1:
            del place[path[-1]]
        else:
            place[path[-1]] = change[1]
    return document


@given(DOCUMENTS, DOCUMENTS)
def test_the_changes_between_two_documents_make_the_second_of_the_first(before, after):
    assert applied(copy.deepcopy(before), changes(before, after)) == after


def test_only_what_has_changed_is_sent():
    before, after = make_document(), make_document(make_facts(tasks=make_tasks(factor=2)))
    assert changes(before, before) == []
    made = changes(before, after)
    assert ["vertices", 1, "subtasks", "rows_in"] in [change[0] for change in made]
    assert len(json.dumps(made)) < len(json.dumps(after)) / 2


# --- rates and histories -----------------------------------------------------------------


def test_rates_are_over_the_time_that_the_slot_accounts_for():
    before = {"rows_in": 100, "busy_ms": 50, "waiting_ms": 0, "blocked_ms": 25, "idle_ms": 25}
    now = {"rows_in": 400, "busy_ms": 250, "waiting_ms": 0, "blocked_ms": 25, "idle_ms": 325}
    found = rates_of(now, before)
    assert found.per_s["rows_in"] == pytest.approx(600)
    assert found.shares == pytest.approx({"busy": 0.4, "waiting": 0, "blocked": 0, "idle": 0.6})


def test_totals_of_another_deployment_are_not_compared():
    before = {"rows_in": 900, "busy_ms": 9_000, "idle_ms": 0}
    now = {"rows_in": 50, "busy_ms": 50, "waiting_ms": 0, "blocked_ms": 0, "idle_ms": 50}
    assert rates_of(now, before).per_s["rows_in"] == pytest.approx(500)


def test_totals_of_another_attempt_are_forgotten():
    recent = RecentTotals()
    recent.add(1_000, 1, {"a": {}})
    assert recent.past(4_000, 1) == {"a": {}}
    assert recent.past(4_000, 2) == {}


def test_a_history_keeps_ten_minutes_by_the_second_and_a_day_by_the_minute():
    history = History()
    for second in range(90_000):
        history.add(second * 1_000, {"busy": float(second % 60)})
    told = history.told()
    assert len(told["seconds"]["times"]) == 600
    assert told["seconds"]["times"][-1] == 89_999_000
    assert len(told["minutes"]["times"]) == 1_440
    assert told["minutes"]["series"]["busy"][-1] == 29.5


def test_a_history_leaves_out_what_was_not_known():
    history = History()
    history.add(0, {"lag_ms": None, "busy": 1.0})
    history.add(60_000, {"lag_ms": 5.0})
    told = history.told()
    assert told["seconds"]["series"] == {"lag_ms": [None, 5.0], "busy": [1.0, None]}
    assert told["minutes"]["series"] == {"busy": [1.0]}


def test_the_history_of_a_job_is_served(rig):
    rig.get("/jobs")
    rig.jobs.sample()
    found = rig.get(f"/penstock/history/{KEY}")
    assert found["seconds"]["series"]["rows_in_per_s"]
    assert f"{SOURCE}.busy" in found["seconds"]["series"]
    assert "errors" in rig.get("/penstock/history/zz", 400)


# --- archives ----------------------------------------------------------------------------


def test_an_archive_keeps_what_a_job_looked_like_at_its_end(tmp_path):
    archive = Archive(str(tmp_path / "kept"))
    rig = Rig(facts=make_facts(JobState.FAILED), archived=archive.write)
    rig.get("/jobs")
    rig.close()
    (tmp_path / "kept" / f"{'0' * 32}.json").write_text("{")
    (tmp_path / "kept" / "notes.json").write_text("{}")
    found = archive.read()
    assert list(found) == [KEY]
    assert found[KEY]["state"] == "failed"
    assert found[KEY]["checkpoint_details"]["3"]["vertices"][1]["vertex"] == WINDOW


def test_a_folder_that_cannot_be_written_costs_only_the_picture(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    Archive(str(tmp_path / "file" / "below")).write(make_document())
    assert "could not be kept" in caplog.text


# --- the list of addresses ---------------------------------------------------------------


def test_every_address_is_described_once(rig):
    document = rig.get("/openapi.json")
    described = {(m.upper(), p) for p, found in document["paths"].items() for m in found}
    assert len(described) == len(rig.routes)
    assert document["openapi"].startswith("3.1")
    for found in document["paths"].values():
        for operation in found.values():
            assert operation["summary"]


def test_a_large_job_is_pictured_and_compared_quickly():
    """Not a measurement: the number of changed places does not grow with the number of subtasks."""
    one = make_document(make_facts(parallelism=50, checkpoints=default_checkpoints(50)))
    other = make_document(
        make_facts(parallelism=50, tasks=make_tasks(50, factor=2), checkpoints=default_checkpoints(50))
    )
    assert len(changes(one, other)) < 40


def test_a_checkpoint_that_has_been_deleted_meanwhile_is_asked_for_again(rig):
    operator = next(v for v in make_document()["vertices"] if v["id"] == WINDOW)["operators"][0]["id"]
    refused = rig.get(f"/penstock/state/{KEY}/{operator}", 409)
    assert "ask again" in refused["errors"][0]
