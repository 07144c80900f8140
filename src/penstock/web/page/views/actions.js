// What can be done with a job. Every action says what it will do, asks for confirmation, shows how it goes, and how it
// ended.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { live } from "../live.js";
import { CopyJson, Dialog, Empty, Panel, State } from "../parts.js";
import { act, getJson } from "../server.js";
import { to } from "../places.js";
import * as words from "../words.js";

const ENDED = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED"];
const ASK_EVERY_MS = 500;

// What has been done from this page: it stays while the reader looks at other views.
const done = [];

const base = (job) => `jobs/${job.id}`;
const savepointPoll = (job) => (trigger) => `${base(job)}/savepoints/${trigger}`;
const target = (given, name) => (given.target.trim() ? { [name]: given.target.trim() } : {});

const ACTIONS = [
  {
    name: "checkpoint",
    title: "Take a checkpoint",
    what: () => "Takes a checkpoint now, besides those that are taken by the clock. The job goes on meanwhile.",
    fields: ["full"],
    request: (job, given) => ({ method: "POST", path: `${base(job)}/checkpoints`, body: { checkpointType: given.full ? "FULL" : "CONFIGURED" }, poll: (trigger) => `${base(job)}/checkpoints/${trigger}` }),
    result: (job, told) => html`Checkpoint <a href=${to(job.id, "checkpoints", told.checkpointId)}>${told.checkpointId}</a> has completed.`,
  },
  {
    name: "savepoint",
    title: "Take a savepoint",
    what: () => "Writes a savepoint: a checkpoint that is yours. The job goes on, and never deletes it.",
    fields: ["target", "native"],
    request: (job, given) => ({ method: "POST", path: `${base(job)}/savepoints`, body: { ...target(given, "target-directory"), formatType: given.native ? "NATIVE" : "CANONICAL" }, poll: savepointPoll(job) }),
    result: (job, told) => html`The savepoint is at <code>${told.location}</code>`,
  },
  {
    name: "stop",
    title: "Stop with a savepoint",
    isDangerous: true,
    what: (job, given) =>
      given.drain
        ? "Ends the job for good: sources end, all windows fire, and all results are committed. A job that goes on from this savepoint does not get these windows again."
        : "Takes a savepoint and ends the job. Nothing is processed after the savepoint: a job that is started from it goes on where this job ended.",
    fields: ["drain", "target", "native"],
    request: (job, given) => ({ method: "POST", path: `${base(job)}/stop`, body: { ...target(given, "targetDirectory"), drain: given.drain, formatType: given.native ? "NATIVE" : "CANONICAL" }, poll: savepointPoll(job) }),
    result: (job, told) => html`The job has ended. Its savepoint is at <code>${told.location}</code>`,
  },
  {
    name: "rescale",
    title: "Change the parallelism",
    what: (job, given) =>
      `From ${job.parallelism} to ${given.parallelism || "…"} subtasks. New slots are brought up first; then the job takes a checkpoint, its tasks end, and its state is handed out to the new subtasks. ${rescaleText(job, Number(given.parallelism))}`,
    fields: ["parallelism"],
    request: (job, given) => ({ method: "PATCH", path: `${base(job)}/rescaling?parallelism=${Number(given.parallelism)}`, poll: (trigger) => `${base(job)}/rescaling/${trigger}` }),
    result: (job, told, given) => `The job runs with parallelism ${given.parallelism}.`,
  },
  {
    name: "cancel",
    title: "Cancel",
    isDangerous: true,
    what: (job) => `Ends the job at once, without a savepoint. ${lossText(job)}`,
    fields: [],
    request: (job) => ({ method: "PATCH", path: `${base(job)}?mode=cancel` }),
    waitFor: (job) => ended(job),
    result: () => "The job has ended: cancelled.",
  },
];

function rescaleText(job, wanted) {
  if (!wanted || wanted === job.parallelism) return "";
  const groups = job.max_parallelism;
  const most = Math.ceil(groups / wanted);
  return groups > 0 ? `Each subtask gets ${Math.floor(groups / wanted) === most ? most : `${Math.floor(groups / wanted)} or ${most}`} of the ${words.count(groups)} key groups.` : "";
}

function lossText(job) {
  const { records, checkpoint } = job.at_risk;
  if (checkpoint === null) return "No checkpoint has completed: everything would have to be read again.";
  return `A job that is started from checkpoint ${checkpoint} reads ${records === null ? "everything after it" : words.counted(records, "record")} again.`;
}

async function ended(job) {
  for (;;) {
    const { status } = await getJson(`${base(job)}/status`);
    if (ENDED.includes(status)) return;
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
  }
}

