// What runs where, and where it is slow: the graph of tasks, and one task with its subtasks.

import { html } from "../vendor/preact-htm.js";
import { Empty, Panel, TimeLegend } from "../parts.js";
import { to } from "../places.js";
import * as words from "../words.js";
import { useWidth } from "../width.js";
import { placed } from "./layout.js";
import { meanShares } from "./overview.js";
import { Task } from "./task.js";

const NODE = { width: 212, height: 142 };
const NARROW = 700;
const WIDE = { along: 108, across: 26, isDownwards: false };
const TALL = { along: 58, across: 16, isDownwards: true };
const MANY_LAYERS = 4;
const NARROWEST = 164;
const ROOMY = 190;

export function Graph({ job, rest }) {
  const [box, width] = useWidth();
  const chosen = job.vertices.find((vertex) => vertex.id === rest[0]);
  if (job.vertices.length === 0) return html`<${Empty}>The driver has no plan of this job.<//>`;
  const layers = 1 + Math.max(...job.vertices.map((vertex) => vertex.layer));
  const isUpright = width < NARROW || (layers > MANY_LAYERS && layers * (NODE.width + WIDE.along) > 2 * width);
  const node = { ...NODE, width: isUpright ? fitting(job.vertices, width) : NODE.width };
  const graph = placed(job.vertices, job.edges, { ...node, ...(isUpright ? TALL : WIDE) });
  const slow = job.sentences.find((one) => one.topic === "bottleneck");
  const slowest = slow ? bottleneckOf(job) : null;
  return html`
    ${slow && html`<ul class="sentences"><li class=${slow.level}>${slow.text}</li></ul>`}
    <${Panel} id="graph" title="Tasks and exchanges" json=${{ vertices: job.vertices.map(({ subtasks, ...vertex }) => vertex), edges: job.edges }} source=${`jobs/${job.id}/plan`}>
      <div class="graph-box" ref=${box} tabindex="0" role="region" aria-label="Graph of the job">
        <div class="graph" style=${{ width: `${graph.width}px`, height: `${graph.height}px` }}>
          <svg class="edges" width=${graph.width} height=${graph.height} aria-hidden="true">
            <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" class="arrow" /></marker></defs>
            ${graph.edges.map((edge) => html`<path key=${edge.number} class=${`edge ${pressureClass(pressure(job, edge))}`} d=${edge.path} stroke-width=${1.5 + 4 * pressure(job, edge)} marker-end="url(#arrow)" />`)}
          </svg>
          ${graph.edges.map((edge) => html`<${EdgeLabel} key=${edge.number} edge=${edge} pressure=${pressure(job, edge)} />`)}
          ${graph.nodes.map((each) => html`<${Node} key=${each.id} node=${each} width=${node.width} job=${job} isChosen=${each.id === chosen?.id} isSlowest=${each.id === slowest} />`)}
        </div>
      </div>
      <${TimeLegend} />
      <p class="legend"><span>An arrow is thick and red where the tasks before it are back-pressured. Skew: how much more the busiest subtask reads than the mean.</span></p>
    <//>
    ${chosen && html`<${Task} key=${chosen.id} job=${job} vertex=${chosen} />`}
    ${!chosen && html`<p class="hint">Choose a task to see its subtasks, its state and what it runs.</p>`}`;
}

/** How wide tasks may be that stand beside each other in a narrow window. */
function fitting(vertices, width) {
  const beside = new Map();
  for (const vertex of vertices) beside.set(vertex.layer, (beside.get(vertex.layer) ?? 0) + 1);
  const most = Math.max(...beside.values());
  return Math.floor(Math.min(NODE.width, Math.max(NARROWEST, (width - TALL.across * (most - 1) - 4) / most)));
}

/** The part of its time in which the task before an exchange is blocked, at its worst subtask. */
const pressure = (job, edge) => job.vertices.find((vertex) => vertex.id === edge.from)?.shares.blocked.max ?? 0;
const pressureClass = (share) => (share > 0.5 ? "bad" : share > 0.1 ? "warn" : "");

/** The task that is named as the cause: busy, not blocked, behind the task that is blocked most. */
function bottleneckOf(job) {
  let found = null;
  let most = 0.1;
  for (const edge of job.edges) {
    const share = pressure(job, edge);
    const vertex = job.vertices.find((each) => each.id === edge.to);
    if (share > most && vertex.shares.blocked.max <= 0.1) [found, most] = [vertex.id, share];
  }
  return found;
}

/** How unevenly a number is spread over subtasks: the largest, in parts of the mean. */
export function skew(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return values.length < 2 || mean <= 0 ? null : Math.max(...values) / mean;
}

function Node({ node, width, job, isChosen, isSlowest }) {
  const shares = meanShares(node);
  const uneven = skew(node.subtasks.rows_in);
  const lag = node.watermark_ms === null ? null : Math.max(0, job.now - node.watermark_ms);
  const share = (name) => words.percent(node.shares[name].max);
  return html`<a class=${`node ${heat(node)}${isChosen ? " chosen" : ""}${isSlowest ? " is-slow" : ""}`} href=${to(job.id, "graph", ...(isChosen ? [] : [node.id]))}
      style=${{ left: `${node.x}px`, top: `${node.y}px`, width: `${width}px`, height: `${NODE.height}px` }} aria-current=${isChosen ? "true" : undefined}>
    <span class="node-name" title=${node.operators.map((operator) => operator.name).join(" → ")}>${node.name}</span>
    <span class="node-line"><span>${node.parallelism} × ${node.operators.map((operator) => operator.kind).filter(Boolean).at(node.is_source ? 0 : -1) || "task"}</span><span>${node.status === "RUNNING" ? "" : node.status.toLowerCase()}</span></span>
    <span class="node-line strong"><span>in ${words.rate(node.rates.rows_in)}</span><span>out ${words.rate(node.rates.rows_out)}</span></span>
    <span class="bar">${["busy", "waiting", "blocked", "idle"].map((name) => shares[name] > 0 && html`<span key=${name} class=${`part ${name}`} style=${{ width: `${100 * shares[name]}%` }}></span>`)}</span>
    <span class="node-line small" title="At the worst subtask"><span>busy ${share("busy")}</span><span>blocked ${share("blocked")}</span>${width >= ROOMY && html`<span>idle ${words.percent(shares.idle)}</span>`}</span>
    <span class="node-line small"><span>${lag === null ? "no event time" : `behind ${words.duration(lag)}`}</span><span>${uneven === null ? "" : `skew ${uneven.toFixed(1)}×`}</span></span>
    ${isSlowest && html`<span class="slow-mark">slows the job down</span>`}
  </a>`;
}

const heat = (vertex) =>
  vertex.shares.blocked.max > 0.5 ? "is-blocked" : vertex.shares.busy.max > 0.8 ? "is-busy" : vertex.shares.busy.max > 0.4 ? "is-warm" : "";

function EdgeLabel({ edge, pressure: share }) {
  const how = edge.keys.length > 0 ? `by ${edge.keys.join(", ")}` : edge.how;
  const side = edge.side ? ` · ${edge.side}` : "";
  return html`<span class=${`edge-label ${pressureClass(share)}`} style=${{ left: `${edge.labelX}px`, top: `${edge.labelY}px` }} title=${`${how}${side}`}>
    <span class="edge-how">${how}${side}</span>${share > 0.005 && html`<span class="edge-pressure">blocked ${words.percent(share)}</span>`}
  </span>`;
}
