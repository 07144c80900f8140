"""The page's server over jobs on a real Spark, asked over HTTP: by plain requests, and by a client that was made for
Flink."""

from __future__ import annotations

import sys

import cloudpickle
import httpx
import numpy as np
import pytest
from flink_rest_client import FlinkRestClient
from waiting import wait_for_it

import penstock as ps
from penstock.web import server

pytestmark = pytest.mark.slow

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RATE = 2_000


@pytest.fixture
def page():
    """Where the page is; the server is ended with the test."""
    yield
    server.close()


def make(first, count):
    numbers = np.arange(first, first + count)
    return {"id": numbers, "k": numbers % 10, "ts": numbers * 1_000}


def program(env, out, check=lambda row: True):
    rows = env.read(ps.generate(make, schema="id bigint, k bigint, ts timestamp", rate=RATE))
    counted = rows.watermark("ts", delay="1s").filter(check) if check is not None else rows.watermark("ts", delay="1s")
    counted.key_by("k").window(ps.tumbling("1s")).aggregate(n=ps.count()).write(ps.json(str(out)))


def environment(spark, folder, **more):
    checkpointing = ps.Checkpointing(interval="300ms", directory=folder / "cp")
    web = ps.Web(port=0, archive=folder / "archive", savepoint_directories=[folder / "mine"])
    return ps.Environment(spark, parallelism=1, checkpointing=checkpointing, web=web, **more)


def address():
    (running,) = server._RUNNING
    return running.address


def until(look, what):
    seen = []

    def true():
        seen[:] = [look()]
        return seen[0]

    wait_for_it(true, what)
    return seen[0]


def ended(client, path):
    def look():
        found = client.get(path).json()
        return [found["operation"]] if found["status"]["id"] == "COMPLETED" else None

    return until(look, path)[0]


def test_a_job_is_seen_and_driven_over_http(spark, tmp_path, page, request):
    env = environment(spark, tmp_path)
    program(env, tmp_path / "out", check=None)
    job = env.start("seen")
    request.addfinalizer(job.cancel)
    client = httpx.Client(base_url=address(), timeout=30)
    until(lambda: job.view().checkpoints.counts.completed >= 2, "a checkpoint")
    (seen,) = client.get("/v1/jobs/overview").json()["jobs"]
    assert (seen["name"], seen["state"]) == ("seen", "RUNNING")
    key = seen["jid"]

    until(lambda: client.get(f"/penstock/jobs/{key}").json()["rates"]["rows_in_per_s"] > 0, "a rate")
    document = client.get(f"/penstock/jobs/{key}").json()
    source, sink = document["vertices"]
    assert document["rows"]["in"] > 0
    assert source["totals"]["bytes_out"] > 0
    assert sink["totals"]["bytes_in"] > 0
    assert sink["watermark_ms"] is not None
    for vertex in (source, sink):
        shares = vertex["subtasks"]
        assert sum(shares[name][0] for name in ("busy", "waiting", "blocked", "idle")) == pytest.approx(1, abs=0.02)
    assert document["slots"][0]["process"]["rss_bytes"] > 1e6
    assert document["at_risk"]["records"] is not None

    newest = document["checkpoints"]["latest_completed"]["checkpoint"]
    timeline = client.get(f"/penstock/checkpoints/{key}/{newest}").json()
    assert [bar["acknowledged"] for bar in timeline["bars"]] == [True, True]
    assert timeline["sentence"]

    look_into_state(client, key, sink)
    act(client, key, newest, tmp_path)

    # The page sees it live.
    with client.stream("GET", f"/penstock/stream?job={key}") as events:
        lines = (line for line in events.iter_lines() if line.startswith("event:"))
        assert [next(lines), next(lines), next(lines)] == ["event: snapshot", "event: changes", "event: changes"]

    # Another parallelism, as Flink's page asks for it.
    bounds = client.get(f"/jobs/{key}/resource-requirements").json()
    wanted = {vertex: {"parallelism": {"lowerBound": 1, "upperBound": 2}} for vertex in bounds}
    assert client.put(f"/jobs/{key}/resource-requirements", json=wanted).json() == {}
    until(lambda: client.get(f"/jobs/{key}/rescales/overview").json()["latest"]["completed"], "the rescale")
    assert client.get(f"/penstock/jobs/{key}").json()["parallelism"] == 2

    asked = client.post(f"/jobs/{key}/stop", json={"drain": False}).json()["request-id"]
    assert "location" in ended(client, f"/jobs/{key}/savepoints/{asked}")
    job.wait()
    until(lambda: client.get(f"/jobs/{key}/status").json() == {"status": "FINISHED"}, "the end")
    assert client.patch(f"/jobs/{key}").status_code == 409
    assert [file.name for file in (tmp_path / "archive").iterdir()] == [f"{key}.json"]
    client.close()


def look_into_state(client, key, sink):
    """The state of the newest checkpoint, and one key of it."""
    operator = next(o for o in sink["operators"] if o["kind"] == "window")
    path = f"/penstock/state/{key}/{operator['id']}"
    rows = until(lambda: found_rows(client, f"{path}/windows?key=3"), "a key in a checkpoint")
    assert {row["k"] for row in rows} == {3}
    groups = until(lambda: client.get(f"{path}/windows").json().get("key_groups"), "the key groups")
    assert all(count > 0 for _, count in groups)


