// Requests to the server: answers that are asked for once, and actions with their progress.

import { useEffect, useState } from "./vendor/preact-htm.js";

/** What the server says about a request that it refuses. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function refusalOf(response) {
  const text = await response.text();
  try {
    const said = JSON.parse(text);
    return new Refused(response.status, (said.errors ?? [text]).join("\n"));
  } catch {
    return new Refused(response.status, text || `the server answered ${response.status}`);
  }
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new Refused(0, "the driver does not answer");
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

export const getJson = async (path) => (await asked(path)).json();
export const getText = async (path) => (await asked(path)).text();

export async function send(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await asked(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await response.text();
  return text ? JSON.parse(text) : {};
}

const POLL_MS = 400;
const RETRY_MS = 1_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Begin an action and wait for its end. Returns its result; throws what went wrong. */
export async function act({ method, path, body, poll, begun }) {
  const answer = await send(method, path, body);
  const trigger = answer["request-id"];
  begun?.(trigger);
  if (!trigger || !poll) return answer;
  for (;;) {
    await pause(POLL_MS);
    const told = await getJson(poll(trigger));
    if (told.status.id === "COMPLETED") {
      const failure = told.operation?.["failure-cause"];
      if (failure) throw new Refused(200, `${failure.class}: ${failure["stack-trace"]}`);
      return told.operation ?? {};
    }
  }
}

/** The answer to a GET, asked again after `everyMs` and whenever `path` changes. `version` asks anew, too. */
export function useAnswer(path, { everyMs = 0, version = 0, read = getJson } = {}) {
  const [found, setFound] = useState({ path: null, value: null, error: null });
  useEffect(() => {
    if (!path) return undefined;
    let isWanted = true;
    let timer = 0;
    const ask = async () => {
      let next;
      try {
        next = { path, value: await read(path), error: null };
      } catch (error) {
        next = { path, value: null, error };
      }
      if (!isWanted) return;
      // An answer that was good stays while the driver cannot be reached.
      setFound((before) => (next.error && before.path === path && before.value !== null ? { ...before, error: next.error } : next));
      // A checkpoint that was being read may have been deleted for a newer one; a driver may be busy or away.
      if (next.error && [0, 409, 503].includes(next.error.status)) timer = setTimeout(ask, RETRY_MS);
      else if (everyMs) timer = setTimeout(ask, everyMs);
    };
    ask();
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [path, everyMs, version]);
  return found.path === path ? found : { path, value: null, error: null };
}
