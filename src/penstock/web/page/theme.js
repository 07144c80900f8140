// Light or dark: as the system has it, unless the reader has chosen.

import { useEffect, useState } from "./vendor/preact-htm.js";

const NAMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const told = new Set();

/** What the reader has chosen. */
export const theme = () => document.documentElement.dataset.theme ?? "auto";

function choose(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  for (const tell of told) tell();
}

export function nextTheme() {
  const next = NAMES[(NAMES.indexOf(theme()) + 1) % NAMES.length];
  try {
    localStorage.setItem("penstock-theme", next);
  } catch {
    // The browser keeps nothing for this page; the choice lasts as long as the page.
  }
  choose(next);
}

/** A value that changes with the colours, so that plots are drawn anew. */
export function useTheme() {
  const [value, setValue] = useState(0);
  useEffect(() => {
    const tell = () => setValue((before) => before + 1);
    told.add(tell);
    system.addEventListener("change", tell);
    return () => {
      told.delete(tell);
      system.removeEventListener("change", tell);
    };
  }, []);
  return value;
}

try {
  choose(localStorage.getItem("penstock-theme") ?? "auto");
} catch {
  choose("auto");
}
