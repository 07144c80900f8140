"""What clients of Flink's interface are answered: names, kinds of values, and the rules that hold between them."""

from __future__ import annotations

import json

import pytest
from web_rig import BEGAN, HOSTILE, KEY, NOW, SOURCE, WINDOW, Played, Rig, make_facts, make_tasks

from penstock.core.job.events import JobState

INT, TEXT, FLAG, MAP, LIST = int, str, bool, dict, list
NUMBER = (int, float)


def shape(found, **fields):
    """Fail unless `found` has these fields with values of these kinds."""
    assert isinstance(found, dict)
    for given, kind in fields.items():
        name = given.replace("_DASH_", "-")
        assert name in found, f"{name} is missing in {sorted(found)}"
        value = found[name]
        if kind is INT:
            assert type(value) is int, (name, value)
        else:
            assert isinstance(value, kind), (name, value)


def fields(text, kind):
    return {name.replace("-", "_DASH_"): kind for name in text.split()}


def test_the_settings_of_the_page_have_all_fields(rig):
    found = rig.get("/config")
    shape(found, **fields("refresh-interval timezone-offset", INT), **fields("timezone-name flink-version", TEXT))
    assert set(found["features"]) == {"web-submit", "web-cancel", "web-rescale", "web-history"}


def test_the_overview_counts_slots_and_jobs(rig):
    found = rig.get("/v1/overview")
    assert (found["taskmanagers"], found["slots-total"], found["jobs-running"]) == (2, 2, 1)
    shape(found, **fields("slots-available jobs-finished jobs-cancelled jobs-failed", INT))
    shape(found, **fields("flink-version flink-commit", TEXT))


@pytest.mark.parametrize("path", ["/jobs", "/v1/jobs", "/jobs/", "/v1/jobs/"])
def test_paths_work_with_the_version_and_with_a_slash_at_the_end(rig, path):
    assert rig.get(path) == {"jobs": [{"id": KEY, "status": "RUNNING"}]}


def test_the_interface_has_no_second_version(rig):
    assert "errors" in rig.get("/v2/jobs", 404)


def test_the_list_of_jobs_counts_subtasks_in_lower_case(rig):
    (found,) = rig.get("/jobs/overview")["jobs"]
    shape(found, **fields("start-time end-time duration last-modification pending-operators", INT))
    assert found["end-time"] == -1
    assert found["tasks"]["total"] == found["tasks"]["running"] == 4
    assert set(found["tasks"]) == {
        *(["total", "created", "scheduled", "deploying", "initializing", "running", "finished"]),
        *(["canceling", "canceled", "failed", "reconciling"]),
    }


def test_a_job_lists_all_states_and_counts_tasks_in_upper_case(rig):
    found = rig.get(f"/jobs/{KEY}")
    shape(found, **fields("start-time end-time duration maxParallelism now pending-operators", INT))
    assert found["timestamps"]["RUNNING"] == BEGAN + 1_300
    assert found["timestamps"]["FINISHED"] == 0
    assert len(found["timestamps"]) == 11
    source, window = found["vertices"]
    assert (source["id"], source["name"]) == (SOURCE, "bids -> where")
    assert window["tasks"]["RUNNING"] == 2
    assert len(window["tasks"]) == len(found["status-counts"]) == 10
    assert sum(found["status-counts"].values()) == 2


def test_only_what_goes_from_vertex_to_vertex_is_counted(rig):
    source, window = (vertex["metrics"] for vertex in rig.get(f"/jobs/{KEY}")["vertices"])
    assert (source["read-records"], source["read-bytes"], source["write-records"]) == (0, 0, 2_000)
    assert (window["read-records"], window["read-bytes"]) == (1_000, 10_000)
    for metrics in (source, window):
        shape(metrics, **fields("write-bytes accumulated-idle-time accumulated-backpressured-time", INT))
        assert isinstance(metrics["accumulated-busy-time"], float)
        assert metrics["read-records-complete"] is True


