// What can be done with the keyboard alone, besides moving from link to link.

import { here, to, TO_JOBS, VIEWS } from "./places.js";

export const KEYS = [
  ...VIEWS.map(([, title], place) => [String(place + 1), title]),
  ["0", "All jobs"],
  ["?", "This list"],
  ["Tab", "To the next link, button or table; arrow keys scroll a table"],
  ["Esc", "Close a dialog"],
];

/** Listen to keys that are pressed outside of fields. Returns how to stop. */
export function onKey({ help }) {
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
    const { job } = here();
    if (event.key === "?") help();
    else if (event.key === "0") location.hash = TO_JOBS;
    else if (job !== null && /^[1-9]$/.test(event.key) && VIEWS[event.key - 1]) location.hash = to(job, VIEWS[event.key - 1][0]);
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}