def act(client, key, newest, tmp_path):
    """A checkpoint, a savepoint where the program allows it, and its disposal."""
    asked = client.post(f"/jobs/{key}/checkpoints", json={}).json()["request-id"]
    assert ended(client, f"/jobs/{key}/checkpoints/{asked}")["checkpointId"] > newest
    body = {"target-directory": str(tmp_path / "mine")}
    asked = client.post(f"/jobs/{key}/savepoints", json=body).json()["request-id"]
    location = ended(client, f"/jobs/{key}/savepoints/{asked}")["location"]
    assert location.startswith(str(tmp_path / "mine"))
    asked = client.post("/savepoint-disposal", json={"savepoint-path": location}).json()["request-id"]
    assert ended(client, f"/savepoint-disposal/{asked}") == {}
    assert list((tmp_path / "mine").iterdir()) == []
    refused = client.post("/savepoint-disposal", json={"savepoint-path": str(tmp_path / "cp")}).json()["request-id"]
    assert "failure-cause" in ended(client, f"/savepoint-disposal/{refused}")


def found_rows(client, path):
    return client.get(path).json().get("found")


def test_a_client_that_was_made_for_flink_is_content(spark, tmp_path, page, request):
    def check(row):
        if row["id"] == 3_000 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ValueError("the third thousand")
        return True

    env = environment(spark, tmp_path, restart=ps.fixed_delay(attempts=3, delay="100ms"))
    program(env, tmp_path / "out", check=check)
    job = env.start("content")
    request.addfinalizer(job.cancel)
    client = FlinkRestClient.get(*address().removeprefix("http://").split(":"))
    until(lambda: job.view().restarts == 1 and job.view().state.value == "running", "the restart")
    restarted = job.view().checkpoints.counts.completed
    until(lambda: job.view().checkpoints.counts.completed > restarted, "a checkpoint")

    assert client.overview()["jobs-running"] == 1
    assert client.config()["features"]["web-cancel"] is True
    (key,) = client.jobs.job_ids()
    assert client.jobs.get(key)["name"] == "content"
    assert client.jobs.all() == [{"id": key, "status": "RUNNING"}]
    plan = {node["id"] for node in client.jobs.get_plan(key)["nodes"]}
    assert set(client.jobs.get_vertex_ids(key)) == plan
    failure = client.jobs.get_exceptions(key)["exceptionHistory"]["entries"][0]
    assert failure["exceptionName"] == "ValueError"
    assert "the third thousand" in failure["stacktrace"]
    assert client.jobs.get_metrics(key)["numRestarts"] == "1"
    assert client.jobs.metrics(metric_names=["numRestarts"])["numRestarts"]["sum"] == 1
    client.jobs.get_config(key)
    client.jobs.get_accumulators(key)
    client.jobs.get_checkpointing_configuration(key)
    numbers = client.jobs.get_checkpoint_ids(key)
    details = client.jobs.get_checkpoint_details(key, numbers[-1], show_subtasks=True)
    assert set(details["tasks"]) == plan
    look_at_vertices(client, key, plan)

    restarts = httpx.get(f"{address()}/penstock/jobs/{key}").json()["attempts"]
    assert [attempt["how"] for attempt in restarts] == ["", "failed"]
    assert restarts[0]["down_ms"] >= 0
    assert restarts[1]["cause"]["user_code"] is True

    rescaled = client.jobs.rescale(key, 2)
    until(lambda: rescaled.status["status"]["id"] == "COMPLETED", "the rescale")
    trigger = client.jobs.create_savepoint(key, str(tmp_path / "mine"))
    until(lambda: trigger.status["status"]["id"] == "COMPLETED", "the savepoint")
    assert "location" in trigger.status["operation"]
    assert client.jobs.terminate(key) is True
    with pytest.raises(ps.JobCancelled):
        job.wait()
    until(lambda: client.jobs.all() == [{"id": key, "status": "CANCELED"}], "the end")


def look_at_vertices(client, key, plan):
    for name in plan:
        vertex = client.jobs.get_vertex(key, name)
        assert vertex.details()["subtasks"][0]["attempt"] == 1
        assert vertex.backpressure()["status"] == "ok"
        vertex.watermarks(), vertex.subtasktimes(), vertex.taskmanagers()
        assert "0.numRecordsIn" in vertex.metric_names()
        assert vertex.subtasks.subtask_ids() == [0]
        assert vertex.subtasks.get(0)["status"] == "RUNNING"
        assert vertex.subtasks.get_attempt(0)["attempt"] == 1
        assert vertex.subtasks.metrics(metric_names=["numRecordsOut"])["numRecordsOut"]["sum"] >= 0
    (manager,) = client.taskmanagers.taskmanager_ids()
    assert client.taskmanagers.get(manager)["assignedTasks"] == 2
    client.taskmanagers.metrics(), client.taskmanagers.get_logs(manager), client.taskmanagers.get_thread_dump(manager)
    client.jobmanager.metrics()
    assert client.jobmanager.config()