def test_all_inputs_of_the_plan_are_nodes_of_the_plan(rig):
    plan = rig.get(f"/jobs/{KEY}/plan")["plan"]
    assert plan["type"] == "STREAMING"
    nodes = {node["id"]: node for node in plan["nodes"]}
    assert "inputs" not in nodes[SOURCE]
    assert nodes[WINDOW]["inputs"] == [
        {"num": 0, "id": SOURCE, "ship_strategy": "HASH", "exchange": "pipelined_bounded"}
    ]
    assert rig.get(f"/jobs/{KEY}")["plan"] == plan


def test_names_of_the_program_are_escaped_where_they_are_markup():
    rig = Rig(facts=make_facts(name=HOSTILE))
    text = json.dumps(rig.get(f"/jobs/{KEY}/plan"))
    rig.close()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_settings_are_a_table_of_texts(rig):
    found = rig.get(f"/jobs/{KEY}/config")["execution-config"]
    shape(found, **{"restart-strategy".replace("-", "_DASH_"): TEXT, "job-parallelism".replace("-", "_DASH_"): INT})
    assert found["user-config"]["checkpoint.interval_ms"] == "1000"
    assert all(isinstance(value, str) for value in found["user-config"].values())


def test_failures_name_the_task_counted_from_one(rig):
    found = rig.get(f"/jobs/{KEY}/exceptions")
    (entry,) = found["exceptionHistory"]["entries"]
    assert entry["exceptionName"] == "ValueError"
    assert entry["taskName"] == "window (2/2) - execution #0"
    assert entry["concurrentExceptions"] == []
    assert found["root-exception"].startswith("Traceback")
    assert rig.get(f"/jobs/{KEY}/exceptions?maxExceptions=0")["exceptionHistory"] == {"entries": [], "truncated": True}
    assert rig.get(f"/jobs/{KEY}/exceptions?failureLabelFilter=type:system")["exceptionHistory"]["entries"] == []


def test_the_result_of_a_running_job_is_awaited(rig):
    assert rig.get(f"/jobs/{KEY}/execution-result") == {"status": {"id": "IN_PROGRESS"}}


@pytest.mark.parametrize(
    ("state", "name", "result"),
    [
        (JobState.FINISHED, "FINISHED", "SUCCEEDED"),
        (JobState.CANCELLED, "CANCELED", "CANCELED"),
        (JobState.FAILED, "FAILED", "FAILED"),
    ],
)
def test_a_job_that_has_ended_stays_visible_with_its_result(state, name, result):
    rig = Rig(facts=make_facts(state))
    assert rig.get(f"/jobs/{KEY}/status") == {"status": name}
    found = rig.get(f"/jobs/{KEY}/execution-result")["job-execution-result"]
    assert found["application-status"] == result
    assert ("failure-cause" in found) == (state is JobState.FAILED)
    assert rig.get(f"/jobs/{KEY}")["end-time"] == BEGAN + 1_300
    rig.close()
    assert [document["id"] for document in rig.archived] == [KEY]


def test_a_job_without_a_plan_is_shown():
    facts = make_facts(JobState.STANDBY)
    waiting = type(facts)(now=facts.now, view=facts.view, plan=None)
    rig = Rig(facts=waiting)
    assert rig.get("/jobs")["jobs"][0]["status"] == "RECONCILING"
    assert rig.get(f"/jobs/{KEY}")["vertices"] == []
    assert rig.get(f"/penstock/jobs/{KEY}")["state"] == "standby"
    rig.close()


# --- checkpoints -------------------------------------------------------------------------


