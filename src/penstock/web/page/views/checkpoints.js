// Checkpoints: the last hundred at a glance, how long they took and what they weigh, why they failed; and one of them.

import { html } from "../vendor/preact-htm.js";
import { now } from "../live.js";
import { Facts, Panel, Plot, State, Table } from "../parts.js";
import { to } from "../places.js";
import * as words from "../words.js";
import { Timeline } from "./timeline.js";

const STRIP_LONGEST = 100;

export function Checkpoints({ job, rest, dark }) {
  const all = job.checkpoints.history;
  const follows = rest[0] === "newest";
  const number = follows ? newestEnded(all)?.checkpoint : rest[0] === undefined ? null : Number(rest[0]);
  const head = all.find((each) => each.checkpoint === number);
  return html`
    <${Strip} job=${job} chosen=${number} />
    ${number !== null && number !== undefined && Number.isInteger(number) && html`<${Timeline} key=${number} job=${job} number=${number} head=${head} follows=${follows} />`}
    <${Summary} job=${job} />
    <${OverTime} job=${job} dark=${dark} />
    <${Failures} job=${job} />
    <${History} job=${job} chosen=${number} />`;
}

const newestEnded = (all) => all.find((each) => each.status !== "IN_PROGRESS") ?? all[0];

/** One bar per checkpoint, newest on the right: its height is how long the checkpoint took, its colour how it ended. */
function Strip({ job, chosen }) {
  const shown = job.checkpoints.history.slice(0, STRIP_LONGEST).reverse();
  const most = Math.max(1, ...shown.map((each) => each.duration_ms));
  return html`<${Panel} id="strip" title=${`The last ${words.counted(shown.length, "checkpoint")}`} json=${job.checkpoints.history} source=${`jobs/${job.id}/checkpoints`}
      aside=${html`<span class="quiet">${nextText(job)}</span> <a href=${to(job.id, "checkpoints", "newest")}>Follow the newest</a>`}>
    ${shown.length === 0
      ? html`<p class="empty">No checkpoint has been taken yet.</p>`
      : html`<div class="strip">${shown.map((each) => {
          const text = `${kindText(each)} ${each.checkpoint}: ${words.duration(each.duration_ms)}, ${each.status.toLowerCase().replace("_", " ")}${each.failure_text ? `: ${each.failure_text}` : ""}`;
          return html`<a key=${each.checkpoint} class=${`strip-bar ${each.status}${each.is_savepoint ? " savepoint" : ""}${each.checkpoint === chosen ? " chosen" : ""}`}
            href=${to(job.id, "checkpoints", each.checkpoint)} title=${text} aria-label=${text} tabindex="-1">
            <span style=${{ height: `${each.status === "FAILED" ? 100 : Math.max(6, (100 * each.duration_ms) / most)}%` }}>${each.status === "FAILED" ? "×" : ""}</span>
          </a>`;
        })}</div>
        <p class="legend"><span>Height: duration, up to ${words.duration(most)}</span><span><i class="swatch COMPLETED"></i>completed</span><span><i class="swatch savepoint"></i>savepoint</span><span><i class="swatch FAILED"></i>× failed</span><span><i class="swatch IN_PROGRESS"></i>under way</span></p>`}
  <//>`;
}

function nextText(job) {
  const { next_trigger: next, waiting } = job.checkpoints;
  if (job.ended !== null) return "";
  const queue = waiting > 0 ? `${words.counted(waiting, "request")} waiting. ` : "";
  if (next === null) return job.settings.checkpoint?.interval_ms === null ? `${queue}Checkpoints are taken on request only.` : queue;
  return `${queue}The next is due ${next - now() < 1_000 ? "now" : `in ${words.duration(Math.round((next - now()) / 1000) * 1000).replace(".0 s", " s")}`}.`;
}

export const kindText = (each) => (each.is_savepoint ? "Savepoint" : "Checkpoint");

function Summary({ job }) {
  const { counts, summary, latest_restored: restored, latest_savepoint: savepoint } = job.checkpoints;
  const spread = (of, say) => (of.max === 0 && of.min === 0 && counts.completed === 0 ? words.NONE : `${say(of.p50)} · ${say(of.p95)} · ${say(of.max)}`);
  return html`<${Panel} id="counts" title="So far" json=${{ counts, summary, restored, savepoint }}>
    <${Facts} of=${[
      ["Completed", words.count(counts.completed)],
      ["Failed", counts.failed > 0 ? html`<span class="bad-text">${words.count(counts.failed)}</span>` : "0"],
      ["Under way", words.count(counts.in_progress)],
      ["Restored", words.count(counts.restored)],
      ["Duration: half · 95 % · longest", spread(summary.duration_ms, words.duration), "Of completed checkpoints"],
      ["Written: half · 95 % · most", spread(summary.checkpointed_bytes, words.size), "Bytes written for a checkpoint"],
      ["Whole state: half · 95 % · most", spread(summary.state_bytes, words.size), "Bytes that a restore reads"],
      restored && ["Last restored", html`${restored.is_savepoint ? "savepoint" : "checkpoint"} ${restored.checkpoint}, ${words.moment(restored.restored)}`, restored.path],
      savepoint && ["Last savepoint", html`<a href=${to(job.id, "checkpoints", savepoint.checkpoint)}>${savepoint.checkpoint}</a>, ${words.moment(savepoint.ended)}`, savepoint.path],
    ]} />
  <//>`;
}

