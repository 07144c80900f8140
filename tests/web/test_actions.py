"""Actions: begun by one request, asked about by others."""

from __future__ import annotations

import pytest
from web_rig import KEY, REFUSED, SOURCE, WINDOW, Played, Rig, make_facts

from penstock.core.job.events import JobState

NAME = "00000000000000000000000000000001"


def test_a_checkpoint_is_taken_and_its_number_is_told_later(rig):
    rig.job.gate.clear()
    answer = rig.ask("POST", f"/v1/jobs/{KEY}/checkpoints", json={"checkpointType": "FULL"})
    assert answer.status_code == 202
    path = f"/v1/jobs/{KEY}/checkpoints/{answer.json()['request-id']}"
    assert rig.get(path) == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    rig.job.gate.set()
    assert rig.ended(path) == {"checkpointId": 7}
    assert rig.job.did == [("checkpoint", True)]


def test_a_request_that_is_repeated_with_its_name_does_nothing_again(rig):
    for _ in range(3):
        answer = rig.ask("POST", f"/jobs/{KEY}/savepoints", json={"triggerId": NAME})
        assert answer.json() == {"request-id": NAME}
    assert rig.ended(f"/jobs/{KEY}/savepoints/{NAME}") == {"location": "/data/checkpoints/savepoints/sp-8"}
    assert rig.job.did == [("savepoint", None, False)]


def test_a_savepoint_goes_where_the_client_says_if_that_is_allowed(rig):
    body = {"target-directory": "/data/checkpoints/mine", "formatType": "NATIVE"}
    rig.ask("POST", f"/jobs/{KEY}/savepoints", json={**body, "triggerId": NAME})
    rig.ended(f"/jobs/{KEY}/savepoints/{NAME}")
    assert rig.job.did == [("savepoint", "/data/checkpoints/mine", True)]


def test_a_stop_is_asked_about_among_the_savepoints(rig):
    answer = rig.ask("POST", f"/jobs/{KEY}/stop", json={"drain": True, "targetDirectory": "/data/checkpoints/x"})
    assert answer.status_code == 202
    found = rig.ended(f"/jobs/{KEY}/savepoints/{answer.json()['request-id']}")
    assert found == {"location": "/data/checkpoints/savepoints/sp-9"}
    assert rig.job.did == [("stop", "/data/checkpoints/x", True, False)]


def test_a_savepoint_may_end_the_job(rig):
    rig.ask("POST", f"/jobs/{KEY}/savepoints", json={"cancel-job": True, "triggerId": NAME})
    rig.ended(f"/jobs/{KEY}/savepoints/{NAME}")
    assert rig.job.did == [("stop", None, False, False)]


def test_an_action_that_fails_is_over_and_says_why(rig):
    rig.job.failing = REFUSED
    rig.ask("POST", f"/jobs/{KEY}/savepoints", json={"triggerId": NAME})
    cause = rig.ended(f"/jobs/{KEY}/savepoints/{NAME}")["failure-cause"]
    assert cause["class"] == "penstock.SnapshotFailed"
    assert cause["stack-trace"] == "the savepoint failed: the disk is full"


def test_a_cancel_is_answered_by_an_empty_object_and_nothing_else(rig):
    answer = rig.ask("PATCH", f"/v1/jobs/{KEY}?mode=cancel")
    assert (answer.status_code, answer.json()) == (202, {})
    assert rig.job.did == [("cancel",)]


@pytest.mark.parametrize(
    ("state", "status", "calls"),
    [(JobState.CANCELLED, 202, []), (JobState.FINISHED, 409, []), (JobState.FAILED, 409, [])],
)
def test_a_job_that_has_ended_cannot_be_cancelled_but_once(state, status, calls):
    rig = Rig(facts=make_facts(state))
    assert rig.ask("PATCH", f"/jobs/{KEY}").status_code == status
    assert rig.job.did == calls
    rig.close()


def test_a_cancel_with_another_mode_is_refused(rig):
    assert rig.ask("PATCH", f"/jobs/{KEY}?mode=stop").status_code == 308
    assert rig.ask("PATCH", f"/jobs/{KEY}?mode=kill").status_code == 400
    assert rig.job.did == []


def test_nothing_can_be_asked_of_a_job_that_has_ended():
    rig = Rig(facts=make_facts(JobState.FINISHED))
    for path in ("checkpoints", "savepoints", "stop"):
        assert rig.ask("POST", f"/jobs/{KEY}/{path}", json={}).status_code == 409
    rig.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("checkpoints", {"checkpointType": "SOME"}),
        ("checkpoints", {"triggerId": "x"}),
        ("checkpoints", {"triggerId": 5}),
        ("savepoints", {"cancel-job": "yes"}),
        ("savepoints", {"formatType": 1}),
        ("savepoints", {"target-directory": 5}),
        ("savepoints", {"target-directory": "relative/path"}),
        ("stop", {"drain": 1}),
        ("stop", []),
    ],
)
def test_a_body_of_the_wrong_form_is_refused(rig, path, body):
    answer = rig.ask("POST", f"/jobs/{KEY}/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert rig.job.did == []


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 50_000, b"nul", b'{"a":1}{'])
def test_a_body_that_is_no_json_is_refused(rig, content):
    assert rig.ask("POST", f"/jobs/{KEY}/checkpoints", content=content).status_code == 400


def test_a_field_that_is_not_known_is_ignored_and_an_empty_body_will_do(rig):
    assert rig.ask("POST", f"/jobs/{KEY}/checkpoints", json={"more": 1}).status_code == 202
    assert rig.ask("POST", f"/jobs/{KEY}/checkpoints").status_code == 202