def test_checkpoints_tell_their_kind_by_a_class_name(rig):
    found = rig.get(f"/jobs/{KEY}/checkpoints")
    assert found["counts"] == {"restored": 1, "total": 4, "in_progress": 1, "completed": 2, "failed": 1}
    assert [(c["id"], c["className"], c["status"]) for c in found["history"]] == [
        (4, "in_progress", "IN_PROGRESS"),
        (3, "completed", "COMPLETED"),
        (2, "failed", "FAILED"),
        (1, "completed", "COMPLETED"),
    ]
    numbers = (
        "id trigger_timestamp latest_ack_timestamp checkpointed_size state_size end_to_end_duration alignment_buffered "
        "processed_data persisted_data num_subtasks num_acknowledged_subtasks"
    )
    for checkpoint in found["history"]:
        shape(checkpoint, **fields(numbers, INT), tasks=MAP, is_savepoint=FLAG)
    assert found["history"][1]["external_path"].endswith("chk-3/_metadata")
    assert found["history"][2]["failure_message"]
    assert found["history"][3]["savepointFormat"] == "CANONICAL"
    assert found["latest"]["restored"]["id"] == 1


def test_numbers_that_do_not_exist_are_a_text():
    rig = Rig(facts=make_facts(checkpoints=()))
    found = rig.get(f"/jobs/{KEY}/checkpoints")
    rig.close()
    assert found["latest"]["completed"] is None
    assert found["summary"]["state_size"]["min"] == 0


def test_the_settings_of_checkpoints(rig):
    found = rig.get(f"/jobs/{KEY}/checkpoints/config")
    assert (found["mode"], found["interval"]) == ("exactly_once", 1_000)
    assert found["externalization"] == {"enabled": True, "delete_on_cancellation": False}
    shape(found, **fields("timeout min_pause max_concurrent tolerable_failed_checkpoints", INT))
    shape(found, **fields("state_backend checkpoint_storage changelog_storage", TEXT))


def test_no_periodic_checkpoints_are_a_certain_number():
    rig = Rig(settings={"checkpoint": {"interval_ms": None}})
    assert rig.get(f"/jobs/{KEY}/checkpoints/config")["interval"] == 9_223_372_036_854_775_807
    rig.close()


def test_a_checkpoint_lists_its_vertices_and_their_subtasks(rig):
    found = rig.get(f"/jobs/{KEY}/checkpoints/details/3")
    assert set(found["tasks"]) == {SOURCE, WINDOW}
    assert found["tasks"][WINDOW]["state_size"] == 800
    part = rig.get(f"/jobs/{KEY}/checkpoints/details/3/subtasks/{WINDOW}")
    assert part["summary"]["checkpoint_duration"]["async"]["p50"] == 20.0
    assert [s["status"] for s in part["subtasks"]] == ["completed", "completed"]
    assert part["subtasks"][0]["checkpoint"] == {"sync": 1, "async": 20}
    under_way = rig.get(f"/jobs/{KEY}/checkpoints/details/4/subtasks/{WINDOW}")
    assert under_way["subtasks"][0] == {"className": "pending", "index": 0, "status": "pending_or_failed"}
    assert under_way["summary"]["state_size"]["p99"] == "NaN"
    assert "errors" in rig.get(f"/jobs/{KEY}/checkpoints/details/99", 404)
    assert "errors" in rig.get(f"/jobs/{KEY}/checkpoints/details/3/subtasks/{KEY}", 404)


# --- vertices ----------------------------------------------------------------------------


def test_subtasks_say_when_they_began_in_both_spellings(rig):
    found = rig.get(f"/jobs/{KEY}/vertices/{WINDOW}")
    one = found["subtasks"][1]
    assert one["start-time"] == one["start_time"] == BEGAN + 1_300
    assert (one["subtask"], one["attempt"], one["status"]) == (1, 1, "RUNNING")
    assert one["status-duration"] == {"INITIALIZING": 200, "RUNNING": NOW - BEGAN - 1_300}
    assert found["aggregated"]["metrics"]["read-records"]["sum"] == 1_000
    assert set(found["aggregated"]["metrics"]["read-bytes"]) == {
        *("min", "max", "avg", "sum"),
        *("median", "p25", "p75", "p95"),
    }
    assert rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/subtasks/1") == one
    assert rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/subtasks/1/attempts/1") == one
    assert "errors" in rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/subtasks/1/attempts/0", 404)
    assert "errors" in rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/subtasks/2", 404)


