// Restarts: when, why, from which checkpoint, how long it took, and what was read again.

import { html } from "../vendor/preact-htm.js";
import { now } from "../live.js";
import { CopyJson, Empty, Facts, Panel, State, Table } from "../parts.js";
import { to } from "../places.js";
import * as words from "../words.js";

export function Restarts({ job, rest }) {
  const chosen = rest[0] === undefined ? null : Number(rest[0]);
  return html`
    <${Life} job=${job} />
    <${Panel} id="attempts" title="Attempts, newest first" json=${job.attempts}>
      <ol class="attempts">${job.attempts.map((attempt, place) => html`<${Attempt} key=${attempt.attempt} job=${job} attempt=${attempt} next=${job.attempts[place - 1]} isOpen=${chosen === attempt.attempt || (chosen === null && place < 2)} />`)}</ol>
      ${job.attempts.length === 0 && html`<${Empty}>The job has not been deployed yet.<//>`}
    <//>
    <${Failures} job=${job} />
    <${Rescales} job=${job} />`;
}

/** The whole life of the job as a bar: running, and not. */
function Life({ job }) {
  const end = job.ended ?? now();
  const whole = Math.max(1, end - job.started);
  const at = (time) => (100 * (Math.max(time, job.started) - job.started)) / whole;
  const runs = job.attempts.filter((attempt) => attempt.ran !== null && attempt.tasks === null);
  const up = runs.reduce((sum, attempt) => sum + (attempt.ended ?? end) - attempt.ran, 0);
  return html`<${Panel} id="life" title="Running and not running" json=${job.timestamps} aside=${html`<span class="quiet">running ${words.percent(Math.min(1, up / whole))} of ${words.duration(Math.round(whole / 1000) * 1000)}</span>`}>
    <div class="life" role="img" aria-label=${`The job ran for ${words.duration(up)} of ${words.duration(whole)}, in ${words.counted(runs.length, "attempt")}`}>
      ${runs.map((attempt) => html`<span key=${attempt.attempt} class="piece up" title=${`attempt ${attempt.attempt}: ${words.moment(attempt.ran)} to ${attempt.ended === null ? "now" : words.moment(attempt.ended)}`}
        style=${{ left: `${at(attempt.ran)}%`, width: `max(1px, ${at(attempt.ended ?? end) - at(attempt.ran)}%)` }}></span>`)}
    </div>
    <p class="legend"><span>${words.moment(job.started)}</span><span><i class="swatch up"></i>running</span><span><i class="swatch down"></i>not running</span><span>${job.ended === null ? "now" : words.moment(job.ended)}</span></p>
  <//>`;
}

const HOW_TONES = { "": "RUNNING", failed: "FAILED", "region failed": "FAILED", finished: "FINISHED", cancelled: "CANCELED", rescaled: "RESTARTING" };

function Attempt({ job, attempt, next, isOpen }) {
  const from = attempt.restored_checkpoint === null ? "from the beginning" : html`from checkpoint <a href=${to(job.id, "checkpoints", attempt.restored_checkpoint)}>${attempt.restored_checkpoint}</a>`;
  const until = attempt.ran === null ? null : attempt.ran - attempt.deployed;
  return html`<li id=${`attempt-${attempt.attempt}`}>
    <p class="attempt-head">
      <a class="strong" href=${to(job.id, "restarts", attempt.attempt)}>Attempt ${attempt.attempt}</a>
      <${State} of=${HOW_TONES[attempt.how] ?? "FINISHED"} text=${attempt.how || (attempt.ran === null ? "deploying" : "running")} />
      <span>${words.moment(attempt.deployed)}, ${from}${attempt.tasks === null ? "" : `, ${words.counted(attempt.tasks, "task")} of it`}</span>
    </p>
    <${Facts} of=${[
      ["Until running", words.duration(until), "From the deployment until all tasks ran"],
      attempt.down_ms !== null && ["Down", words.duration(attempt.down_ms), "From the end of the attempt before until all tasks ran again"],
      attempt.replayed !== null && ["Read again", words.counted(attempt.replayed, "record"), "Records after the checkpoint that the attempt before had read already"],
      ["Ran", attempt.ran === null ? words.NONE : words.duration(Math.round(((attempt.ended ?? job.ended ?? now()) - attempt.ran) / 1000) * 1000)],
      attempt.ended !== null && ["Ended", words.moment(attempt.ended)],
      next && attempt.restart_in_ms !== null && ["Pause before the next", words.duration(attempt.restart_in_ms)],
    ]} />
    ${attempt.cause && html`<${Cause} cause=${attempt.cause} isOpen=${isOpen} />`}
  </li>`;
}

