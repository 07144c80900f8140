// One checkpoint: why it took as long as it did, and what each subtask did meanwhile, the slowest first.

import { html, useState } from "../vendor/preact-htm.js";
import { Facts, Panel, State, Table, Waiting } from "../parts.js";
import { to } from "../places.js";
import { useAnswer } from "../server.js";
import * as words from "../words.js";

export const PHASES = [
  ["queued", "waiting for the trigger", "the request waited until a checkpoint could begin"],
  ["start_delay", "start delay", "from the trigger until the first barrier came"],
  ["alignment", "alignment", "from the first barrier to the last"],
  ["sync", "sync", "the state was frozen; no record was processed"],
  ["async", "async", "the state was written, while records went on"],
  ["rest", "rest", "between these, and until the driver had heard of it"],
  ["commit", "commit", "the driver made the checkpoint durable; sinks commit after it"],
];
const BARS_SHOWN = 40;
const ASK_EVERY_MS = 1_000;

export function Timeline({ job, number, head, follows }) {
  const isUnderWay = head?.status === "IN_PROGRESS";
  const answer = useAnswer(`penstock/checkpoints/${job.id}/${number}`, { everyMs: isUnderWay ? ASK_EVERY_MS : 0, version: head?.status ?? "" });
  const found = answer.value;
  const title = `${head?.is_savepoint ? "Savepoint" : "Checkpoint"} ${number}`;
  return html`<${Panel} id="timeline" title=${title} json=${found ?? undefined} source=${`penstock/checkpoints/${job.id}/${number}`}
      aside=${html`${found && html`<${State} of=${found.status} />`} ${follows ? html`<a href=${to(job.id, "checkpoints", number)}>Stay at this one</a>` : neighbours(job, number)}`}>
    ${found === null ? html`<${Waiting} error=${answer.error} what="The timeline" />` : html`<${Found} job=${job} found=${found} />`}
  <//>`;
}

function neighbours(job, number) {
  const numbers = job.checkpoints.history.map((each) => each.checkpoint);
  const place = numbers.indexOf(number);
  const link = (other, text) => other !== undefined && html`<a href=${to(job.id, "checkpoints", other)}>${text}</a>`;
  return place < 0 ? null : html`<span class="neighbours">${link(numbers[place + 1], "← earlier")} ${link(numbers[place - 1], "later →")}</span>`;
}

function Found({ job, found }) {
  const [shown, setShown] = useState("bars");
  return html`
    <p class="diagnosis">${found.sentence}</p>
    <${Facts} of=${[
      ["Begun", words.moment(found.triggered)],
      ["Took", words.duration(found.duration_ms), "From the trigger to the last acknowledgement"],
      ["Waited before", words.duration(found.queued_ms)],
      ["Commit", words.duration(found.finishing_ms), "From the last acknowledgement until the checkpoint was durable"],
      ["Acknowledged", `${words.count(found.num_acknowledged)} of ${words.count(found.num_subtasks)}`],
      ["Written", words.size(found.checkpointed_bytes)],
      ["Whole state", words.size(found.state_bytes)],
      ["Read while aligning", words.size(found.processed_bytes)],
      ["In flight, saved", words.size(found.persisted_bytes)],
      ["Unaligned", found.unaligned ? "yes" : "no"],
    ]} />
    ${found.path && html`<p class="path"><span class="quiet">${found.discarded ? "Was at" : "At"}</span> <code>${found.path}</code></p>`}
    <div class="choice" role="group" aria-label="How the subtasks are shown">
      <button type="button" aria-pressed=${shown === "bars"} onClick=${() => setShown("bars")}>Timeline</button>
      <button type="button" aria-pressed=${shown === "numbers"} onClick=${() => setShown("numbers")}>Numbers</button>
    </div>
    ${shown === "bars" ? html`<${Bars} found=${found} />` : html`<${Numbers} job=${job} found=${found} />`}`;
}