def test_a_body_that_is_too_large_is_refused(rig):
    assert rig.ask("POST", f"/jobs/{KEY}/checkpoints", content=b" " * 70_000).status_code == 413


def test_a_job_without_a_checkpoint_directory_needs_a_folder_for_a_savepoint():
    rig = Rig(settings={"penstock-checkpoint-directory": None}, folders=())
    answer = rig.ask("POST", f"/jobs/{KEY}/savepoints", json={})
    assert answer.status_code == 400
    assert "target-directory is missing" in answer.text
    rig.close()


@pytest.mark.parametrize(
    "target",
    ["/etc", "/data", "/data/checkpoints/../other", "/data/checkpointsx", "file:///etc", "s3://bucket/x", "/data/\0"],
)
def test_savepoints_stay_in_the_folders_that_the_program_allows(rig, target):
    answer = rig.ask("POST", f"/jobs/{KEY}/savepoints", json={"target-directory": target})
    assert answer.status_code in (400, 403)
    answer = rig.ask("POST", "/savepoint-disposal", json={"savepoint-path": target})
    assert answer.status_code in (400, 403)
    assert rig.job.did == []


def test_an_action_that_nobody_began_is_unknown(rig):
    assert "errors" in rig.get(f"/jobs/{KEY}/savepoints/{NAME}", 404)
    assert "errors" in rig.get(f"/jobs/{KEY}/savepoints/x", 400)
    rig.ask("POST", f"/jobs/{KEY}/checkpoints", json={"triggerId": NAME})
    assert "errors" in rig.get(f"/jobs/{KEY}/savepoints/{NAME}", 404)


def test_results_are_forgotten_after_a_while(rig):
    rig.ask("POST", f"/jobs/{KEY}/checkpoints", json={"triggerId": NAME})
    rig.ended(f"/jobs/{KEY}/checkpoints/{NAME}")
    rig.time_ms += 6 * 60_000
    rig.ask("POST", f"/jobs/{KEY}/checkpoints")
    assert "errors" in rig.get(f"/jobs/{KEY}/checkpoints/{NAME}", 404)


def test_only_a_few_actions_are_under_way_at_a_time(rig):
    rig.job.gate.clear()
    statuses = [rig.ask("POST", f"/jobs/{KEY}/checkpoints").status_code for _ in range(18)]
    assert statuses == [202] * 16 + [503] * 2
    rig.job.gate.set()


# --- parallelism -------------------------------------------------------------------------


def bounds(source, window):
    return {
        SOURCE: {"parallelism": {"lowerBound": 1, "upperBound": source}},
        WINDOW: {"parallelism": {"lowerBound": 1, "upperBound": window}},
    }


def test_the_parallelism_is_given_as_flat_bounds_of_all_vertices(rig):
    assert rig.get(f"/jobs/{KEY}/resource-requirements") == bounds(2, 2)


@pytest.mark.parametrize(
    ("source", "window", "calls"), [(2, 2, []), (2, 5, [("rescale", 5)]), (3, 5, [("rescale", 5)])]
)
def test_the_highest_bound_that_differs_decides(source, window, calls):
    rig = Rig()
    answer = rig.ask("PUT", f"/jobs/{KEY}/resource-requirements", json=bounds(source, window))
    assert (answer.status_code, answer.json()) == (200, {})
    rig.close()
    assert rig.job.did == calls


@pytest.mark.parametrize(
    "body",
    [
        {SOURCE: bounds(1, 1)[SOURCE]},
        {**bounds(1, 1), KEY: {}},
        bounds(0, 1),
        bounds(1, 500),
        {"jobVertexResourceRequirements": bounds(1, 1)},
        {SOURCE: 5, WINDOW: []},
        {SOURCE: {"parallelism": {"lowerBound": 3, "upperBound": 2}}, WINDOW: bounds(1, 1)[WINDOW]},
    ],
)
def test_bounds_that_make_no_sense_are_refused(rig, body):
    assert rig.ask("PUT", f"/jobs/{KEY}/resource-requirements", json=body).status_code == 400
    assert rig.job.did == []


def test_the_old_way_to_rescale_works(rig):
    answer = rig.ask("PATCH", f"/jobs/{KEY}/rescaling?parallelism=4")
    assert answer.status_code == 200
    assert rig.ended(f"/jobs/{KEY}/rescaling/{answer.json()['request-id']}") == {}
    assert rig.job.did == [("rescale", 4)]
    assert rig.ask("PATCH", f"/jobs/{KEY}/rescaling?parallelism=0").status_code == 400


@pytest.mark.parametrize("name", ["config", "overview", "summary", "history"])
def test_rescales_are_shown(rig, name):
    rig.get(f"/jobs/{KEY}/rescales/{name}")


def test_one_rescale_is_found_by_its_id(rig):
    (found,) = rig.get(f"/jobs/{KEY}/rescales/history")
    assert found["terminalState"] == "COMPLETED"
    assert rig.get(f"/jobs/{KEY}/rescales/details/{found['rescaleUuid']}") == found


# --- what this server does not do ---------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/jars/upload", 501), ("DELETE", "/cluster", 403)])
def test_jars_and_the_end_of_the_cluster_are_refused(rig, method, path, status):
    assert rig.ask(method, path).status_code == status


def test_methods_that_an_address_does_not_have_are_named(rig):
    answer = rig.ask("DELETE", f"/jobs/{KEY}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, PATCH")
    answer = rig.ask("OPTIONS", f"/jobs/{KEY}")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, PATCH")


def test_a_job_whose_thread_has_ended_is_shown_as_it_was(rig):
    rig.get("/jobs")
    rig.add("other", Played(make_facts()))
    assert len(rig.get("/jobs")["jobs"]) == 2
