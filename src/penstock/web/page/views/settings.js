// The settings that the job runs with.

import { html, useState } from "../vendor/preact-htm.js";
import { Facts, Panel, Table } from "../parts.js";
import * as words from "../words.js";

export function Settings({ job }) {
  const [wanted, setWanted] = useState("");
  const rows = flat(job.settings).filter(([name, value]) => `${name} ${value}`.toLowerCase().includes(wanted.trim().toLowerCase()));
  const defaults = Object.fromEntries(flat(job.default_settings ?? {}));
  const isOwn = ([name, value]) => name in defaults && defaults[name] !== value;
  return html`
    <${Panel} id="job" title="Job" json=${{ id: job.id, job: job.job, name: job.name }}>
      <${Facts} of=${[
        ["Name", job.name],
        ["Id", html`<code>${job.job}</code>`],
        ["Id of the REST interface", html`<code>${job.id}</code>`],
        ["Started", words.moment(job.started)],
        ["Parallelism", words.count(job.parallelism)],
        ["Key groups", words.count(job.max_parallelism)],
        ["Restored from checkpoint", job.restored_checkpoint ?? "none"],
      ]} />
    <//>
    <${Panel} id="settings" title="Settings" json=${job.settings} source=${`jobs/${job.id}/jobmanager/config`}
      aside=${html`<input type="search" placeholder="Filter" aria-label="Filter the settings" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />`}>
      <${Table} label="Settings" shown=${200} rows=${rows} keyOf=${([name]) => name} empty="No setting has this in its name or value." rowClass=${(row) => (isOwn(row) ? "own" : "")} columns=${[
        { name: "name", title: "Setting", value: ([name]) => name, cell: ([name]) => html`<code>${name}</code>` },
        { name: "value", title: "Value", value: ([, value]) => value, cell: (row) => html`<span class="wrap">${row[1]}</span>${isOwn(row) && html` <span class="quiet">the default is ${defaults[row[0]]}</span>`}` },
        { name: "in words", title: "In words", cell: ([name, value]) => html`<span class="quiet">${inWords(name, value)}</span>` },
      ]} />
    <//>`;
}

/** Nested settings as a list of names and texts. */
function flat(settings, prefix = "") {
  return Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? flat(value, `${prefix}${name}.`)
      : [[`${prefix}${name}`, value === null ? "off" : Array.isArray(value) ? value.join(", ") : String(value)]],
  );
}

function inWords(name, value) {
  const number = Number(value);
  if (value === "" || !Number.isFinite(number)) return "";
  if (name.endsWith("_ms")) return words.duration(number);
  return name.endsWith("_bytes") ? words.size(number) : "";
}
