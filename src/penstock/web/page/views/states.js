// State: how large the state of each operator is, how it is spread, and what is stored for one key. All of it is read
// from the newest completed checkpoint.

import { html, useState } from "../vendor/preact-htm.js";
import { Cells } from "../cells.js";
import { Empty, Facts, Length, Panel, Table, Waiting } from "../parts.js";
import { to } from "../places.js";
import { useAnswer } from "../server.js";
import * as words from "../words.js";
import { skew } from "./graph.js";

export function States({ job, rest }) {
  const latest = job.checkpoints.latest_completed?.checkpoint ?? null;
  const answer = useAnswer(latest !== null && `penstock/state/${job.id}`, { version: latest });
  const [operator, state] = rest;
  if (latest === null) return html`<${Panel} id="state" title="State"><${Empty}>State is read from the newest completed checkpoint, and none has completed yet.<//><//>`;
  if (answer.value === null) return html`<${Panel} id="state" title="State"><${Waiting} error=${answer.error} what="The state" /><//>`;
  const operators = answer.value.operators;
  const chosen = operators.find((each) => each.id === operator);
  return html`
    <${Panel} id="state" title="State of each operator" json=${answer.value} source=${`penstock/state/${job.id}`} aside=${html`<span class="quiet">in checkpoint <a href=${to(job.id, "checkpoints", answer.value.checkpoint)}>${answer.value.checkpoint}</a></span>`}>
      <${Table} label="Operators with state" columns=${operatorColumns(job, operators)} rows=${operators} keyOf=${(each) => each.id} empty="No operator has state." rowClass=${(each) => (each === chosen ? "chosen" : "")} />
    <//>
    ${chosen && html`<${Operator} key=${chosen.id} job=${job} operator=${chosen} state=${state} version=${latest} />`}
    ${!chosen && operators.length > 0 && html`<p class="hint">Choose an operator to see its states, and what is stored for a key.</p>`}`;
}

function operatorColumns(job, operators) {
  const most = Math.max(1, ...operators.map((each) => each.state_bytes));
  return [
    { name: "name", title: "Operator", value: (each) => each.name, cell: (each) => html`<a class="strong" href=${to(job.id, "state", each.id)}>${each.name}</a>` },
    { name: "bytes", title: "State", number: true, value: (each) => each.state_bytes, cell: (each) => html`${words.size(each.state_bytes)}<${Length} value=${each.state_bytes} of=${most} />` },
    { name: "subtasks", title: "Subtasks", number: true, value: (each) => each.subtasks.length },
    { name: "largest", title: "Largest subtask", number: true, value: (each) => Math.max(...each.subtasks), cell: (each) => words.size(Math.max(...each.subtasks)) },
    { name: "skew", title: "Skew", number: true, value: (each) => each.skew, cell: (each) => `${each.skew.toFixed(1)}×`, help: "The largest subtask's state, in parts of the mean" },
  ];
}

function Operator({ job, operator, state, version }) {
  const path = `penstock/state/${job.id}/${operator.id}`;
  const answer = useAnswer(path, { version });
  const states = answer.value?.states ?? [];
  const chosen = states.find((each) => each.id === state);
  return html`
    <${Panel} id="states" title=${`States of ${operator.name}`} json=${answer.value ?? undefined} source=${path}>
      ${answer.value === null
        ? html`<${Waiting} error=${answer.error} what="The states" />`
        : html`<${Table} label="States" rows=${states} keyOf=${(each) => each.id} empty="The operator has no state in this checkpoint." rowClass=${(each) => (each === chosen ? "chosen" : "")} columns=${[
            { name: "name", title: "State", value: (each) => each.name, cell: (each) => html`<a class="strong" href=${to(job.id, "state", operator.id, each.id)}>${each.name}</a>` },
            { name: "kind", title: "Kind", value: (each) => each.kind },
            { name: "type", title: "Type", value: (each) => each.type, cell: (each) => html`<code>${each.type || words.NONE}</code>` },
            { name: "key", title: "Key", value: (each) => each.key_columns.join(", "), cell: (each) => each.key_columns.join(", ") || html`<span class="quiet">not by key</span>` },
            { name: "rows", title: "Rows", number: true, value: (each) => each.rows, cell: (each) => words.count(each.rows) },
            { name: "size", title: "Size", number: true, value: (each) => each.size_bytes, cell: (each) => words.size(each.size_bytes) },
            { name: "ttl", title: "Kept for", number: true, value: (each) => each.ttl_ms, cell: (each) => (each.ttl_ms === null ? "ever" : words.duration(each.ttl_ms)) },
          ]} />`}
      ${operator.subtasks.length > 1 && html`<h3>Bytes of each subtask</h3><${Cells} values=${operator.subtasks} label="Bytes of state of each subtask" colour="blue" text=${(i) => `${operator.name}[${i}]: ${words.size(operator.subtasks[i])}`} />`}
    <//>
    ${chosen && html`<${OneState} key=${chosen.id} job=${job} operator=${operator} state=${chosen} version=${version} />`}`;
}