function Bars({ found }) {
  const [most, setMost] = useState(BARS_SHOWN);
  const finishing = found.finishing_ms ?? 0;
  const longest = Math.max(found.duration_ms, ...found.bars.map((bar) => bar.duration_ms ?? 0));
  const from = -found.queued_ms;
  const whole = Math.max(1, longest + finishing - from);
  const piece = (phase, begin, end) => ({ phase, left: (100 * (begin - from)) / whole, width: (100 * (end - begin)) / whole, lasts: end - begin });
  const driver = [];
  if (found.queued_ms > 0) driver.push(piece("queued", from, 0));
  if (finishing > 0) driver.push(piece("commit", longest, longest + finishing));
  return html`<div class="gantt" role="table" aria-label="What each subtask did, slowest first">
      <div class="gantt-axis" aria-hidden="true"><span></span><span class="ticks">${ticks(from, whole)}</span><span></span></div>
      ${driver.length > 0 && html`<${Bar} name="driver" pieces=${driver} said=${words.duration(found.queued_ms + finishing)} />`}
      ${found.bars.slice(0, most).map((bar) => html`<${Bar} key=${`${bar.vertex} ${bar.subtask}`} name=${bar.name} subtask=${bar.subtask} bar=${bar}
        pieces=${bar.phases.filter((one) => one.to_ms > one.from_ms).map((one) => piece(one.phase, one.from_ms, one.to_ms))}
        said=${bar.acknowledged ? words.duration(bar.duration_ms) : "missing"} />`)}
    </div>
    ${found.bars.length > most && html`<p class="more">The slowest ${words.count(most)} of ${words.count(found.bars.length)} subtasks are shown. <button type="button" class="link" onClick=${() => setMost(most + 160)}>Show more</button></p>`}
    <p class="legend">${PHASES.map(([name, label, help]) => html`<span key=${name} title=${help}><i class=${`swatch ${name}`}></i>${label}</span>`)}</p>`;
}

function Bar({ name, subtask, bar, pieces, said }) {
  const label = (phase) => PHASES.find(([each]) => each === phase)[1];
  const spoken = pieces.map((one) => `${label(one.phase)} ${words.duration(one.lasts)}`).join(", ");
  const more = bar ? [bar.unaligned ? "unaligned" : "", bar.late ? "too late" : "", bar.waited_for ? `last barrier: ${bar.waited_for.key}[${bar.waited_for.subtask}]` : ""].filter(Boolean).join(", ") : "";
  const full = `${name}${subtask === undefined ? "" : `[${subtask}]`}: ${spoken || "nothing yet"}${more ? ` (${more})` : ""}`;
  return html`<div class=${`gantt-row${bar && !bar.acknowledged ? " missing" : ""}`} role="row" title=${full}>
    <span class="gantt-name" role="rowheader"><span class="gantt-task">${name}</span>${subtask !== undefined && html`<b>[${subtask}]</b>`}</span>
    <span class="track" role="cell" aria-label=${spoken || "nothing yet"}>${pieces.map((one) => html`<span key=${one.phase} class=${`piece ${one.phase}`} style=${{ left: `${one.left}%`, width: `max(1px, ${one.width}%)` }}></span>`)}</span>
    <span class="gantt-time" role="cell">${said}</span>
  </div>`;
}

/** Four or five round times along the axis. */
function ticks(from, whole) {
  const rough = whole / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= from + whole; at += step) found.push(at);
  return found.map((at) => html`<i key=${at} style=${{ left: `${(100 * (at - from)) / whole}%` }}>${at === 0 ? "0" : words.duration(at)}</i>`);
}

function Numbers({ job, found }) {
  const phase = (name) => (bar) => bar.phases.filter((one) => one.phase === name).reduce((sum, one) => sum + one.to_ms - one.from_ms, 0);
  const time = (name, title) => ({ name, title, number: true, value: (bar) => (bar.acknowledged ? phase(name)(bar) : null), cell: (bar) => (bar.acknowledged ? words.duration(phase(name)(bar)) : words.NONE) });
  const bytes = (name, title) => ({ name, title, number: true, value: (bar) => bar[name], cell: (bar) => words.size(bar[name]) });
  return html`<${Table} label="Subtasks of the checkpoint" rows=${found.bars} keyOf=${(bar) => `${bar.vertex} ${bar.subtask}`} columns=${[
    { name: "task", title: "Subtask", value: (bar) => `${bar.name} ${String(bar.subtask).padStart(6, "0")}`, cell: (bar) => html`<a href=${to(job.id, "graph", bar.vertex)}>${bar.name}</a>[${bar.subtask}]` },
    { name: "took", title: "Took", number: true, value: (bar) => bar.duration_ms, cell: (bar) => (bar.acknowledged ? words.duration(bar.duration_ms) : html`<span class="bad-text">missing</span>`) },
    time("start_delay", "Start delay"),
    time("alignment", "Alignment"),
    time("sync", "Sync"),
    time("async", "Async"),
    time("rest", "Rest"),
    bytes("checkpointed_bytes", "Written"),
    bytes("state_bytes", "State"),
    bytes("processed_bytes", "Read while aligning"),
    bytes("persisted_bytes", "In flight"),
    { name: "last", title: "Last barrier from", cell: (bar) => (bar.waited_for ? `${bar.waited_for.key}[${bar.waited_for.subtask}]` : words.NONE) },
  ]} />`;
}
