"""What is said about a Spark before a job is started on it; no Spark is needed to ask."""

from __future__ import annotations

import pytest

from penstock.spark.host_rules import HostFacts, Needs, WorkerFacts, judge, judge_worker
from penstock.spark.preflight import told

TWO = Needs(parallelism=2)


def facts(
    *, master: str = "local[4]", slots: int = 4, busy: int | None = 0, version: str = "4.3.0", **conf: str
) -> HostFacts:
    named = {f"spark.{name.replace('__', '.')}": value for name, value in conf.items()}
    return HostFacts(master=master, version=version, task_slots=slots, busy=busy, conf=named)


CLUSTER = {"master": "spark://there:7077"}


def problems(given: HostFacts, needs: Needs = TWO) -> tuple[str, ...]:
    found = judge(given, needs)
    assert found.warnings == ()
    return found.problems


def warnings(given: HostFacts, needs: Needs = TWO) -> tuple[str, ...]:
    found = judge(given, needs)
    assert found.problems == ()
    return found.warnings


def test_an_ordinary_spark_is_fine():
    found = judge(facts(), TWO)
    assert found.problems == found.warnings == ()


def test_too_few_cores_are_told_with_what_is_needed_what_there_is_and_what_is_free():
    assert problems(facts(slots=3, master="local[3]", busy=2), Needs(parallelism=3, spare_slots=1)) == (
        (
            "the job needs 4 slots (1 of them spare), Spark (local[3]) has 3 cores, 1 of them free now: "
            "use local[5], or parallelism=2"
        ),
    )
    assert problems(facts(**CLUSTER, slots=1)) == (
        (
            "the job needs 2 slots, Spark (spark://there:7077) has 1 cores, 1 of them free now: "
            "use executors with room for 3 tasks in all, or parallelism=1"
        ),
    )


def test_with_nothing_there_no_smaller_parallelism_is_advised():
    (problem,) = problems(facts(**CLUSTER, slots=0))
    assert "parallelism=" not in problem


def test_cores_that_are_enough_and_busy_are_only_warned_of():
    (warning,) = warnings(facts(busy=3))
    assert "has 4 cores, 1 of them free now: slots wait until other work ends" in warning
    (warning,) = warnings(facts(busy=9))
    assert "0 of them free now" in warning


def test_no_core_for_sparks_own_work_is_warned_of():
    (warning,) = warnings(facts(slots=2, master="local[2]"))
    assert warning.endswith("give Spark one more, for its own work")


def test_cores_per_task_are_said_where_they_are_not_one():
    (warning,) = warnings(facts(task__cpus="0.5", slots=2))
    assert "has room for 2 tasks of 0.5 cores each (spark.task.cpus), 2 of which could start now" in warning
    (warning,) = warnings(facts(task__cpus="2"))
    assert warning == "spark.task.cpus=2 keeps 2 cores for every slot, and a slot uses one: set it to 1"


def test_a_time_limit_that_kills_silent_workers_is_refused_and_one_that_only_logs_is_not():
    kill = {"python__worker__killOnIdleTimeout": "true"}
    (problem,) = problems(facts(**kill, python__worker__idleTimeoutSeconds="3"))
    assert problem.startswith("spark.python.worker.killOnIdleTimeout kills every slot after 3 s")
    assert problems(facts(**kill, python__worker__idleTimeoutSeconds="0")) == ()
    assert problems(facts(python__worker__idleTimeoutSeconds="3")) == ()


def test_speculation_is_refused():
    assert problems(facts(speculation="True")) == ("spark.speculation would start slots twice: set it to false",)


def test_dynamic_allocation_may_add_what_is_missing_unless_its_most_is_too_little():
    grows = {"dynamicAllocation__enabled": "true"}
    (warning,) = warnings(facts(**CLUSTER, **grows, slots=0))
    assert "takes executors away between restarts" in warning
    assert "spark.dynamicAllocation.minExecutors to what 2 slots need" in warning
    (warning,) = warnings(facts(**CLUSTER, **grows, decommission__enabled="true"))
    assert "decommissions executors under running slots" in warning
    found = judge(facts(**CLUSTER, **grows, slots=0, dynamicAllocation__maxExecutors="1"), TWO)
    assert len(found.problems) == 1
    enough = facts(**CLUSTER, **grows, slots=0, dynamicAllocation__maxExecutors="1", executor__cores="2")
    assert judge(enough, TWO).problems == ()