def test_times_of_subtasks_list_all_states(rig):
    found = rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/subtasktimes")["subtasks"][0]
    assert len(found["timestamps"]) == 10
    assert found["timestamps"]["RUNNING"] == BEGAN + 1_300


def test_back_pressure_has_both_spellings_and_shares_of_one(rig):
    found = rig.get(f"/jobs/{KEY}/vertices/{SOURCE}/backpressure")
    assert found["status"] == "ok"
    assert found["backpressureLevel"] == found["backpressure-level"] == "low"
    for each in found["subtasks"]:
        assert each["backpressureLevel"] == each["backpressure-level"]
        assert each["ratio"] + each["idleRatio"] + each["busyRatio"] == pytest.approx(1, abs=0.01)


def test_a_source_has_no_watermark_that_came_in(rig):
    assert rig.get(f"/jobs/{KEY}/vertices/{SOURCE}/watermarks") == []
    found = rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/watermarks")
    assert found[0] == {"id": "0.currentInputWatermark", "value": "77000"}


def test_no_watermark_is_the_least_number():
    tasks = {name: {n: v for n, v in t.items() if n != "watermark_us"} for name, t in make_tasks().items()}
    rig = Rig(facts=make_facts(tasks=tasks))
    assert rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/watermarks")[1]["value"] == "-9223372036854775808"
    rig.close()


@pytest.mark.parametrize("kind", ["FULL", "ON_CPU", "OFF_CPU"])
def test_flame_graphs_are_switched_off(rig, kind):
    assert rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/flamegraph?type={kind}") == {"endTimestamp": -2}


@pytest.mark.parametrize(
    "rest",
    ["taskmanagers", "accumulators", "subtasks/accumulators", "jm-operator-metrics", "metrics", "subtasks/metrics"],
)
def test_everything_that_the_page_polls_is_answered(rig, rest):
    rig.get(f"/jobs/{KEY}/vertices/{SOURCE}/{rest}")


# --- metrics -----------------------------------------------------------------------------


def test_values_of_metrics_are_texts_and_unknown_names_are_left_out(rig):
    found = rig.get(f"/jobs/{KEY}/metrics?get=numRestarts,nothing,numberOfCompletedCheckpoints")
    assert found == [{"id": "numRestarts", "value": "1"}, {"id": "numberOfCompletedCheckpoints", "value": "2"}]
    assert {"id": "uptime"} in rig.get(f"/jobs/{KEY}/metrics")


def test_metrics_of_a_vertex_are_named_by_subtask(rig):
    assert {"id": "1.numRecordsIn"} in rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/metrics")
    found = rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/metrics?get=1.numRecordsIn,0.busyTimeMsPerSecond")
    assert found == [{"id": "1.numRecordsIn", "value": "500"}, {"id": "0.busyTimeMsPerSecond", "value": "950"}]


def test_aggregates_are_numbers_and_only_those_asked_for(rig):
    path = f"/jobs/{KEY}/vertices/{WINDOW}/subtasks/metrics"
    (found,) = rig.get(f"{path}?get=numRecordsIn")
    assert found == {"id": "numRecordsIn", "min": 500.0, "max": 500.0, "avg": 500.0, "sum": 1_000.0, "skew": 0.0}
    assert rig.get(f"{path}?get=numRecordsIn&agg=SUM&subtasks=0-0") == [{"id": "numRecordsIn", "sum": 500.0}]
    assert "errors" in rig.get(f"{path}?get=numRecordsIn&agg=mode", 400)
    assert "errors" in rig.get(f"{path}?subtasks=x", 400)


