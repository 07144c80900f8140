// Numbers, sizes, durations and times as texts for people: the same texts as those of the terminal.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
export const NONE = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** `0 B`, `1.5 kB`, `23 MB`: two or three digits, by powers of 1,000. */
export function size(bytes) {
  if (!isNumber(bytes)) return NONE;
  let unit = 0;
  while (bytes >= 999.5 && unit < UNITS.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return unit === 0 || bytes >= 9.95 ? `${bytes.toFixed(0)} ${UNITS[unit]}` : `${bytes.toFixed(1)} ${UNITS[unit]}`;
}

/** `0 ms`, `12 ms`, `3.4 s`, `2 min 5 s`, `3 h 4 min`, `2 d 3 h`. */
export function duration(ms) {
  if (!isNumber(ms)) return NONE;
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 999.5) return ms > 0 && ms < 1 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(0)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long ago something was, in whole seconds: a text that changes with every tenth cannot be read. */
export function ago(ms) {
  if (!isNumber(ms)) return NONE;
  return ms < 950 ? "just now" : `${duration(ms < 60_000 ? Math.round(ms / 1000) * 1000 : ms).replace(/\.0 s$/, " s")} ago`;
}

/** `1,234`. */
export function count(number) {
  return isNumber(number) ? Math.round(number).toLocaleString("en-US") : NONE;
}

/** `1 slot`, `2 slots`. */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** `0`, `3.2`, `950`, `1.2 k`, `34 k`, `5.6 M`. */
export function short(number) {
  if (!isNumber(number)) return NONE;
  let rest = Math.abs(number);
  let unit = "";
  for (const next of [" k", " M", " G", " T"]) {
    if (rest < 999.5) break;
    rest /= 1000;
    unit = next;
  }
  const digits = rest === 0 || rest >= 9.95 || (unit === "" && Number.isInteger(rest)) ? 0 : 1;
  return `${number < 0 ? "-" : ""}${rest.toFixed(digits)}${unit}`;
}

/** `1.2 k/s`. */
export const rate = (perSecond) => (isNumber(perSecond) ? `${short(perSecond)}/s` : NONE);

/** `34 %`. */
export const percent = (share) => (isNumber(share) ? `${Math.round(share * 100)} %` : NONE);

const two = (number) => String(number).padStart(2, "0");

/** The time of day, where the reader is: `04:33:11`. */
export function clock(ms) {
  if (!isNumber(ms)) return NONE;
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Day and time, where the reader is: `2026-11-18 04:33:11`. */
export function moment(ms) {
  if (!isNumber(ms)) return NONE;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms`;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

/** The first line of a text. */
export const firstLine = (text) => String(text ?? "").split("\n")[0];
