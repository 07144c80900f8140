"""Performs the effects of the lifecycle of a job: slots, attempts, rescaling, the end."""

from __future__ import annotations

import logging
from typing import assert_never

from penstock.core.coordinator.events import FailedOver, ScheduleForbidden
from penstock.core.job.events import (
    AttemptEnded,
    AttemptRescaled,
    DeployTasks,
    JobEffect,
    JobEnded,
    JobEnding,
    RegionEnded,
    ReportLoading,
    ReportStuck,
    ReportTurning,
    RescaleGivenUp,
    RescalePrepared,
    RunTasks,
    StartSlot,
    StopSlot,
    TellCancel,
    TellLeave,
    TellPeerAlive,
    TellPeerGone,
)
from penstock.core.messages import CancelTasks, PeerAlive, PeerGone
from penstock.runtime.master.chronicle import OF_ATTEMPTS
from penstock.runtime.master.closing import Closing
from penstock.runtime.master.decisions import Decisions
from penstock.runtime.master.deployment import Deployment
from penstock.runtime.master.driver_parts import DriverParts
from penstock.runtime.master.progress import JobProgress
from penstock.runtime.master.requests import RescaleRequests
from penstock.runtime.master.slot_links import SlotLinks

log = logging.getLogger(__name__)


class JobEffects:
    """Performs the lifecycle's effects, one by one."""

    def __init__(
        self,
        decisions: Decisions,
        *,
        links: SlotLinks,
        deployment: Deployment,
        parts: DriverParts,
        closing: Closing,
        rescales: RescaleRequests,
        progress: JobProgress,
    ) -> None:
        self._decisions = decisions
        self._links = links
        self._deployment = deployment
        self._parts = parts
        self._closing = closing
        self._rescales = rescales
        self._progress = progress

    def perform(self, effect: JobEffect) -> None:
        """Perform one effect."""
        self._write_down(effect)
        match effect:
            case StartSlot():
                self._links.start(effect.slot)
            case StopSlot():
                self._links.stop(effect.slot)
            case TellLeave():
                self._links.dismiss(effect.slot)
            case TellCancel():
                self._links.send(effect.slot, CancelTasks(epoch=effect.epoch, tasks=effect.tasks))
            case TellPeerAlive():
                self._links.send(effect.slot, PeerAlive(slot=effect.alive))
            case TellPeerGone():
                self._links.send(effect.slot, PeerGone(slot=effect.gone))
            case ReportStuck():
                self._progress.tell_stuck(effect.slot)
            case ReportLoading():
                self._progress.tell_loading(effect.slot)
            case ReportTurning():
                self._progress.tell_turning(effect.slot)
            case DeployTasks():
                self._deployment.ask(effect)
            case RunTasks():
                self._deployment.run(effect)
                self._rescales.running()
            case AttemptEnded():
                self._progress.attempt_failed(effect, self._decisions.now)
                self._leave_attempt()
            case RegionEnded():
                self._progress.region_failed(effect, self._decisions.now)
                self._parts.saved.attempt_over()
                self._decisions.feed_coordinator(FailedOver(tasks=effect.tasks))
            case RescalePrepared():
                self._rescales.prepared()
            case RescaleGivenUp():
                self._rescales.given_up(effect.text)
            case AttemptRescaled():
                self._rescale(effect)
            case JobEnding():
                self._end(effect)
            case JobEnded():
                self._closing.slots_left(effect)
            case _:
                assert_never(effect)

    def _write_down(self, effect: JobEffect) -> None:
        chronicle, now = self._progress.chronicle, self._decisions.now
        if isinstance(effect, RunTasks):
            chronicle.run(effect, now, restored=self._deployment.restored_id)
        elif isinstance(effect, OF_ATTEMPTS):
            chronicle.saw(effect, now, rows_read=self._progress.totals().rows_read)

    def _leave_attempt(self) -> None:
        self._deployment.give_up()
        self._parts.leave_attempt()
        self._decisions.feed_coordinator(FailedOver())

    def _rescale(self, effect: AttemptRescaled) -> None:
        job = self._closing.job
        known = {"job": job, "epoch": effect.epoch, "slots": effect.slots}
        log.info("job %s is being rescaled to %d slots", job, effect.slots, extra=known)
        self._leave_attempt()
        self._rescales.changing()
        self._deployment.rescaled(effect)

    def _end(self, effect: JobEnding) -> None:
        job, outcome = self._closing.job, effect.outcome.value
        log.info("job %s is ending: %s", job, outcome, extra={"job": job, "outcome": outcome})
        self._decisions.feed_coordinator(ScheduleForbidden())
        self._rescales.given_up("the job ended before the rescale was done")
        self._parts.coordinators.leave()
        self._closing.decided(effect)