def test_skew_is_the_mean_deviation_in_percent():
    tasks = make_tasks()
    tasks["window[0]"]["rows_in"], tasks["window[1]"]["rows_in"] = 13_480, 13_678
    rig = Rig(facts=make_facts(tasks=tasks))
    (found,) = rig.get(f"/jobs/{KEY}/vertices/{WINDOW}/subtasks/metrics?get=numRecordsIn&agg=skew")
    rig.close()
    assert found["skew"] == pytest.approx(0.729, abs=0.001)


# --- slots and the driver ----------------------------------------------------------------


def test_slots_are_task_managers(rig):
    found = rig.get("/taskmanagers")["taskmanagers"]
    assert [manager["assignedTasks"] for manager in found] == [2, 2]
    one = rig.get(f"/taskmanagers/{found[0]['id']}")
    assert one["metrics"]["heapUsed"] == 100_000_000
    assert one["allocatedSlots"][0]["jobId"] == KEY
    used = rig.get(f"/taskmanagers/{found[0]['id']}/metrics?get=Status.JVM.Memory.Heap.Used")
    assert used == [{"id": "Status.JVM.Memory.Heap.Used", "value": "100000000"}]
    assert rig.get("/taskmanagers/metrics?get=Status.JVM.Threads.Count&agg=sum")[0]["sum"] == 6.0
    assert "errors" in rig.get("/taskmanagers/nobody", 404)


@pytest.mark.parametrize("name", ["config", "environment", "metrics", "logs", "thread-dump", "profiler"])
def test_the_driver_is_the_job_manager(rig, name):
    rig.get(f"/jobmanager/{name}")


def test_only_logs_that_are_listed_are_read(rig):
    assert rig.ask("GET", "/jobmanager/logs/a.log").text == "abc"
    for name in ("b.log", "..%2f..%2fetc%2fpasswd", "%2e%2e"):
        answer = rig.ask("GET", f"/jobmanager/logs/{name}")
        assert answer.status_code == 404, name


def test_every_job_is_an_application(rig):
    (found,) = rig.get("/applications/overview")["applications"]
    assert (found["id"], found["status"], found["jobs"]) == (KEY, "RUNNING", {"RUNNING": 1})
    assert rig.get(f"/applications/{KEY}")["jobs"][0]["jid"] == KEY
    assert rig.get(f"/applications/{KEY}/exceptions")["exceptionHistory"]["entries"][0]["jobId"] == KEY


# --- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [("/jobs/zz", 400), (f"/jobs/{'0' * 32}", 404), (f"/jobs/{KEY}/vertices/zz", 400), ("/nothing", 404)],
)
def test_refusals_are_objects_with_a_list_of_texts(rig, path, status):
    found = rig.get(path, status)
    assert list(found) == ["errors"]
    assert all(isinstance(text, str) for text in found["errors"])


def test_an_error_of_the_server_says_nothing_about_the_server(rig, caplog):
    rig.job.facts = object()
    answer = rig.ask("GET", "/jobs")
    assert answer.status_code == 500
    assert answer.json()["errors"][0] == "Internal server error."
    assert "Traceback" not in answer.text


def test_a_job_that_is_shown_again_takes_the_place_of_the_earlier_one(rig):
    rig.get("/jobs")
    rig.add("bids-1", Played(make_facts(JobState.FINISHED)))
    assert rig.get("/jobs") == {"jobs": [{"id": KEY, "status": "FINISHED"}]}


def test_few_jobs_that_have_ended_are_kept(rig):
    for number in range(6):
        facts = make_facts(JobState.FINISHED)
        named = type(facts.view)(**{**vars(facts.view), "job": f"j{number}"})
        rig.add(f"j{number}", Played(type(facts)(**{**vars(facts), "view": named})))
        rig.get("/jobs")
    states = [job["status"] for job in rig.get("/jobs")["jobs"]]
    assert states == ["FINISHED"] * 3 + ["RUNNING"]