function Cause({ cause, isOpen }) {
  const where = cause.operator === null ? "" : ` in ${cause.operator}${cause.subtask === null ? "" : `[${cause.subtask}]`}`;
  return html`<div class="cause">
    <p><strong>${cause.user_code ? "Your code failed" : "It failed"}${where}:</strong> ${words.firstLine(cause.text)}</p>
    ${cause.why_final && html`<p>The job was not restarted: ${cause.why_final}</p>`}
    ${cause.traceback && html`<details class="trace" open=${isOpen}><summary>Traceback</summary><${CopyJson} value=${cause.traceback} label="Copy" /><pre>${cause.traceback}</pre></details>`}
    ${!cause.traceback && String(cause.text).includes("\n") && html`<details class="trace" open=${isOpen}><summary>All of it</summary><pre>${cause.text}</pre></details>`}
  </div>`;
}

function Failures({ job }) {
  const columns = [
    { name: "when", title: "When", value: (failure) => failure.when, cell: (failure) => words.moment(failure.when) },
    { name: "attempt", title: "Attempt", number: true, value: (failure) => failure.attempt },
    { name: "where", title: "Where", value: (failure) => failure.operator, cell: (failure) => (failure.operator === null ? words.NONE : `${failure.operator}${failure.subtask === null ? "" : `[${failure.subtask}]`}`) },
    { name: "what", title: "What", value: (failure) => failure.text, cell: (failure) => html`<span class="wrap">${words.firstLine(failure.text)}</span>` },
    { name: "then", title: "Then", value: (failure) => failure.restart_in_ms, cell: (failure) => (failure.restart_in_ms === null ? "the job ended, or was restarted already" : `restart after ${words.duration(failure.restart_in_ms)}`) },
  ];
  return html`<${Panel} id="failures" title="Failures" json=${job.failures} source=${`jobs/${job.id}/exceptions`}>
    <${Table} label="Failures" columns=${columns} rows=${job.failures} keyOf=${(failure) => `${failure.when} ${failure.attempt} ${failure.operator} ${failure.subtask}`} empty="Nothing has failed." />
  <//>`;
}

function Rescales({ job }) {
  if (job.rescales.length === 0) return null;
  const columns = [
    { name: "asked", title: "Asked", value: (each) => each.asked, cell: (each) => words.moment(each.asked) },
    { name: "what", title: "Parallelism", cell: (each) => `${each.before} → ${each.after}` },
    { name: "state", title: "State", value: (each) => each.state, cell: (each) => html`<${State} of=${each.state} />` },
    { name: "took", title: "Took", number: true, cell: (each) => words.duration((each.times.completed ?? each.times.failed ?? now()) - each.asked) },
    { name: "why", title: "", cell: (each) => html`<span class="wrap">${each.text}</span>` },
  ];
  return html`<${Panel} id="rescales" title="Changes of the parallelism" json=${job.rescales} source=${`jobs/${job.id}/rescales/history`}>
    <${Table} label="Changes of the parallelism" columns=${columns} rows=${job.rescales} keyOf=${(each) => each.asked} />
  <//>`;
}
