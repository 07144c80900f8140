// Where the reader is: the part of the address behind `#`. Every view has an address that can be kept and sent.

export const VIEWS = [
  ["overview", "Overview"],
  ["graph", "Graph"],
  ["checkpoints", "Checkpoints"],
  ["restarts", "Restarts"],
  ["state", "State"],
  ["logs", "Logs"],
  ["settings", "Settings"],
  ["actions", "Actions"],
];

/** `#/job/<id>/<view>/<rest…>` as its parts. */
export function here() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  if (parts[0] !== "job" || !parts[1]) return { job: null, view: "jobs", rest: [] };
  const view = VIEWS.some(([name]) => name === parts[2]) ? parts[2] : "overview";
  return { job: parts[1], view, rest: parts.slice(3) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a view. */
export const to = (job, view = "overview", ...rest) =>
  `#/job/${[job, view, ...rest].map((part) => encodeURIComponent(part)).join("/")}`;

export const TO_JOBS = "#/";
