"""What must hold when a job of a world has ended: how the job ended, the rows that it has shown, the files that it has
left."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job.events import JobState
from penstock.core.job.fail_fast import SAME_FAILURES
from penstock.core.job.restart_pause import START_FAILURES_BEFORE_FIRST_RUN
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import SnapshotKind
from penstock.settings import Mode, NoRestart
from penstock.sim.again import Origin, check_both, check_spared, check_untouched
from penstock.sim.changing_joins import check_tables
from penstock.sim.checkers import check_files
from penstock.sim.comparison import (
    Standard,
    check_changes,
    check_order,
    check_output,
    check_parts,
    shown_by,
    shown_of,
    without_early,
)
from penstock.sim.disk import is_below
from penstock.sim.expected import Stage, expected_of_stages, read_before
from penstock.sim.jobs import Shape
from penstock.sim.programs import NAMES
from penstock.sim.rules import Rule
from penstock.sim.simulation import Simulation
from penstock.sim.user import Wish
from penstock.storage.metadata import decode_metadata


class Verdict:
    """The checks at the end of one job, which may be the second job of its world."""

    def __init__(self, ended: Simulation) -> None:
        self._ended = ended

    def check(self) -> None:
        """Report whatever does not hold as a violation."""
        world, outcome = self._ended.world, self._ended.outcome
        if not self._is_legal(outcome):
            world.violate(Rule.LIVENESS, f"the job ended as {outcome}: {self._ended.state()}")
        if self._ended.after is not None and self._ended.origin is not None and self._ended.program is None:
            self._check_both(self._ended.after, self._ended.origin)
            return
        if self._ended.after is not None:
            self._check_rerun(self._ended.after)
            return
        self._check_rows()
        self._ended.user.check_end(outcome)
        if self._ended.masters.ended_as is None:
            self._check_files(self._ended.user.given)

    def _check_files(self, given: Sequence[str]) -> None:
        kept, outcome = self._ended.kept(), self._ended.outcome
        # A later run of the job must not use the ids of kept checkpoints again, nor the id of a savepoint that was to
        # stop the job.
        stopped = any(record.kind.is_synchronous for record in self._ended.ledger.records.values())
        keeps_ids = bool(kept) or (stopped and outcome is not JobState.FINISHED) or self._has_terms
        allowed = [*given, *self.strays()]
        if self._ended.program is not None:
            # The records of results that savepoints promise stay: a run that goes on must not drop these results.
            places = (NAMES, layout.promised_folder(layout.job_folder(self._ended.job)))
            allowed += [path for path in self._ended.disk.files if any(is_below(path, place) for place in places)]
        check_files(
            self._ended.world, self._ended.disk, self._ended.job, kept=kept, allowed=allowed, keeps_ids=keeps_ids
        )

    @property
    def _has_terms(self) -> bool:
        """Whether the job keeps records of its drivers: such a job may begin again, and uses no id a second time."""
        return self._ended.program is not None or self._ended.scenario.lasting

    def _check_rows(self) -> None:
        scenario, workload = self._ended.scenario, self._ended.scenario.workload
        stop = self._ended.user.stopped
        savepoint = stop.savepoint if stop is not None else None
        inputs, complete, rule = (
            self._ended.external.inputs,
            self._ended.outcome is JobState.FINISHED,
            Rule.EXACTLY_ONCE,
        )
        newest = self._ended.newest_record
        if (
            newest is not None
            and newest.kind is SnapshotKind.TERMINATE
            and newest.checkpoint in self._ended.messages.relied_on
        ):
            # A job that fails after it was drained restarts from its savepoint, and ends again.
            savepoint = newest
        if savepoint is not None:
            rule = Rule.STOPPED
            if workload.holds_back and savepoint.kind is SnapshotKind.SUSPEND:
                # Which windows were still open, and which rows still waited, cannot be seen from outside. So rows may
                # be missing, but no window that was shown may lack a record.
                complete = False
            else:
                content = decode_metadata(savepoint.path, self._ended.disk.files[savepoint.path])
                inputs = read_before(workload, content, inputs)
        elif self._ended.user.may_have_stopped and not self._ended.has_gone_on_drained:
            complete = False
        # Every further attempt reads again the records behind the barriers of the checkpoint that it begins from.
        repeats = scenario.settings.checkpoint.mode is Mode.AT_LEAST_ONCE and self._ended.messages.attempts > 1
        standard = Standard(
            complete=complete,
            repeats=repeats,
            rule=Rule.AT_LEAST_ONCE if repeats and rule is Rule.EXACTLY_ONCE else rule,
        )
        committed = list(self._ended.external.committed.values())
        expected = expected_of_stages(workload, inputs, self._ended.stages)
        if workload.shape is Shape.CHANGES:
            check_tables(self._ended.world, committed, expected, complete=complete)
        elif workload.updates is not None and workload.shape is not Shape.LATE:
            check_changes(self._ended.world, committed, expected, standard, workload.windows)
        elif workload.shape.has_windows and (self._ended.has_gone_on_drained or workload.windows.has_parts):
            check_parts(self._ended.world, shown_by(committed), expected, standard, workload.windows)
        else:
            shown = shown_of(workload, committed)
            if self._ended.has_gone_on_drained:
                shown = without_early(shown, workload, inputs, expected)
            check_output(
                self._ended.world,
                shown,
                expected,
                standard,
                windows=workload.shape.has_windows,
                possible=expected_of_stages(workload, self._ended.external.inputs, self._ended.stages),
            )
        check_order(self._ended.world, committed, workload)

    def _check_both(self, first: Simulation, origin: Origin) -> None:
        """Check the rows that both jobs have shown, and the files that they have left."""
        settings, finished = self._ended.scenario.settings, self._ended.outcome is JobState.FINISHED
        repeats = settings.checkpoint.mode is Mode.AT_LEAST_ONCE
        committed = list(self._ended.external.committed.values())
        rule = Rule.AT_LEAST_ONCE if repeats else Rule.EXACTLY_ONCE
        check_both(
            self._ended.world,
            committed,
            self._ended.scenario.workload,
            inputs=self._ended.external.inputs,
            stages=(*first.stages, Stage(parallelism=settings.parallelism, metadata=origin.content)),
            standard=Standard(complete=finished, repeats=repeats, rule=rule),
            in_parts=origin.is_drained or first.has_gone_on_drained or self._ended.scenario.workload.windows.has_parts,
        )
        check_order(self._ended.world, committed, self._ended.scenario.workload)
        if finished:
            untouched = check_untouched(self._ended.world, self._ended.disk, origin)
            allowed = [*untouched, *self.strays(), *Verdict(first).late_outcomes()]
            check_files(
                self._ended.world,
                self._ended.disk,
                self._ended.job,
                kept=(),
                allowed=allowed,
                keeps_ids=self._has_terms,
            )
        elif not self._ended.ledger.durable:
            check_spared(self._ended.world, self._ended.disk, origin)

    def _check_rerun(self, first: Simulation) -> None:
        """Check the rows that both runs have shown, and the files that they have left."""
        settings, finished = self._ended.scenario.settings, self._ended.outcome is JobState.FINISHED
        new = [
            shown for token, shown in self._ended.external.committed.items() if token not in self._ended.shown_before
        ]
        repeats = settings.checkpoint.mode is Mode.AT_LEAST_ONCE
        rule = Rule.AT_LEAST_ONCE if repeats else Rule.EXACTLY_ONCE
        standard = Standard(complete=finished, repeats=repeats, rule=rule)
        workload, inputs = self._ended.scenario.workload, self._ended.external.inputs
        origin = self._ended.origin
        last = Stage(parallelism=settings.parallelism, metadata=None if origin is None else origin.content)
        if self._ended.has_nothing_to_do:
            if new or self._ended.host.started:
                self._ended.world.violate(rule, f"a finished job ran again, and committed {len(new)} transactions")
        elif origin is not None:
            committed = list(self._ended.external.committed.values())
            stages = (*first.stages, last)
            check_both(
                self._ended.world,
                committed,
                workload,
                inputs=inputs,
                stages=stages,
                standard=standard,
                in_parts=origin.is_drained or self._ended.has_gone_on_drained or workload.windows.has_parts,
            )
            check_order(self._ended.world, committed, workload)
        else:
            expected = expected_of_stages(workload, inputs, (last,))
            if workload.shape is Shape.CHANGES:
                check_tables(self._ended.world, new, expected, complete=finished)
            elif workload.updates is not None and workload.shape is not Shape.LATE:
                check_changes(self._ended.world, new, expected, standard, workload.windows)
            elif workload.shape.has_windows and workload.windows.has_parts:
                check_parts(self._ended.world, shown_by(new), expected, standard, workload.windows)
            else:
                check_output(
                    self._ended.world, shown_of(workload, new), expected, standard, windows=workload.shape.has_windows
                )
            check_order(self._ended.world, new, workload)
        first.user.check_end(first.outcome)
        if self._ended.given_up is not None:
            self._ended.given_up.check_end(self._ended.ledger.durable)
        if self._ended.masters.ended_as is None:
            left = (
                []
                if self._ended.given_up is None
                else [p for p in self._ended.disk.files if is_below(p, layout.job_folder(first.job))]
            )
            self._check_files([*first.user.given, *Verdict(first).strays(), *Verdict(first).late_outcomes(), *left])

    def late_outcomes(self) -> list[str]:
        """The outcomes that drivers recorded which had slept past the end of the job, after their job was taken over.
        Such a driver records an outcome before it looks whether it has the job. The outcome lies in a place of its own
        term, which no driver reads."""
        outcomes = layout.outcome_folder(layout.job_folder(self._ended.job))
        aside = [actor.name for actor in self._ended.masters.aside]
        return [
            path for path, writer in self._ended.disk.writers.items() if is_below(path, outcomes) and writer in aside
        ]

    def strays(self) -> list[str]:
        """The files that may be left although no checkpoint refers to them. Slots of earlier drivers, and drivers whose
        job was taken over, may write after the end of the job was recorded: no driver can tell them to stop. What they
        wrote before the end must be cleaned up. Also, a driver may have begun a savepoint and died before it
        answered."""
        old = [
            str(slot) for slot in self._ended.host.started if slot.incarnation < self._ended.masters.first_incarnation
        ]
        old += [actor.name for actor in self._ended.masters.aside]
        outcomes = f"{layout.outcome_folder(layout.job_folder(self._ended.job))}/"
        since_us = min((at for path, at in self._ended.disk.written_us.items() if path.startswith(outcomes)), default=0)
        late = [path for path, at_us in self._ended.disk.written_us.items() if at_us >= since_us]
        written = [path for path in late if self._ended.disk.writers[path] in old]
        return written + [path for path in self._ended.disk.files if self._ended.user.may_have_begun(path)]

    def _is_legal(self, outcome: JobState | None) -> bool:
        if outcome is JobState.CANCELLED:
            wishes = [request.wish for request in self._ended.scenario.requests]
            return self._ended.scenario.cancel_at_ms is not None or Wish.CANCEL in wishes
        if outcome is JobState.FAILED and isinstance(self._ended.scenario.settings.restart, NoRestart):
            return True
        if outcome is JobState.FAILED:
            # A job whose slots keep dying before the job has run at all gives up: its environment is taken to be wrong.
            lost = self._ended.host.losses + self._ended.network.cuts
            never_came_up = not self._ended.messages.ever_ran and lost >= START_FAILURES_BEFORE_FIRST_RUN
            return never_came_up or self._fails_fast
        return outcome is JobState.FINISHED

    @property
    def _fails_fast(self) -> bool:
        """Whether errors of the program may have ended the job. They do so only if the user has chosen no restart
        strategy."""
        errors = self._ended.messages.program_errors
        return self._ended.scenario.settings.restart is None and (0 in errors or len(errors) >= SAME_FAILURES)
