"""The environment of a program on Spark: builds the plan, lands DataFrames, starts the job master and the slots."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.backends import StateBackend, as_state_settings
from penstock.api.boundary import at_user_line
from penstock.api.checkpointing import Checkpointing
from penstock.api.grouped import GroupedFunction, HostedProcessor
from penstock.api.high_availability import HighAvailability
from penstock.api.job_names import job_slug
from penstock.api.program import Program
from penstock.api.restoring import Restore
from penstock.api.restoring import restore as make_restore
from penstock.api.static_tables import StaticTable
from penstock.api.streams.data_stream import Stream
from penstock.api.travelling import check_functions_travel
from penstock.api.web import Web
from penstock.connectors.file_sink import local_path
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import SettingsError, StorageError, UsageError
from penstock.core.ids import JobId
from penstock.core.recovery import layout, roots
from penstock.core.recovery.restore_plan import RestorePlan
from penstock.plan.graph import Plan
from penstock.ports import Leader
from penstock.runtime.in_process import look
from penstock.runtime.master.runs import Run, settings_of_run
from penstock.runtime.master.savepoint_folders import TRIAL
from penstock.runtime.master.starting import StartingPoint, found_by, inherited, record_start, starting_point
from penstock.runtime.views import JobView
from penstock.settings import (
    CheckpointSettings,
    JobSettings,
    NetworkSettings,
    NoRestart,
    Restart,
    Retention,
    SlotSettings,
)
from penstock.spark.arguments import argument_problems
from penstock.spark.async_calls import AsyncioCalls
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.connect import is_connect
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.host_rules import Needs
from penstock.spark.interrupts import spare_jobs
from penstock.spark.java import session_of
from penstock.spark.job import Job, MasterParts, Seek
from penstock.spark.launching import Launcher
from penstock.spark.live_line import shown_progress
from penstock.spark.looking import SparkRunner
from penstock.spark.overrides import overridden
from penstock.spark.page import chosen_web, show
from penstock.spark.preflight import (
    check_host,
    check_session,
    task_slots,
    use_own_interpreter,
)
from penstock.spark.preparing import (
    Preparation,
    finds_more_later,
    landed_steps,
    needs_landing,
    start_of,
)
from penstock.spark.quiet import keep_quiet
from penstock.spark.runs import announcement, begin_run, continued, starts_over
from penstock.spark.savepoint_targets import SavepointTargets
from penstock.spark.standby import Standby, open_election, standby_view
from penstock.spark.static_frames import StaticFrame
from penstock.spark.streams import StreamSource
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.records import FileRecords
from penstock.storage.remote import RemoteStore
from penstock.storage.seals import StoreOptions

Storage = FileStore | RemoteStore

log = logging.getLogger(__name__)


@at_user_line
class Environment(Program):
    """A program that runs on a SparkSession.

    Args:
        spark: the session, a classic session or a session of Spark Connect, or the builder of a session. Tasks of the
            session become the job's slots. Default: the active session, or else the session that
            `SparkSession.builder` makes.
        parallelism: how many slots the job has, and so how many subtasks each step has. Default: one less than Spark
            has cores, and less the spare slots.
        checkpointing: when checkpoints are taken and where they are kept. Without `checkpointing` the job takes only
            its final checkpoint, into a temporary folder, and a failure ends the job.
        restart: what follows a failure: `no_restart()`, `fixed_delay(...)`, `exponential_delay(...)`,
            `failure_rate(...)`. Default without `checkpointing`: no restart. Default with `checkpointing`: exponential
            delay; but an error of the program ends the job if the error comes before the first checkpoint, or three
            times at one place without a checkpoint in between. A failure that no restart can mend ends the job in any
            case.
        max_parallelism: the number of key groups. The parallelism of the job can never be higher.
        network: how slots exchange batches.
        slots: how slots are watched.
        spare_slots: how many spare slots wait, without work, to take the place of a lost slot at once. Without a spare
            slot, the job waits a second or so until another slot is up. Each spare slot costs a core.
        source_batch_rows: a source is asked for at most this many rows at a time.
        state_backend: where keyed state is kept while the job runs: `ps.memory()`, or the name of a state back end.
        landing: the folder into which Spark writes the DataFrames of `from_dataframe`. The driver and all executors
            must have the folder mounted. Only the users that `Checkpointing(readable_by=...)` lets in can enter the
            folders that are made there. Default: the checkpoint directory, if it is such a folder.
        high_availability: where several drivers of the job meet, so that one driver can take the job over from
            another: `ha_files(...)` or `zookeeper(...)`. Default: the job ends with its driver.
        web: whether the program has a page with its jobs, and where: `True`, `False`, or `ps.Web(...)`. Default: a page
            on this host only, if the extra `web` is installed.

    """

    def __init__(  # noqa: PLR0913  # one keyword per question; all have defaults
        self,
        spark: Any = None,
        *,
        parallelism: int | None = None,
        checkpointing: Checkpointing | None = None,
        restart: Restart | None = None,
        max_parallelism: int | None = None,
        network: NetworkSettings | None = None,
        slots: SlotSettings | None = None,
        spare_slots: int = 0,
        source_batch_rows: int = JobSettings.source_batch_rows,
        state_backend: StateBackend | None = None,
        landing: str | os.PathLike[str] | None = None,
        high_availability: HighAvailability | None = None,
        web: bool | Web | None = None,
    ) -> None:
        # Called first: at this point the local variables are the arguments, and no others.
        given = overridden(locals())
        spark = session_of(spark)
        check_session(spark)
        parallelism, max_parallelism, spare_slots = (
            given[name] for name in ("parallelism", "max_parallelism", "spare_slots")
        )
        checkpointing, restart, network, slots = (
            given[name] for name in ("checkpointing", "restart", "network", "slots")
        )
        source_batch_rows, state_backend, landing = (
            given[name] for name in ("source_batch_rows", "state_backend", "landing")
        )
        if problems := argument_problems(given):
            raise SettingsError(problems)
        if checkpointing is None:
            _refuse_lasting(high_availability)
        if restart is None and checkpointing is None:
            restart = NoRestart()
        settings = JobSettings(
            parallelism=parallelism if parallelism is not None else max(1, task_slots(spark) - 1 - spare_slots),
            max_parallelism=max_parallelism,
            checkpoint=checkpointing.settings if checkpointing is not None else CheckpointSettings(),
            restart=restart,
            network=network or NetworkSettings(),
            slot=replace(slots or SlotSettings(), spares=spare_slots) if spare_slots else slots or SlotSettings(),
            source_batch_rows=source_batch_rows,
            state=as_state_settings(state_backend),
        )
        if problems := settings.problems():
            raise SettingsError(problems)
        runner = SparkRunner(spark, run=self._run_apart, look=self._look)
        super().__init__(settings, processor_host=self._host_processor, table_host=self._host_table, runner=runner)
        self._spark = spark
        self._checkpointing = checkpointing
        self._options = StoreOptions() if checkpointing is None else _options_of(checkpointing)
        self._high_availability = high_availability
        self._landing = FileStore(landing, options=self._options) if landing is not None else None
        self._directories: list[Path] = []
        self._web = chosen_web(web)

    @property
    def spark(self) -> Any:
        """The session that the job runs on."""
        return self._spark

    def from_dataframe(self, frame: Any, *, name: str | None = None) -> Stream:
        """A stream of the rows of a batch DataFrame. The DataFrame may come from any Spark SQL.

        Spark writes the DataFrame once, when the job starts, into the checkpoint directory (or into `landing`, see
        `Environment`). The job reads the rows from there, and after a failure reads exactly the same rows again.
        """
        self._check_landing()
        return self.read(DataFrameSource(frame), name=name)

    def from_stream(
        self,
        frame: Any,
        *,
        trigger: Duration | None = None,
        available_now: bool = False,
        directory: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """A stream of the rows of a streaming DataFrame. The DataFrame may come from any source and any SQL of
        Structured Streaming.

        A streaming query of Spark writes its micro-batches as files into the checkpoint directory (or into `landing`,
        see `Environment`). The job reads each micro-batch exactly once, as long as Spark's source can be read again.
        Files that the newest completed checkpoint does not need are deleted. The query runs as long as the job, and
        needs cores of its own.

        Args:
            frame: a streaming DataFrame, from `spark.readStream` and SQL. Its query must be able to run in append mode.
            trigger: how often Spark takes a micro-batch. Default: as soon as there is data.
            available_now: read the data that is there when the job starts, in as many micro-batches as the source
                makes, and end.
            directory: a folder for the files of the micro-batches that outlives the job, so that another job can go on
                from a snapshot of this job. The driver and all executors must have the folder mounted.
            name: the name of the step.

        """
        if directory is None:
            self._check_landing()
        trigger_ms = None if trigger is None else duration_ms(trigger, argument="trigger")
        if available_now and trigger_ms is not None:
            raise UsageError("trigger and available_now were both given", hint="give only one of the two")
        place = None if directory is None else Path(local_path(os.fspath(directory)))
        source = StreamSource(frame, trigger_ms=trigger_ms, available_now=available_now, directory=place)
        self._directories += [] if place is None else [place]
        return self.read(source, name=name)

    def _check_landing(self) -> None:
        directory = self._checkpointing.location if self._checkpointing is not None else ""
        if self._landing is None and not roots.is_local(directory):
            raise UsageError(
                f"Spark cannot write DataFrames for the job to {roots.shown(directory)}, which is no mounted folder",
                hint="give Environment(landing=...) a folder that the driver and all executors have mounted",
            )

    def _host_table(self, given: Any) -> StaticTable | None:
        from pyspark.sql import DataFrame

        if not isinstance(given, DataFrame):
            return None
        self._check_landing()
        return StaticFrame(given)

    def _host_processor(self, given: HostedProcessor) -> GroupedFunction:
        from penstock.spark.processors import host_processor

        if given.initial_state is not None:
            self._check_landing()
        return host_processor(given, self._spark)

    def start(
        self,
        name: str = "job",
        *,
        restore: Restore | str | os.PathLike[str] | None = None,
        fresh: bool = False,
    ) -> Job:
        """Start the job and return at once. The returned `Job` shows how the job goes, and controls the job.

        With `checkpointing`, a job of this name that ran in the same directory before **goes on from its newest
        checkpoint**, and logs that it does. The program and the parallelism may differ from those of the earlier run. A
        job that had come to the end of its data has nothing to do, unless one of its sources is a
        `from_stream(available_now=True)`, which looks for more data. Only one driver at a time can run the job. On
        object storage all this needs the extra `object-storage`. Where a job cannot go on, the job starts over, and
        logs that it does.

        Args:
            name: the name of the job.
            restore: a savepoint or checkpoint to start from instead, of this job or of another job: a path, or
                `penstock.restore(...)` for more than a path. A job that has begun from `restore` goes on from its own
                newest checkpoint, if it is run again with the same `restore`.
            fresh: start over, at the beginning or from `restore`, whatever earlier runs have done. The checkpoints of
                earlier runs are deleted when this run has its first checkpoint. Results of earlier runs stay, and are
                shown again by this run.

        With `high_availability` a job is identified by its name. If another driver has the job, this driver is on
        standby, and takes the job over when the other driver dies. If no driver has the job, the job goes on from its
        newest checkpoint, whatever `restore` says. If the job has ended, `wait` tells its outcome.

        Raises:
            UsageError: the snapshot to start from does not exist, or does not fit the program; or another driver runs
                the job.

        """
        job = self._start(name, restore=restore, fresh=fresh)
        show(job, self._web, self.settings, self._checkpointing)
        return job

    def _start(self, name: str, *, restore: Restore | str | os.PathLike[str] | None, fresh: bool) -> Job:
        check_session(self._spark)
        job_name = job_slug(name)
        if fresh and self._high_availability is not None:
            raise UsageError(
                "fresh=True was given, and a job with high_availability cannot start over: the job always goes on",
                hint="give the job another name; or, if the job has ended, give ha_files(..., restart_finished=True)",
            )
        plan = self.plan()
        self._check(plan)
        given = restore if restore is None or isinstance(restore, Restore) else make_restore(restore)
        chosen = self._high_availability
        store = open_store(self._storage_root(), options=self._options)
        obstacle = store.obstacle_to_create() if chosen is None and self._checkpointing is not None else None
        if chosen is None and self._checkpointing is not None and obstacle is None:
            # If the job cannot start from the snapshot, an error is raised before anything has been changed.
            check = partial(self._starting_point, plan)
            run = begin_run(store, name, job_name, given, fresh=fresh, check=check)
            run.settings = settings_of_run(self.settings, finds_more_later=finds_more_later(plan))
            return self._job(run.job, name, plan, store, attempt=partial(self._run, run, plan, name, store, given))
        job = JobId(job_name if chosen is not None else f"{job_name}-{fresh_token()}")
        # If the storage cannot be written, this raises an error. Otherwise only the first checkpoint would show it.
        trial = f"{layout.job_folder(job)}/{TRIAL}"
        store.write(trial, b"")
        store.delete(trial)
        if obstacle is not None and given is None and not fresh:
            log.warning("%s", starts_over(name, store, obstacle))
        if chosen is None:
            return self._job(job, name, plan, store, attempt=lambda _: self._begin(plan, job, name, store, given))
        build = partial(self._take_over, plan, job, name, store, given)
        standby = Standby(election=open_election(chosen, job, store), build=build)
        return self._job(job, name, plan, store, attempt=standby.attempt, seek=standby.seek)

    def _check(self, plan: Plan) -> None:
        """Raise `UsageError` or `HostError` if the plan cannot run on this Spark; and get Spark ready."""
        check_functions_travel(plan)
        self._make_folders()
        needs = Needs(parallelism=self.settings.parallelism, spare_slots=self.settings.slot.spares)
        check_host(self._spark, needs, self.settings.network, self._shared_folders())
        use_own_interpreter(self._spark)
        keep_quiet(self._spark)
        spare_jobs(self._spark)
        if needs_landing(plan):
            self._check_landing()

    def _run_apart(self, plan: Plan) -> None:
        """Run a plan to its end as a job of its own: no run of the program goes on from it, no hook is called, and
        nothing of it is left."""
        check_session(self._spark)
        self._check(plan)
        apart = copy.copy(self)
        checkpoint = replace(self.settings.checkpoint, retention=Retention.DELETE)
        vars(apart).update(_hooks={}, _settings=replace(self.settings, checkpoint=checkpoint))
        begin = apart._begin  # noqa: SLF001  # of the same class
        with self._storage_apart() as (job, store):
            begun = self._job(job, "collect", plan, store, attempt=lambda _: begin(plan, job, "collect", store, None))
            try:
                begun.wait()
            except KeyboardInterrupt:
                begun.cancel()
                begun.finish()
                raise

    def _look(self, plan: Plan, *, rows: int, timeout_ms: int | None) -> list[pa.RecordBatch]:
        """The first rows that come to the sink of a plan, which runs in this process."""
        check_session(self._spark)
        with self._storage_apart() as (job, store):
            ready = Preparation(
                job=job, spark=self._spark, landing=(self._landing or store).location, options=self._options
            ).prepare(plan)
            news, clock = threading.Event(), WallClock()

            def wait(seconds: float) -> None:
                news.wait(seconds)
                news.clear()

            calls = AsyncioCalls(news.set, name="penstock-look-calls")
            try:
                return look(ready, self.settings, rows=rows, timeout_ms=timeout_ms, clock=clock, calls=calls, wait=wait)
            finally:
                calls.close()

    @contextmanager
    def _storage_apart(self) -> Iterator[tuple[JobId, Storage]]:
        """A job of its own, and where it has its files, which are deleted when the block ends."""
        job = JobId(f"collect-{fresh_token()}")
        store = open_store(self._storage_root(), options=self._options)
        try:
            yield job, store
        finally:
            for place in (store, self._landing):
                if place is not None:
                    place.delete_tree(layout.job_folder(job))
            if self._checkpointing is None:
                shutil.rmtree(store.location, ignore_errors=True)

    def _job(
        self,
        job: JobId,
        name: str,
        plan: Plan,
        store: Storage,
        *,
        attempt: Callable[[Callable[[], None]], MasterParts | None],
        seek: Seek = lambda _left, _lost: None,
    ) -> Job:
        log.info("job %r has the id %s, and its folder is in %s", name, job, store.location)
        return Job(
            job=job,
            name=name,
            targets=self._targets(plan),
            cores=lambda: task_slots(self._spark) - self.settings.slot.spares,
            attempt=attempt,
            seek=seek,
            waiting=standby_view(job),
            spark=self._spark,
            settings=msgspec.to_builtins(self.settings),
        )

    def restore_plan(self, restore: Restore | str | os.PathLike[str]) -> RestorePlan:
        """What `start` with the same `restore` would do, without doing it: which operator gets which state, which state
        of the snapshot no operator takes, and which operators begin without state. Print the plan to read it.

        Raises:
            UsageError: the snapshot does not exist, or does not fit the program.

        """
        given = restore if isinstance(restore, Restore) else make_restore(restore)
        return self._starting_point(self.plan(), given).restore_plan

    def run(
        self,
        name: str = "job",
        *,
        restore: Restore | str | os.PathLike[str] | None = None,
        fresh: bool = False,
        quiet: bool = False,
    ) -> JobView:
        """Start the job, as `start` does, and wait for its end. Returns the last view of the job. Ctrl-C cancels the
        job; if the program is run again, the job goes on from its newest checkpoint.

        Meanwhile a line on standard error shows how the job goes: events a second, how far the watermark is behind,
        how old the newest checkpoint is, and restarts. Where standard error is no terminal, a line is printed every ten
        seconds. `quiet` shows nothing.

        Raises:
            JobFailed: the job failed for good; the cause is in the text.

        """
        job = self.start(name, restore=restore, fresh=fresh)
        try:
            with shown_progress(name, job.view, WallClock(), quiet=quiet):
                return job.wait()
        except KeyboardInterrupt:
            job._stop_interrupted()  # noqa: SLF001  # private, since no other code may say that Ctrl-C was pressed
            raise

    def _shared_folders(self) -> list[Path]:
        """The folders that the user has named and that the driver and all slots must have mounted."""
        found = list(self._directories) if self._landing is None else [*self._directories, self._landing.root]
        if self._checkpointing is not None and roots.is_local(self._checkpointing.location):
            found.append(FileStore(self._checkpointing.location).root)
        return found

    def _make_folders(self) -> None:
        """Make the folders that Spark or a check of the hosts would otherwise make, with a mode that lets other users
        in."""
        if self._landing is not None:
            self._landing.make_folder()
        if is_connect(self._spark):
            for folder in self._shared_folders():
                # The step that needs the folder raises an error of its own.
                with suppress(StorageError):
                    FileStore(folder, options=self._options).make_folder()

    def _storage_root(self) -> str:
        if self._checkpointing is not None:
            return self._checkpointing.location
        return tempfile.mkdtemp(prefix="penstock-")

    def _targets(self, plan: Plan) -> SavepointTargets:
        directory = None if self._checkpointing is None else self._checkpointing.location
        is_fleeting = directory is None and self._landing is None
        return SavepointTargets(directory=directory, fleeting=landed_steps(plan) if is_fleeting else ())

    def _starting_point(self, plan: Plan, restore: Restore) -> StartingPoint:
        return starting_point(open_store(restore.path, options=self._options), restore, plan, self.settings)

    def _begin(self, plan: Plan, job: JobId, name: str, store: Storage, given: Restore | None) -> MasterParts:
        """The master of a job that ends with this driver."""
        point = None if given is None else self._starting_point(plan, given)
        ready = Preparation(
            job=job,
            spark=self._spark,
            landing=(self._landing or store).location,
            begin=None if point is None else point.fresh,
            options=self._options,
        ).prepare(plan if point is None else point.plan)
        if point is not None:
            record_start(FileRecords(store, layout.job_folder(job), term=None), point)
        return self._launch(ready, job=job, name=name, store=store, started_from=point.record if point else None)

    def _run(
        self, run: Run, plan: Plan, name: str, store: Storage, given: Restore | None, lost: Callable[[], None]
    ) -> MasterParts:
        """The parts of the master of a job that ends with this driver, and goes on when the program is run again."""
        run.lost.call = lost
        try:
            parts = self._take_over(plan, run.job, name, store, given, run.leader, run=run)
        except BaseException:
            run.abandon()
            raise
        run.began()
        return replace(parts, announcement=announcement(name, run.leader.tenure, store))

    def _take_over(
        self,
        plan: Plan,
        job: JobId,
        name: str,
        store: Storage,
        given: Restore | None,
        leader: Leader,
        run: Run | None = None,
    ) -> MasterParts:
        """The parts of the master of a job that may have had other drivers before: a job that can outlive its driver,
        or a job whose program is run again (`run`)."""
        # This checks the records, and must come before anything that the records name is used.
        leader.tenure = found_by(leader.tenure, store, job, given, sealed=self._options.seal is not None)
        tenure = leader.tenure
        landing = (self._landing or store).location
        if tenure.outcome is not None:
            left = Preparation(
                job=job,
                spark=self._spark,
                landing=landing,
                begin=(),
                began=tenure.start,
                has_ended=True,
                options=self._options,
            )
            return self._launch(left.prepare(plan), job=job, name=name, store=store, leader=leader, run=run)
        first = tenure.start is None and not tenure.completed
        if first and given is not None:
            going_on: StartingPoint | Plan = self._starting_point(plan, given)
        elif run is not None:
            going_on = continued(name, plan, store, tenure, self.settings)
        else:
            going_on = inherited(plan, store, tenure, self.settings)
        point = going_on if isinstance(going_on, StartingPoint) else None
        ready = Preparation(
            job=job,
            spark=self._spark,
            landing=landing,
            begin=None if point is None else point.fresh,
            options=self._options,
            began=tenure.start,
            term=tenure.term,
        ).prepare(plan if point is None else point.plan)
        start = start_of(ready)
        began_with = point.record if first and point is not None else None
        changed = tenure.start.changed_steps(start) if tenure.start is not None else ()
        if changed:
            log.warning("job %r goes on with another program: %s", name, ", ".join(changed))
        if start != tenure.start:
            leader.records.record_start(start, began_with)
        return self._launch(ready, job=job, name=name, store=store, started_from=began_with, leader=leader, run=run)

    def _launch(self, plan: Plan, **of_job: Any) -> MasterParts:
        launcher = Launcher(
            spark=self._spark,
            settings=self.settings,
            options=self._options,
            landing=self._landing,
            shared_folders=self._shared_folders(),
            hooks=self.checkpoint_hooks,
            is_storage_temporary=self._checkpointing is None,
        )
        return launcher.launch(plan, **of_job)


def _options_of(checkpointing: Checkpointing) -> StoreOptions:
    return StoreOptions(seal=checkpointing.seal_key, readable_by=checkpointing.readable_by)


def _refuse_lasting(chosen: HighAvailability | None) -> None:
    if chosen is not None:
        raise UsageError(
            "high_availability was given without checkpointing: another driver would have no checkpoint to go on from",
            hint="give Environment(checkpointing=ps.Checkpointing(directory=...)), too",
        )
