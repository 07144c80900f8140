// What the page knows: a few numbers of every job, and the whole document of the job that is looked at. The server's
// stream keeps both up to date: the server sends everything once, and then what changes.
//
// While the page cannot be seen it lets go of the stream: a browser opens only a few connections to one server, which
// all tabs share.

const SILENT_AFTER_MS = 5_000;
const RETRY_MS = 1_000;
const RETRY_AT_MOST_MS = 10_000;

export const live = {
  picture: null, // {jobs: {id: head}, job: document}, as the server has it
  state: "connecting", // or "live", "lost"
  lostAt: null,
  why: "",
  wanted: null, // the id of the job that is looked at
  unknown: null, // the id of a job that the server does not know
  offsetMs: 0, // the server's clock minus ours
};

let changed = () => {};
let source = null;
let tries = 0;
let retry = 0;
let watch = 0;
let heardAt = 0;

/** The time of the server, as far as the page can tell. */
export const now = () => Date.now() + live.offsetMs;

/** Begin to listen. `onChange` is called after every message. */
export function listen(onChange) {
  changed = onChange;
  document.addEventListener("visibilitychange", () => (document.hidden ? letGo() : connect()));
  connect();
}

/** Look at another job, or at none. */
export function want(job) {
  if (job === live.wanted) return;
  live.wanted = job;
  live.unknown = null;
  if (live.picture) live.picture = { ...live.picture, job: null };
  reconnect();
}

/** Try again at once. */
export function reconnect() {
  letGo();
  connect();
}

function connect() {
  if (source !== null || document.hidden) return;
  clearTimeout(retry);
  heardAt = Date.now();
  const isKnown = live.wanted !== null && live.wanted !== live.unknown;
  const opened = new EventSource(isKnown ? `penstock/stream?job=${encodeURIComponent(live.wanted)}` : "penstock/stream");
  source = opened;
  opened.addEventListener("snapshot", (event) => source === opened && take(event, (sent) => sent));
  opened.addEventListener("changes", (event) => source === opened && take(event, (sent) => applied(live.picture, sent)));
  opened.onerror = () => source === opened && lose();
  clearInterval(watch);
  watch = setInterval(check, SILENT_AFTER_MS / 2);
}

function letGo() {
  clearTimeout(retry);
  clearInterval(watch);
  source?.close();
  source = null;
}

/** Nothing changes in a job that has ended: whether the driver is there is asked for then. */
async function check() {
  if (Date.now() - heardAt < SILENT_AFTER_MS) return;
  try {
    const answer = await fetch("penstock/jobs", { cache: "no-store", signal: AbortSignal.timeout(SILENT_AFTER_MS) });
    if (answer.ok) heardAt = Date.now();
  } catch {
    if (source !== null) lose();
  }
}

async function lose() {
  letGo();
  live.lostAt ??= Date.now();
  live.state = "lost";
  tries += 1;
  retry = setTimeout(connect, Math.min(RETRY_MS * tries, RETRY_AT_MOST_MS));
  changed();
  try {
    await learnWhy(live.wanted);
  } catch {
    live.why = "The driver does not answer.";
  }
  changed();
}

/** A stream says nothing about why it ended; a plain request does. */
async function learnWhy(job) {
  const answer = await fetch(job ? `penstock/jobs/${encodeURIComponent(job)}` : "penstock/jobs", { cache: "no-store" });
  live.why = answer.ok ? "" : `The driver answers ${answer.status}.`;
  if (answer.status === 401) location.assign("penstock/login");
  if ((answer.status === 404 || answer.status === 400) && job && job === live.wanted) {
    live.unknown = job;
    reconnect();
  }
}

function take(event, read) {
  const began = performance.now();
  heardAt = Date.now();
  try {
    live.picture = read(JSON.parse(event.data));
  } catch (error) {
    // What the page has does not fit what the server sends: everything is asked for anew.
    console.warn("the stream is read anew:", error);
    lose();
    return;
  }
  live.state = "live";
  live.lostAt = null;
  tries = 0;
  const running = Object.values(live.picture.jobs).find((job) => job.ended === null);
  if (running) live.offsetMs = running.now - Date.now();
  changed();
  performance.measure("penstock-update", { start: began, end: performance.now() });
  if (performance.getEntriesByName("penstock-update").length > 1_000) performance.clearMeasures("penstock-update");
}

/** The document after these changes. A change is a path, and the value that stands there from now on; without a value,
 *  nothing stands there any more. Objects on the path are made anew, so that what is not touched stays the same object. */
export function applied(document, changes) {
  for (const change of changes) document = put(document, change[0], 0, change);
  return document;
}

function put(place, path, depth, change) {
  if (depth === path.length) return change[1];
  const made = Array.isArray(place) ? place.slice() : { ...place };
  const name = path[depth];
  if (depth === path.length - 1 && change.length === 1) delete made[name];
  else made[name] = put(place[name], path, depth + 1, change);
  return made;
}