def test_on_one_host_nobody_takes_executors_away():
    assert warnings(facts(dynamicAllocation__enabled="true")) == ()


def test_workers_that_are_not_reused_are_warned_of():
    (warning,) = warnings(facts(python__worker__reuse="false"))
    assert "spark.python.worker.reuse=false" in warning


@pytest.mark.parametrize(
    ("memory", "cores", "share"), [("512m", "1", 512), ("1g", "2", 512), ("700", "1", 700), ("524288k", "1", 512)]
)
def test_too_little_address_space_is_refused(memory, cores, share):
    (problem,) = problems(facts(executor__pyspark__memory=memory, executor__cores=cores))
    assert f"spark.executor.pyspark.memory={memory} limits the address space of a slot to {share} MB" in problem


def test_little_address_space_is_warned_of_and_enough_is_fine():
    (warning,) = warnings(facts(executor__pyspark__memory="1GiB"))
    assert "limits the address space of a slot to 1024 MB" in warning
    assert warnings(facts(executor__pyspark__memory="2g")) == ()
    assert warnings(facts(executor__pyspark__memory="nonsense")) == ()
    assert warnings(facts(executor__pyspark__memory="3 parsecs", executor__cores="many")) == ()


def test_a_long_patience_with_hung_workers_is_warned_of():
    (warning,) = warnings(facts(python__task__killTimeout="1min"))
    assert "spark.python.task.killTimeout=1min" in warning
    assert warnings(facts(python__task__killTimeout="500")) == ()


def test_many_tries_of_sparks_own_are_warned_of_where_spark_makes_them():
    (warning,) = warnings(facts(**CLUSTER, task__maxFailures="1000000"))
    assert warning == (
        "spark.task.maxFailures=1000000 has Spark start a slot that cannot come up 1000000 times, without a pause, "
        "before the job learns why: set it to 4"
    )
    (warning,) = warnings(facts(master="local[4,1000]"))
    assert warning.startswith("master local[4,1000] has Spark start a slot that cannot come up 1000 times")
    for fine in (facts(**CLUSTER, task__maxFailures="8"), facts(task__maxFailures="1000"), facts(master="local[4, 2]")):
        assert warnings(fine) == ()


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"excludeOnFailure__enabled": "true"}, "spark.excludeOnFailure.enabled"),
        ({"excludeOnFailure__application__enabled": "true"}, "spark.excludeOnFailure.application.enabled"),
        ({"excludeOnFailure__taskAndStage__enabled": "true"}, "spark.excludeOnFailure.taskAndStage.enabled"),
    ],
)
def test_a_spark_that_shuns_executors_where_slots_died_is_warned_of(conf, named):
    (warning,) = warnings(facts(**CLUSTER, **conf))
    assert warning.startswith(f"{named} has Spark start no slot on executors and hosts where slots have died")
    assert warning.endswith("set it to false")
    assert warnings(facts(**conf)) == (), "there is but one executor, which is never shunned"


def test_a_spark_that_shuns_nobody_is_fine():
    off = {"excludeOnFailure__application__enabled": "false", "excludeOnFailure__taskAndStage__enabled": "false"}
    assert warnings(facts(**CLUSTER, excludeOnFailure__enabled="true", **off)) == ()


def test_a_reaper_with_too_little_patience_for_slots_is_warned_of():
    reaper = {**CLUSTER, "task__reaper__enabled": "true"}
    (warning,) = warnings(facts(**reaper, task__reaper__killTimeout="5s"))
    assert warning == (
        "spark.task.reaper.killTimeout=5s ends an executor, with all slots in it, if one slot is not killed that "
        "fast: set it to 30s or more"
    )
    for fine in (
        facts(**reaper),
        facts(**reaper, task__reaper__killTimeout="60s"),
        facts(**CLUSTER, task__reaper__killTimeout="5s"),
        facts(task__reaper__enabled="true", task__reaper__killTimeout="5s"),
    ):
        assert warnings(fine) == ()


def test_a_driver_that_other_hosts_cannot_call_is_warned_of():
    (warning,) = warnings(facts(**CLUSTER, driver__host="127.0.0.1"))
    assert warning.startswith("spark.driver.host is 127.0.0.1")
    assert warnings(facts(**CLUSTER, driver__host="10.0.0.7")) == ()
    assert warnings(facts(master="local-cluster[2,2,1024]", driver__host="127.0.0.1")) == ()


