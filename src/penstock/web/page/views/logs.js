// Logs: of the driver, and of every slot.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Empty, Panel, Waiting } from "../parts.js";
import { to } from "../places.js";
import { getText, useAnswer } from "../server.js";
import * as words from "../words.js";

const LIST_EVERY_MS = 5_000;
const TEXT_EVERY_MS = 2_000;
const LINES_SHOWN = 2_000;
const DRIVER = "driver";

export function Logs({ job, rest }) {
  const place = rest[0] ?? DRIVER;
  const base = place === DRIVER ? "jobmanager" : `taskmanagers/${encodeURIComponent(place)}`;
  const list = useAnswer(`${base}/logs`, { everyMs: LIST_EVERY_MS });
  const names = list.value?.logs ?? [];
  const name = rest[1] ?? names[0]?.name;
  const slots = [...new Map(job.slots.map((slot) => [slot.id, slot])).values()];
  return html`<${Panel} id="logs" title="Logs" source=${name ? `${base}/logs/${encodeURIComponent(name)}` : `${base}/logs`} wide=${true}>
    <div class="log-choice">
      <label>Of <select value=${place} onChange=${(event) => (location.hash = to(job.id, "logs", event.target.value))}>
        <option value=${DRIVER}>the driver</option>
        ${slots.map((slot) => html`<option key=${slot.id} value=${slot.id}>slot ${slot.spare ? "(spare)" : slot.number}, ${slot.host ?? "starting"}</option>`)}
        ${place !== DRIVER && !slots.some((slot) => slot.id === place) && html`<option value=${place}>${place}</option>`}
      </select></label>
      ${names.length > 1 && html`<span class="choice" role="group" aria-label="Which log">${names.map((each) => html`<button type="button" key=${each.name} aria-pressed=${each.name === name} onClick=${() => (location.hash = to(job.id, "logs", place, each.name))}>${each.name} <span class="quiet">${words.size(each.size)}</span></button>`)}</span>`}
    </div>
    ${name
      ? html`<${Log} key=${`${base} ${name}`} path=${`${base}/logs/${encodeURIComponent(name)}`} />`
      : list.value
        ? html`<${Empty}>${place === DRIVER ? "The driver has no log yet." : "The driver has no log of this slot. The slot's prints and warnings are in Spark's own log of the executor."}<//>`
        : html`<${Waiting} error=${list.error} what="The logs" />`}
  <//>`;
}

function Log({ path }) {
  const [wanted, setWanted] = useState("");
  const [follows, setFollows] = useState(true);
  const place = useRef(null);
  const answer = useAnswer(path, { everyMs: TEXT_EVERY_MS, read: getText });
  useEffect(() => {
    if (follows && place.current) place.current.scrollTop = place.current.scrollHeight;
  }, [answer.value, follows, wanted]);
  if (answer.value === null) return html`<${Waiting} error=${answer.error} what="The log" />`;
  const lines = answer.value.replace(/\n$/, "").split("\n");
  const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted.toLowerCase())) : lines;
  const shown = found.slice(-LINES_SHOWN);
  return html`
    <div class="log-tools">
      <input type="search" placeholder="Only lines with …" aria-label="Only lines with this text" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <label><input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} /> follow</label>
      <span class="quiet">${shown.length < found.length ? `the last ${words.count(shown.length)} of ` : ""}${words.counted(found.length, "line")}</span>
      ${answer.error && html`<span class="bad-text">${answer.error.message}</span>`}
    </div>
    <pre class="log" ref=${place} tabindex="0" aria-label="Log">${shown.map((line, number) => html`<span key=${number} class=${lineClass(line)}>${line}${"\n"}</span>`)}</pre>`;
}

const lineClass = (line) => (/\b(ERROR|CRITICAL|FATAL)\b/.test(line) ? "bad-text" : /\bWARN(ING)?\b/.test(line) ? "warn-text" : "");
