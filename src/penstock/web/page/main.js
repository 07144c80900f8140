// The page as a whole: what stands around every view, where the reader is, and when everything is drawn anew.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { connectionText, JobHead } from "./head.js";
import { KEYS, onKey } from "./keys.js";
import { listen, live, reconnect, want } from "./live.js";
import { Dialog, Empty } from "./parts.js";
import { here, to, TO_JOBS, VIEWS } from "./places.js";
import { useAnswer } from "./server.js";
import { nextTheme, theme, useTheme } from "./theme.js";
import { Actions } from "./views/actions.js";
import { Checkpoints } from "./views/checkpoints.js";
import { Graph } from "./views/graph.js";
import { Jobs } from "./views/jobs.js";
import { Logs } from "./views/logs.js";
import { Overview } from "./views/overview.js";
import { Restarts } from "./views/restarts.js";
import { Settings } from "./views/settings.js";
import { States } from "./views/states.js";

const SHOWN = {
  overview: Overview,
  graph: Graph,
  checkpoints: Checkpoints,
  restarts: Restarts,
  state: States,
  logs: Logs,
  settings: Settings,
  actions: Actions,
};
const HISTORY_EVERY_MS = 5_000;

function Page({ place }) {
  const [helps, setHelps] = useState(false);
  const dark = useTheme();
  useEffect(() => onKey({ help: () => setHelps(true) }), []);
  useEffect(() => {
    const job = live.picture?.job ?? live.picture?.jobs[place.job];
    document.title = place.job && job ? `${job.name} – Penstock` : "Penstock";
  });
  return html`
    <a class="skip" href="#main" onClick=${toMain}>To the content</a>
    <header class="top">
      <a class="brand" href=${TO_JOBS}><img src="icon.svg" alt="" width="18" height="18" />Penstock</a>
      <nav class="crumbs" aria-label="Where you are">${place.job && html`<a href=${TO_JOBS}>All jobs</a>`}</nav>
      <span class=${`connection ${live.state}`} role="status">${connectionText()}</span>
      <button type="button" class="tool" onClick=${nextTheme} title="Light, dark, or as the system has it">${theme()}</button>
      <button type="button" class="tool" onClick=${() => setHelps(true)} title="Keys (?)" aria-label="Keys">?</button>
    </header>
    ${live.state === "lost" && html`<div class="lost" role="alert">
      <strong>No connection to the driver.</strong> ${live.why} What is shown is as it was ${connectionText()}. The page tries again by itself.
      <button type="button" onClick=${reconnect}>Try now</button>
    </div>`}
    <main id="main" tabindex="-1"><${Content} place=${place} dark=${dark} /></main>
    ${helps && html`<${Dialog} title="Keys" onClose=${() => setHelps(false)}>
      <dl class="keys">${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
      <form method="dialog" class="buttons"><button autofocus>Close</button></form>
    <//>`}`;
}

function toMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Content({ place, dark }) {
  if (live.picture === null) return html`<${Empty}>${live.state === "lost" ? "Nothing is known yet." : "Asking the driver …"}<//>`;
  if (place.job === null) return html`<${Jobs} jobs=${Object.values(live.picture.jobs)} />`;
  if (live.unknown === place.job)
    return html`<${Empty}>This driver knows no job <code>${place.job}</code>. <a href=${TO_JOBS}>All jobs</a><//>`;
  const job = live.picture.job;
  if (!job || job.id !== place.job) return html`<${Empty}>Asking for the job …<//>`;
  return html`<${Job} key=${job.id} job=${job} place=${place} dark=${dark} />`;
}

function Job({ job, place, dark }) {
  const history = useAnswer(`penstock/history/${job.id}`, { everyMs: job.ended === null ? HISTORY_EVERY_MS : 0, version: job.ended ?? 0 });
  const View = SHOWN[place.view];
  return html`
    <${JobHead} job=${job} history=${history.value} />
    <nav class="tabs" aria-label="Views of this job">${VIEWS.map(
      ([name, title]) => html`<a key=${name} href=${to(job.id, name)} aria-current=${name === place.view ? "page" : undefined}>${title}${badge(job, name)}</a>`,
    )}</nav>
    <${View} key=${place.view} job=${job} rest=${place.rest} history=${history} dark=${dark} />`;
}

function badge(job, view) {
  const number = { restarts: job.restarts, checkpoints: job.checkpoints.counts.failed }[view] ?? 0;
  const title = view === "restarts" ? `${number} restarts` : `${number} failed checkpoints`;
  return number > 0 && html`<span class="badge" title=${title}>${number}</span>`;
}

// --- drawing --------------------------------------------------------------------------------------------------------

const root = document.getElementById("page");
root.replaceChildren();
const draw = () => render(html`<${Page} place=${here()} />`, root);

function arrive() {
  want(here().job);
  draw();
}

addEventListener("hashchange", arrive);
listen(draw);
arrive();