def test_an_old_spark_is_refused():
    assert problems(facts(version="3.5.4")) == ("this is Spark 3.5.4: use 4.1 or later",)
    assert problems(facts(version="5.0.0-SNAPSHOT")) == ()


def test_all_that_is_wrong_is_told_at_once():
    given = facts(slots=1, speculation="true", executor__pyspark__memory="256m", version="3.5.4")
    found = judge(given, TWO).problems
    assert len(found) == 4
    text = told(found)
    assert text.startswith("4 things keep Spark from hosting the job: this is Spark 3.5.4")
    for part in ("needs 2 slots", "spark.speculation", "spark.executor.pyspark.memory"):
        assert part in text
    assert told(found[:1]) == found[0]
    assert (
        told(found[:1], ["reuse is off", "a core is missing"])
        == f"{found[0]}; besides: reuse is off; a core is missing"
    )


# --- over Spark Connect ----------------------------------------------------------------------------------------------


def test_where_nobody_tells_how_many_cores_are_free_nothing_is_said_about_it():
    assert problems(facts(slots=1, master="local[1]", busy=None)) == (
        "the job needs 2 slots, Spark (local[1]) has 1 cores: use local[3], or parallelism=1",
    )
    assert problems(facts(slots=1, busy=None, task__cpus="0.5"))[0].startswith(
        "the job needs 2 slots, Spark (local[4]) has room for 1 tasks of 0.5 cores each (spark.task.cpus): use"
    )
    assert judge(facts(busy=None), TWO).warnings == ()


def test_where_the_server_says_it_is_reached_does_not_matter_to_a_client():
    there = HostFacts(
        **CLUSTER, version="4.3.0", task_slots=4, busy=None, conf={"spark.driver.host": "localhost"}, is_connect=True
    )
    assert judge(there, TWO).warnings == ()


FIT = WorkerFacts(host="there", python="3.11.7", executable="/opt/python")


def test_a_worker_that_has_what_it_needs_and_reaches_the_program_is_fine():
    assert judge_worker(FIT, address="10.0.0.5", same_host=None) == ()
    assert judge_worker(FIT, address="127.0.0.1", same_host="there") == ()


def test_a_worker_that_lacks_the_package_or_cannot_call_the_program_is_told_at_once():
    lacking = WorkerFacts(
        host="there", python="3.11.7", executable="/opt/python", has_penstock=False, cannot_call="timed out"
    )
    package, call = judge_worker(lacking, address="10.0.0.5", same_host=None)
    assert package.startswith(
        "Python 3.11.7 of Spark's workers (/opt/python on there) has no Penstock: install Penstock there"
    )
    assert call.startswith("Spark's workers (there) cannot call this program at 10.0.0.5: timed out: give network=")


def test_a_worker_elsewhere_is_told_when_the_server_only_looked_near():
    (problem,) = judge_worker(FIT, address="127.0.0.1", same_host="here")
    assert problem.startswith("Spark's workers run on there, this program on here: give network=")


def test_a_worker_of_another_user_is_told_where_sockets_are_in_a_folder_and_is_fine_over_tcp():
    (problem,) = judge_worker(FIT, address="127.0.0.1", same_host="there", user=1_000)
    assert problem.startswith("Spark's workers run as user 0, this program as user 1000, and sockets")
    assert problem.endswith('give network=NetworkSettings(transport="tcp")')
    assert judge_worker(FIT, address="127.0.0.1", same_host=None, user=1_000) == ()


def test_every_folder_that_a_worker_has_not_is_told():
    lacking = WorkerFacts(host="there", lacks_folders=("/shared/checkpoints", "/shared/landing"))
    first, second = judge_worker(lacking, address="10.0.0.5", same_host=None)
    assert first.startswith("Spark's workers (there) do not have this program's folder /shared/checkpoints: mount")
    assert "/shared/landing" in second


def test_a_first_task_that_fails_is_a_problem_of_its_own():
    assert judge_worker(WorkerFacts(error="no such interpreter"), address="10.0.0.5", same_host=None) == (
        "a first task failed: no such interpreter",
    )
