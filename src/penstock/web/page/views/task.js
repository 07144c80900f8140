// One task: what it runs, its state, and its subtasks.

import { html, useState } from "../vendor/preact-htm.js";
import { Cells } from "../cells.js";
import { Empty, Facts, Length, Panel, State, Table, TimeBar } from "../parts.js";
import { to } from "../places.js";
import { useAnswer } from "../server.js";
import * as words from "../words.js";
import { skew } from "./graph.js";

export function Task({ job, vertex }) {
  const latest = job.checkpoints.latest_completed;
  const timeline = useAnswer(latest && `penstock/checkpoints/${job.id}/${latest.checkpoint}`);
  const known = timeline.value?.vertices.find((each) => each.vertex === vertex.id);
  const sizes = new Map((timeline.value?.bars ?? []).filter((bar) => bar.vertex === vertex.id).map((bar) => [bar.subtask, bar.state_bytes]));
  return html`
    <${Panel} id="task" title=${vertex.name} json=${vertex} source=${`jobs/${job.id}/vertices/${vertex.id}`} aside=${html`<${State} of=${vertex.status} />`}>
      <${Facts} of=${[
        ["Records in", `${words.rate(vertex.rates.rows_in)}, ${words.short(vertex.totals.rows_in)} in all`],
        ["Records out", `${words.rate(vertex.rates.rows_out)}, ${words.short(vertex.totals.rows_out)} in all`],
        ["Bytes in", `${words.size(vertex.rates.bytes_in)}/s`],
        ["Bytes out", `${words.size(vertex.rates.bytes_out)}/s`],
        ["Waiting in its channels", words.size(vertex.totals.queued_bytes)],
        ["Waiting to be sent", words.size(vertex.totals.waiting_bytes)],
        ["State", latest ? words.size(known?.totals?.state_bytes ?? known?.state_bytes) : "no checkpoint yet", "In the newest completed checkpoint"],
        ...others(vertex),
      ]} />
      <h3>Operators</h3>
      <${Table} label="Operators of the task" columns=${operatorColumns(job, known)} rows=${vertex.operators} keyOf=${(operator) => operator.id} />
      <h3>Subtasks</h3>
      <${Subtasks} job=${job} vertex=${vertex} sizes=${sizes} />
    <//>`;
}

/** What operators of the task count besides records, over all subtasks. */
function others(vertex) {
  const sums = new Map();
  for (const counted of vertex.subtasks.other)
    for (const [name, value] of Object.entries(counted)) if (typeof value === "number") sums.set(name, (sums.get(name) ?? 0) + value);
  return [...sums].filter(([, value]) => value > 0).map(([name, value]) => [name.replaceAll("_", " "), words.short(value)]);
}

function operatorColumns(job, known) {
  const sizeOf = (operator) => known?.operators.find((each) => each.id === operator.id)?.state_bytes ?? null;
  return [
    { name: "name", title: "Operator", value: (operator) => operator.name, cell: (operator) => html`<span class="strong">${operator.name}</span>` },
    { name: "kind", title: "Kind", value: (operator) => operator.kind },
    { name: "runs", title: "Runs", cell: (operator) => (operator.runs ? html`<code class="runs">${operator.runs}</code>` : words.NONE) },
    { name: "state", title: "State", number: true, value: sizeOf, cell: (operator) => (sizeOf(operator) === null ? html`<span class="quiet">none</span>` : html`<a href=${to(job.id, "state", operator.id)}>${words.size(sizeOf(operator))}</a>`) },
  ];
}

const MEASURES = [
  ["rows_in_per_s", "Records in", words.rate],
  ["busy", "Busy", words.percent],
  ["blocked", "Blocked", words.percent],
  ["behind", "Event time behind", words.duration],
  ["queued_bytes", "Waiting input", words.size],
  ["state", "State", words.size],
];

function Subtasks({ job, vertex, sizes }) {
  const [measure, setMeasure] = useState("rows_in_per_s");
  const columns = vertex.subtasks;
  const behind = columns.watermark_ms.map((at) => (at === null ? null : Math.max(0, job.now - at)));
  const valueOf = { ...columns, behind, state: columns.status.map((_, i) => sizes.get(i) ?? null) };
  const rows = columns.status.map((_, subtask) => subtask);
  const [, title, text] = MEASURES.find(([name]) => name === measure);
  const uneven = skew(valueOf[measure].map((value) => value ?? 0));
  if (rows.length === 0) return html`<${Empty}>No subtask.<//>`;
  const most = Math.max(1, ...columns.rows_in_per_s);
  const at = (name) => (i) => valueOf[name][i];
  const shown = (name, say) => (i) => say(valueOf[name][i]);
  return html`
    ${rows.length > 4 && html`<div class="cells-head">
      <label>Each cell is a subtask, coloured by <select value=${measure} onChange=${(event) => setMeasure(event.target.value)}>
        ${MEASURES.map(([name, label]) => html`<option key=${name} value=${name}>${label.toLowerCase()}</option>`)}
      </select></label>
      <span class="quiet">${uneven === null ? "" : `the largest is ${uneven.toFixed(1)} times the mean`}</span>
    </div>
    <${Cells} values=${valueOf[measure]} label=${`${title} of each subtask`} text=${(i) => `${vertex.name}[${i}]: ${text(valueOf[measure][i])}`} />`}
    <${Table} label="Subtasks" rows=${rows} keyOf=${(i) => i} sort=${rows.length > 4 ? { name: "busy", down: true } : { name: "subtask", down: false }} columns=${[
      { name: "subtask", title: "Subtask", number: true, value: (i) => i },
      { name: "host", title: "Host", value: at("host"), cell: (i) => (columns.slot[i] === null ? words.NONE : html`<a href=${to(job.id, "logs", columns.slot[i])} title=${`Slot ${columns.slot[i]}`}>${columns.host[i] ?? "starting"}</a>`) },
      { name: "status", title: "State", value: at("status"), cell: (i) => html`<${State} of=${columns.status[i]} />` },
      { name: "in", title: "Records in", number: true, value: at("rows_in_per_s"), cell: (i) => html`${words.rate(columns.rows_in_per_s[i])}<${Length} value=${columns.rows_in_per_s[i]} of=${most} />` },
      { name: "out", title: "Records out", number: true, value: at("rows_out_per_s"), cell: shown("rows_out_per_s", words.rate) },
      { name: "busy", title: "Time", value: at("busy"), cell: (i) => html`<${TimeBar} shares=${{ busy: columns.busy[i], waiting: columns.waiting[i], blocked: columns.blocked[i], idle: columns.idle[i] }} />` },
      { name: "blocked", title: "Blocked", number: true, value: at("blocked"), cell: shown("blocked", words.percent) },
      { name: "behind", title: "Event time behind", number: true, value: at("behind"), cell: shown("behind", words.duration) },
      { name: "queued", title: "Waiting input", number: true, value: at("queued_bytes"), cell: shown("queued_bytes", words.size) },
      { name: "total", title: "Records in, all", number: true, value: at("rows_in"), cell: shown("rows_in", words.short) },
      { name: "state", title: "State", number: true, value: at("state"), cell: shown("state", words.size) },
    ]} />`;
}