export function Actions({ job, rest }) {
  const [, setDrawn] = useState(0);
  const chosen = ACTIONS.find((action) => action.name === rest[0]);
  const isOver = ENDED.includes(job.flink_state);
  const back = () => (location.hash = to(job.id, "actions"));
  return html`
    <${Panel} id="actions" title="Actions">
      ${isOver && html`<${Empty}>The job has ended: nothing can be done with it any more.<//>`}
      <div class="action-list">${ACTIONS.map((action) => html`<div key=${action.name} class="action">
        <button type="button" class=${action.isDangerous ? "danger" : ""} disabled=${isOver || live.state === "lost"} onClick=${() => (location.hash = to(job.id, "actions", action.name))}>${action.title} …</button>
        <p>${action.what(job, { drain: false, parallelism: "" })}</p>
      </div>`)}</div>
    <//>
    <${Panel} id="done" title="Done from this page">
      ${done.filter((one) => one.job === job.id).length === 0
        ? html`<${Empty}>Nothing yet.<//>`
        : html`<ul class="groups">${done.filter((one) => one.job === job.id).map((one) => html`<li key=${one.when}>
            <${State} of=${one.state} text=${one.state} /> <strong>${one.title}</strong> <span class="quiet">${words.clock(one.when)}, ${words.duration((one.ended ?? Date.now()) - one.when)}</span>
            <p>${one.said}</p></li>`)}</ul>`}
    <//>
    ${chosen && !(isOver && !done.some((one) => one.job === job.id && one.name === chosen.name)) && html`<${Asking} key=${chosen.name} action=${chosen} job=${job} onClose=${back} onChange=${() => setDrawn((before) => before + 1)} />`}`;
}

function Asking({ action, job, onClose, onChange }) {
  const [given, setGiven] = useState({ target: "", drain: false, native: false, full: false, parallelism: String(job.parallelism) });
  const [going, setGoing] = useState(null);
  const give = (change) => setGiven((before) => ({ ...before, ...change }));
  const run = async (event) => {
    event.preventDefault();
    const one = { job: job.id, name: action.name, title: action.title, when: Date.now(), ended: null, state: "IN_PROGRESS", said: "" };
    done.unshift(one);
    const tell = () => {
      setGoing({ ...one });
      onChange();
    };
    tell();
    try {
      const told = await act(action.request(job, given));
      await action.waitFor?.(job);
      Object.assign(one, { state: "COMPLETED", said: action.result(job, told, given) });
    } catch (error) {
      Object.assign(one, { state: "FAILED", said: error.message });
    }
    one.ended = Date.now();
    tell();
  };
  const isSame = action.name === "rescale" && Number(given.parallelism) === job.parallelism;
  return html`<${Dialog} title=${`${action.title}: ${job.name}`} onClose=${onClose}>
    ${going === null
      ? html`<form onSubmit=${run}>
          <p>${action.what(job, given)}</p>
          ${action.fields.map((field) => FIELDS[field](job, given, give))}
          <div class="buttons">
            <button type="button" onClick=${onClose}>Do nothing</button>
            <button type="submit" class=${action.isDangerous ? "danger" : "primary"} disabled=${isSame}>${action.title}</button>
          </div>
        </form>`
      : html`<${Progress} going=${going} onClose=${onClose} />`}
  <//>`;
}

function Progress({ going, onClose }) {
  const [, setDrawn] = useState(0);
  const close = useRef(null);
  useEffect(() => {
    if (going.ended !== null) {
      close.current?.focus();
      return undefined;
    }
    const timer = setInterval(() => setDrawn((before) => before + 1), 250);
    return () => clearInterval(timer);
  }, [going.ended]);
  return html`<div class="progress" role="status" aria-live="polite">
    <p><${State} of=${going.state} text=${going.state} /> <span class="quiet">${words.duration((going.ended ?? Date.now()) - going.when)}</span></p>
    ${going.ended === null && html`<progress aria-label="Under way"></progress><p class="quiet">It goes on if this dialog is closed.</p>`}
    ${going.ended !== null && html`<p class=${going.state === "FAILED" ? "said bad-text" : "said"}>${going.said}</p>`}
    <div class="buttons">${going.state === "FAILED" && html`<${CopyJson} value=${going} />`}<button type="button" ref=${close} onClick=${onClose}>Close</button></div>
  </div>`;
}

const FIELDS = {
  target: (job, given, give) => html`<label class="field">Folder
    <input type="text" value=${given.target} placeholder=${job.settings["penstock-checkpoint-directory"] ? "the folder of the job's checkpoints" : "a folder that the program allows"} onInput=${(event) => give({ target: event.target.value })} autocomplete="off" spellcheck=${false} />
    <span class="quiet">The folder of the checkpoints, a folder below it, or a folder of <code>Web(savepoint_directories=…)</code>.</span></label>`,
  drain: (job, given, give) => html`<label class="field check"><input type="checkbox" checked=${given.drain} onChange=${(event) => give({ drain: event.target.checked })} /> Drain: let all windows fire first, for a job that will not go on</label>`,
  native: (job, given, give) => html`<label class="field check"><input type="checkbox" checked=${given.native} onChange=${(event) => give({ native: event.target.checked })} /> Native format: quick to write and to read, for the same state backend only</label>`,
  full: (job, given, give) => html`<label class="field check"><input type="checkbox" checked=${given.full} onChange=${(event) => give({ full: event.target.checked })} /> Full: shares no file with earlier checkpoints</label>`,
  parallelism: (job, given, give) => html`<label class="field">Parallelism
    <input type="number" min="1" max=${job.max_parallelism > 0 ? job.max_parallelism : undefined} step="1" required value=${given.parallelism} onInput=${(event) => give({ parallelism: event.target.value })} />
    <span class="quiet">From 1 to ${words.count(job.max_parallelism)}. Spark must have room for as many slots.</span></label>`,
};
