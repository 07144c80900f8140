// All jobs of this driver, those that have ended too.

import { html } from "../vendor/preact-htm.js";
import { now } from "../live.js";
import { Panel, State, Table } from "../parts.js";
import { to } from "../places.js";
import * as words from "../words.js";

const COLUMNS = [
  { name: "name", title: "Job", value: (job) => job.name, cell: (job) => html`<a class="strong" href=${to(job.id)}>${job.name}</a>` },
  { name: "state", title: "State", value: (job) => job.state, cell: (job) => html`<${State} of=${job.flink_state} text=${job.state} />` },
  { name: "up", title: "Up", number: true, value: (job) => (job.ended ?? now()) - job.started, cell: (job) => words.duration(Math.round(((job.ended ?? now()) - job.started) / 1000) * 1000) },
  { name: "in", title: "Read", number: true, value: (job) => job.rates.rows_in_per_s, cell: (job) => words.rate(job.rates.rows_in_per_s) },
  { name: "out", title: "Into sinks", number: true, value: (job) => job.rates.rows_out_per_s, cell: (job) => words.rate(job.rates.rows_out_per_s) },
  { name: "lag", title: "Event time behind", number: true, value: (job) => (job.ended === null ? job.watermark_lag_ms : null), cell: (job) => (job.ended === null ? words.duration(job.watermark_lag_ms) : words.NONE) },
  { name: "checkpoint", title: "Last checkpoint", value: (job) => job.latest_completed?.ended ?? null, cell: lastCheckpoint },
  { name: "restarts", title: "Restarts", number: true, value: (job) => job.restarts, cell: (job) => html`<a href=${to(job.id, "restarts")}>${job.restarts}</a>` },
];

function lastCheckpoint(job) {
  const latest = job.latest_completed;
  if (!latest) return html`<span class="quiet">none</span>`;
  const when = job.ended === null ? words.ago(now() - (latest.ended ?? latest.triggered)) : words.clock(latest.ended);
  return html`<a href=${to(job.id, "checkpoints", latest.checkpoint)}>${latest.checkpoint}</a> ${when}, ${words.duration(latest.duration_ms)}, ${words.size(latest.state_bytes)}`;
}

export function Jobs({ jobs }) {
  const live = jobs.filter((job) => job.ended === null);
  const said = live.flatMap((job) => job.sentences.filter((one) => one.level === "bad").map((one) => [job, one]));
  return html`
    <h1 class="page-title">Jobs <span class="quiet">${words.count(live.length)} running, ${words.count(jobs.length - live.length)} ended</span></h1>
    ${said.length > 0 && html`<ul class="sentences">${said.map(
      ([job, one]) => html`<li key=${`${job.id} ${one.topic} ${one.text}`} class=${one.level}><a href=${to(job.id)}>${job.name}</a>: ${one.text}</li>`,
    )}</ul>`}
    <${Panel} id="jobs" title="All jobs of this driver" json=${jobs} source="penstock/jobs">
      <${Table} label="Jobs" columns=${COLUMNS} rows=${jobs} keyOf=${(job) => job.id} empty="No job has been started by this program yet." />
    <//>`;
}
