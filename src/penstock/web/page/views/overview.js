// One job at a glance: what is to be said about it, how it has gone, and what its operators do.

import { html, useState } from "../vendor/preact-htm.js";
import { Facts, Length, Panel, Plot, State, Table, TimeBar, TimeLegend } from "../parts.js";
import { to } from "../places.js";
import * as words from "../words.js";

export function Overview({ job, history, dark }) {
  const [span, setSpan] = useState("seconds");
  const shown = history.value?.[span] ?? { times: [], series: {} };
  const series = (name) => shown.series[name] ?? [];
  return html`
    <ul class="sentences">${job.sentences.filter(isNew).map((one) => html`<li key=${one.topic + one.text} class=${one.level}>${one.text}</li>`)}</ul>
    <${Panel} id="over-time" title="Over time" json=${shown} source=${`penstock/history/${job.id}`}
      aside=${html`<span class="choice" role="group" aria-label="How far back">
        <button type="button" aria-pressed=${span === "seconds"} onClick=${() => setSpan("seconds")}>10 minutes</button>
        <button type="button" aria-pressed=${span === "minutes"} onClick=${() => setSpan("minutes")}>24 hours</button>
      </span>`}>
      <div class="plots">
        <${Plot} label="Records per second" theme=${dark} times=${shown.times} series=${[
          { label: "read", values: series("rows_in_per_s"), colour: "blue", text: words.rate },
          { label: "into sinks", values: series("rows_out_per_s"), colour: "green", text: words.rate },
        ]} />
        <${Plot} label="Busiest and most back-pressured subtask" theme=${dark} times=${shown.times} series=${[
          { label: "busy", values: series("busy"), colour: "busy", text: words.percent },
          { label: "blocked", values: series("blocked"), colour: "blocked", text: words.percent },
        ]} />
        <${Plot} label="Event time behind the clock" theme=${dark} times=${shown.times} series=${[
          { label: "behind", values: series("lag_ms"), colour: "purple", text: words.duration },
        ]} />
        <${Plot} label="Records that a crash would have read again" theme=${dark} times=${shown.times} series=${[
          { label: "records", values: series("at_risk"), colour: "amber", text: words.short },
        ]} />
      </div>
    <//>
    <${Panel} id="operators" title="Tasks" json=${job.vertices.map(({ subtasks, ...vertex }) => vertex)} source=${`jobs/${job.id}`}>
      <${Table} label="Tasks" columns=${columns(job)} rows=${job.vertices} keyOf=${(vertex) => vertex.id} empty="The driver has no plan of this job." />
      <${TimeLegend} />
    <//>
    <${Panel} id="totals" title="In all" json=${{ rows: job.rows, dropped: job.dropped }}>
      <${Facts} of=${[
        ["Read", words.count(job.rows.in)],
        ["Read, with replays", words.count(job.rows.read), "Records that the sources have read in all attempts"],
        ["Into sinks", words.count(job.rows.out)],
        ["Late, dropped", words.count(job.dropped.late)],
        ["Without a time, dropped", words.count(job.dropped.timeless)],
        ["Beyond all time, dropped", words.count(job.dropped.beyond_time)],
        ["Lines skipped", words.count(job.dropped.lines_skipped)],
      ]} />
    <//>
    <${Slots} job=${job} />`;
}

/** The head of the job has said the rest. */
const isNew = (one) => one.level === "bad" || !["checkpoints", "risk"].includes(one.topic);

function columns(job) {
  const most = Math.max(...job.vertices.map((vertex) => vertex.rates.rows_in), 1);
  return [
    { name: "name", title: "Task", cell: (vertex) => html`<a class="strong" href=${to(job.id, "graph", vertex.id)}>${vertex.name}</a>`, value: (vertex) => vertex.layer * 1_000 + vertex.row },
    { name: "status", title: "State", value: (vertex) => vertex.status, cell: (vertex) => html`<${State} of=${vertex.status} />` },
    { name: "subtasks", title: "Subtasks", number: true, value: (vertex) => vertex.parallelism },
    { name: "in", title: "Records in", number: true, value: (vertex) => vertex.rates.rows_in, cell: (vertex) => html`${words.rate(vertex.rates.rows_in)}<${Length} value=${vertex.rates.rows_in} of=${most} />` },
    { name: "out", title: "Records out", number: true, value: (vertex) => vertex.rates.rows_out, cell: (vertex) => words.rate(vertex.rates.rows_out) },
    { name: "time", title: "Time (mean)", value: (vertex) => vertex.shares.busy.mean, cell: (vertex) => html`<${TimeBar} shares=${meanShares(vertex)} />` },
    { name: "blocked", title: "Blocked (worst)", number: true, value: (vertex) => vertex.shares.blocked.max, cell: (vertex) => words.percent(vertex.shares.blocked.max) },
    { name: "lag", title: "Event time behind", number: true, value: (vertex) => (vertex.watermark_ms === null ? null : job.now - vertex.watermark_ms), cell: (vertex) => (vertex.watermark_ms === null ? words.NONE : words.duration(job.now - vertex.watermark_ms)) },
  ];
}

export const meanShares = (vertex) => Object.fromEntries(Object.entries(vertex.shares).map(([name, share]) => [name, share.mean]));

function Slots({ job }) {
  const columns = [
    { name: "number", title: "Slot", value: (slot) => slot.number, cell: (slot) => html`<a href=${to(job.id, "logs", slot.id)}>${slot.spare ? "spare" : slot.number}</a>` },
    { name: "host", title: "Host", value: (slot) => slot.host, cell: (slot) => slot.host ?? "starting" },
    { name: "pid", title: "Process", number: true, value: (slot) => slot.pid, cell: (slot) => slot.pid ?? words.NONE },
    { name: "incarnation", title: "Processes so far", number: true, value: (slot) => slot.incarnation, help: "How often the slot has been given a process" },
    { name: "rss", title: "Memory", number: true, value: (slot) => slot.process.rss_bytes ?? null, cell: (slot) => words.size(slot.process.rss_bytes) },
    { name: "heard", title: "Loop turned", number: true, value: (slot) => slot.heard, cell: (slot) => (slot.heard === null ? words.NONE : words.ago(Math.max(0, job.now - slot.heard))) },
  ];
  return html`<${Panel} id="slots" title="Slots" json=${job.slots} source="taskmanagers">
    <${Table} label="Slots" columns=${columns} rows=${job.slots} keyOf=${(slot) => `${slot.id} ${slot.incarnation}`} shown=${20} empty="No slot." />
    ${job.stuck.map((stuck) => html`<details class="trace" key=${stuck.slot} open><summary>Slot ${stuck.slot} has not turned for ${words.duration(stuck.stuck_ms)}</summary><pre>${stuck.stack}</pre></details>`)}
  <//>`;
}