const GROUPS_IN_WORDS = 5;

function OneState({ job, operator, state, version }) {
  const path = `penstock/state/${job.id}/${operator.id}/${encodeURIComponent(state.id)}`;
  const isKeyed = state.key_columns.length > 0;
  const answer = useAnswer(isKeyed && path, { version });
  return html`
    <${Panel} id="key" title=${`${state.name}: one key`}>
      ${isKeyed ? html`<${OneKey} path=${path} state=${state} version=${version} />` : html`<${Empty}>This state is not kept by key.<//>`}
    <//>
    ${isKeyed && html`<${Panel} id="key-groups" title=${`${state.name}: rows of each key group`} json=${answer.value ?? undefined} source=${path}>
      ${answer.value === null ? html`<${Waiting} error=${answer.error} what="The key groups" />` : html`<${KeyGroups} job=${job} name=${state.name} groups=${answer.value.key_groups} />`}
    <//>`}`;
}

function KeyGroups({ job, name, groups }) {
  const rows = new Array(Math.max(1, job.max_parallelism)).fill(0);
  for (const [group, count] of groups) rows[group] = count;
  const uneven = skew(rows);
  const largest = groups.toSorted(([, one], [, other]) => other - one).slice(0, GROUPS_IN_WORDS);
  const ownerOf = (group) => Math.floor((group * job.parallelism) / rows.length);
  return html`
    <${Facts} of=${[
      ["Key groups with rows", `${words.count(groups.length)} of ${words.count(rows.length)}`],
      ["Skew", uneven === null ? words.NONE : `${uneven.toFixed(1)}×`, "The rows of the largest key group, in parts of the mean"],
      largest.length > 0 && ["Largest", largest.map(([group, count]) => `${group}: ${words.short(count)}`).join(", "), "Key group: rows"],
    ]} />
    <${Cells} values=${rows} label=${`Rows of ${name} in each key group`} colour="blue" text=${(group) => `key group ${group}, of subtask ${ownerOf(group)}: ${words.counted(rows[group], "row")}`} />`;
}

function OneKey({ path, state, version }) {
  const [given, setGiven] = useState({});
  const [wanted, setWanted] = useState(null);
  const query = wanted === null ? null : `${path}?key=${encodeURIComponent(JSON.stringify(wanted))}`;
  const answer = useAnswer(query, { version });
  const ask = (event) => {
    event.preventDefault();
    setWanted(Object.fromEntries(state.key_columns.map((column) => [column, given[column] ?? ""])));
  };
  return html`
    <form class="log-tools" onSubmit=${ask}>
      ${state.key_columns.map((column) => html`<label key=${column}>${column} <input type="text" required value=${given[column] ?? ""} onInput=${(event) => setGiven({ ...given, [column]: event.target.value })} autocomplete="off" spellcheck=${false} /></label>`)}
      <button type="submit">Look up</button>
    </form>
    ${wanted !== null && (answer.value === null
      ? html`<${Waiting} error=${answer.error} what="The key" />`
      : html`<${Table} label="Rows of the key" rows=${answer.value.found.map((row, number) => ({ row, number }))} keyOf=${({ number }) => number} empty="Nothing is stored for this key." columns=${columnsOf(answer.value.found)} />`)}`;
}

const columnsOf = (rows) =>
  Object.keys(rows[0] ?? {}).map((name) => ({
    name,
    title: name,
    number: typeof rows[0][name] === "number",
    value: ({ row }) => row[name],
    cell: ({ row }) => (row[name] === null ? html`<span class="quiet">null</span>` : typeof row[name] === "object" ? JSON.stringify(row[name]) : String(row[name])),
  }));