function OverTime({ job, dark }) {
  const ended = job.checkpoints.history.filter((each) => each.status === "COMPLETED").reverse();
  if (ended.length < 2) return null;
  const times = ended.map((each) => each.triggered);
  const values = (name) => ended.map((each) => each[name]);
  return html`<${Panel} id="plots" title="Over time" json=${ended}>
    <div class="plots">
      <${Plot} label="Duration of completed checkpoints" theme=${dark} points=${true} times=${times} series=${[
        { label: "duration", values: values("duration_ms"), colour: "blue", text: words.duration },
        { label: "waited before", values: values("queued_ms"), colour: "amber", text: words.duration },
      ]} />
      <${Plot} label="Sizes" theme=${dark} points=${true} times=${times} series=${[
        { label: "whole state", values: values("state_bytes"), colour: "blue", text: words.size },
        { label: "written", values: values("checkpointed_bytes"), colour: "green", text: words.size },
        { label: "in flight", values: values("persisted_bytes"), colour: "purple", text: words.size },
      ]} />
    </div>
  <//>`;
}

function Failures({ job }) {
  const groups = job.checkpoints.failures;
  if (groups.length === 0) return null;
  return html`<${Panel} id="failures" title="Failed, by cause" json=${groups} aside=${html`<span class="quiet">of the checkpoints that are remembered</span>`}>
    <ul class="groups">${groups.map((group) => html`<li key=${group.reason}>
      <strong>${words.counted(group.checkpoints.length, "time")}</strong> ${group.reason}
      <span class="quiet">${group.checkpoints.slice(0, 8).map((number) => html` <a key=${number} href=${to(job.id, "checkpoints", number)}>${number}</a>`)}${group.checkpoints.length > 8 ? " …" : ""}</span>
    </li>`)}</ul>
  <//>`;
}

function History({ job, chosen }) {
  const columns = [
    { name: "checkpoint", title: "Number", number: true, value: (each) => each.checkpoint, cell: (each) => html`<a class="strong" href=${to(job.id, "checkpoints", each.checkpoint)}>${each.checkpoint}</a>` },
    { name: "kind", title: "Kind", value: kindText, cell: (each) => html`${kindText(each).toLowerCase()}${each.unaligned ? ", unaligned" : ""}` },
    { name: "status", title: "State", value: (each) => each.status, cell: (each) => html`<${State} of=${each.status} /> ${each.status === "IN_PROGRESS" ? `${each.num_acknowledged} of ${each.num_subtasks}` : ""}` },
    { name: "triggered", title: "Begun", number: true, value: (each) => each.triggered, cell: (each) => html`<span title=${words.moment(each.triggered)}>${words.clock(each.triggered)}</span>` },
    { name: "duration", title: "Took", number: true, value: (each) => each.duration_ms, cell: (each) => words.duration(each.duration_ms) },
    { name: "queued", title: "Waited before", number: true, value: (each) => each.queued_ms, cell: (each) => words.duration(each.queued_ms) },
    { name: "written", title: "Written", number: true, value: (each) => each.checkpointed_bytes, cell: (each) => words.size(each.checkpointed_bytes) },
    { name: "state", title: "Whole state", number: true, value: (each) => each.state_bytes, cell: (each) => words.size(each.state_bytes) },
    { name: "inflight", title: "In flight", number: true, value: (each) => each.persisted_bytes, cell: (each) => words.size(each.persisted_bytes) },
    { name: "why", title: "", cell: (each) => html`<span class="wrap">${each.failure_text || (each.discarded ? "deleted since" : "")}</span>` },
  ];
  return html`<${Panel} id="history" title="Checkpoints" json=${job.checkpoints.history}>
    <${Table} label="Checkpoints" columns=${columns} rows=${job.checkpoints.history} keyOf=${(each) => each.checkpoint} empty="No checkpoint has been taken yet." rowClass=${(each) => (each.checkpoint === chosen ? "chosen" : "")} />
  <//>`;
}
