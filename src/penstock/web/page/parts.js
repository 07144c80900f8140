// The parts that all views are made of. Texts are always children or attributes, and so never become markup.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import * as words from "./words.js";

/** A part of a view, with an address of its own, and its content as JSON for a ticket. */
export function Panel({ id, title, json, source, children, aside, wide }) {
  return html`<section class=${wide ? "panel wide" : "panel"} id=${id} aria-label=${title}>
    <header class="panel-head">
      <h2>${title}</h2>
      ${aside && html`<span class="aside">${aside}</span>`}
      <span class="tools">
        ${source && html`<a class="tool" href=${source} target="_blank" rel="noopener" title="The request behind this panel">REST</a>`}
        ${json !== undefined && html`<${CopyJson} value=${json} />`}
      </span>
    </header>
    ${children}
  </section>`;
}

/** Copies a value as JSON. `value` may be a function, called when the button is pressed. */
export function CopyJson({ value, label = "Copy as JSON" }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    const text = JSON.stringify(typeof value === "function" ? value() : value, null, 2);
    setSaid((await copied(text)) ? "Copied" : "Not copied");
    setTimeout(() => setSaid(""), 1_500);
  };
  return html`<button type="button" class="tool copy" onClick=${copy}>${said || label}</button>`;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers keep the clipboard from pages that did not come over HTTPS or from this host.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "off-screen";
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

const TONES = {
  RUNNING: "good", COMPLETED: "good", FINISHED: "done", completed: "good",
  FAILED: "bad", FAILING: "bad", failed: "bad",
  RESTARTING: "warn", CANCELLING: "warn", CANCELING: "warn", INITIALIZING: "warn", DEPLOYING: "warn", CREATED: "warn",
  SCHEDULED: "warn", IN_PROGRESS: "busy", asked: "busy", prepared: "busy", changing: "busy",
  CANCELED: "done", SUSPENDED: "done",
};

/** A state as a word with a colour: the word says it all. */
export const State = ({ of, text }) =>
  html`<span class="state ${TONES[of] ?? "done"}">${(text ?? of ?? "").toLowerCase().replaceAll("_", " ")}</span>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** What went wrong with a request, or that its answer is still awaited. */
export function Waiting({ error, what }) {
  return error
    ? html`<p class="empty bad-text" role="alert">${what} cannot be shown: ${error.message}</p>`
    : html`<p class="empty">${what} …</p>`;
}

/** Numbers with names, side by side. */
export const Facts = ({ of }) =>
  html`<dl class="facts">${of.filter(Boolean).map(
    ([name, value, title]) => html`<div title=${title}><dt>${name}</dt><dd>${value}</dd></div>`,
  )}</dl>`;

// --- tables ---------------------------------------------------------------------------------------------------------

const ROWS_SHOWN = 50;

/** A table that its reader can sort. Shows the first rows only: thousands of rows are slow, and nobody reads them.
 *
 *  A column is `{name, title, value, cell, number, help}`: `value(row)` is what is sorted by, `cell(row)` what is shown. */
export function Table({ columns, rows, keyOf, sort, label, empty = "Nothing yet.", shown = ROWS_SHOWN, rowClass }) {
  const [by, setBy] = useState(sort ?? null);
  const [most, setMost] = useState(shown);
  if (rows.length === 0) return html`<${Empty}>${empty}<//>`;
  const sorted = by === null ? rows : sortedBy(rows, columns.find((column) => column.name === by.name), by.down);
  const press = (column) =>
    setBy(by?.name === column.name ? { name: column.name, down: !by.down } : { name: column.name, down: !!column.number });
  return html`<div class="table-box" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead><tr>${columns.map((column) => {
        const order = by?.name === column.name ? (by.down ? "descending" : "ascending") : undefined;
        return html`<th key=${column.name} scope="col" class=${column.number ? "number" : ""} aria-sort=${order} title=${column.help}>
          ${column.value
            ? html`<button type="button" onClick=${() => press(column)}>${column.title}<span class="order" aria-hidden="true">${
                order ? (by.down ? "↓" : "↑") : ""
              }</span></button>`
            : column.title}
        </th>`;
      })}</tr></thead>
      <tbody>${sorted.slice(0, most).map(
        (row) => html`<tr key=${keyOf(row)} class=${rowClass?.(row)}>${columns.map(
          (column) => html`<td key=${column.name} class=${column.number ? "number" : ""}>${column.cell ? column.cell(row) : column.value(row)}</td>`,
        )}</tr>`,
      )}</tbody>
    </table>
    ${rows.length > most && html`<p class="more">
      ${words.count(most)} of ${words.count(rows.length)} are shown.
      <button type="button" class="link" onClick=${() => setMost(most + 4 * shown)}>Show more</button>
    </p>`}
  </div>`;
}

function sortedBy(rows, column, isDown) {
  const valued = rows.map((row) => [column.value(row), row]);
  const sign = isDown ? -1 : 1;
  valued.sort(([one], [other]) => {
    // What is not known comes last, whichever way is sorted.
    if (one === null || one === undefined) return other === null || other === undefined ? 0 : 1;
    if (other === null || other === undefined) return -1;
    return one < other ? -sign : one > other ? sign : 0;
  });
  return valued.map(([, row]) => row);
}

// --- where the time goes --------------------------------------------------------------------------------------------

export const SHARES = [
  ["busy", "busy", "at work"],
  ["waiting", "waiting", "ready to work, while other tasks of the slot work"],
  ["blocked", "blocked", "back-pressured: the tasks after it take nothing"],
  ["idle", "idle", "nothing to do"],
];

/** Where the time of a task goes, as a bar and in words. */
export function TimeBar({ shares, text = true }) {
  const said = SHARES.filter(([name]) => (shares[name] ?? 0) >= 0.005).map(([name, label]) => `${label} ${words.percent(shares[name])}`);
  const all = said.join(", ") || "no numbers yet";
  return html`<span class="time-bar" title=${all} role="img" aria-label=${all}>
    <span class="bar">${SHARES.map(
      ([name]) => (shares[name] ?? 0) > 0 && html`<span key=${name} class="part ${name}" style=${{ width: `${100 * shares[name]}%` }}></span>`,
    )}</span>
    ${text && html`<span class="bar-text" aria-hidden="true">${words.percent(shares.busy)}</span>`}
  </span>`;
}

export const TimeLegend = () =>
  html`<p class="legend">${SHARES.map(([name, label, help]) => html`<span key=${name}><i class="swatch ${name}"></i>${label}: ${help}</span>`)}</p>`;

/** A bar of a length, for sizes beside each other. */
export const Length = ({ value, of, label }) => html`<span class="length" title=${label}>
  <span class="fill" style=${{ width: `${of > 0 && value > 0 ? Math.max(1, (100 * value) / of) : 0}%` }}></span>
</span>`;

// --- plots ----------------------------------------------------------------------------------------------------------

const PLOT_HEIGHT = 150;

/** Lines over time. `series` is a list of `{label, values, colour, text}`; `colour` is the name of a colour of the page. */
export function Plot({ label, times, series, height = PLOT_HEIGHT, points = false, theme }) {
  const box = useRef(null);
  const plot = useRef(null);
  const isEmpty = times.length < 2 || !series.some((one) => one.values.some((value) => value !== null && value !== undefined));
  const shape = series.map((one) => `${one.label}:${one.colour}`).join("|");
  useLayoutEffect(() => {
    if (isEmpty || !box.current) return undefined;
    const made = newPlot(box.current, times, series, height, points);
    plot.current = made;
    tellLast(made);
    const resized = new ResizeObserver(() => made.setSize({ width: box.current.clientWidth, height }));
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [isEmpty, shape, points, height, theme]);
  useEffect(() => {
    plot.current?.setData(plotData(times, series));
    if (plot.current) tellLast(plot.current);
  }, [times, ...series.map((one) => one.values)]);
  return html`<figure class="plot">
    <figcaption>${label}</figcaption>
    ${isEmpty ? html`<p class="empty" style=${{ minHeight: `${height}px` }}>No numbers yet.</p>` : html`<div ref=${box} class="plot-box" role="img" aria-label=${spoken(label, series)}></div>`}
  </figure>`;
}

function spoken(label, series) {
  const last = (values) => values.findLast((value) => value !== null && value !== undefined);
  return `${label}. ${series.map((one) => `${one.label}: now ${one.text(last(one.values))}`).join(", ")}`;
}

const plotData = (times, series) => [times.map((time) => time / 1000), ...series.map((one) => one.values.map((value) => value ?? null))];

/** While nothing is pointed at, the legend says what is newest. */
function tellLast(plot) {
  plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

function newPlot(box, times, series, height, points) {
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const said = series[0].text;
  return new window.uPlot(
    {
      width: box.clientWidth,
      height,
      legend: { live: true },
      cursor: { y: false, drag: { x: true, y: false } },
      padding: [8, 8, 0, 0],
      hooks: { setCursor: [(plot) => (plot.cursor.idx === null || plot.cursor.idx === undefined) && tellLast(plot)] },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => words.clock(tick * 1000)), space: 72 },
        { ...axis, size: 76, values: (_, ticks) => ticks.map((tick) => said(tick)), space: 34 },
      ],
      series: [
        { label: "at", value: (_, time) => (time === null ? words.NONE : words.clock(time * 1000)) },
        ...series.map((one) => ({
          label: one.label,
          stroke: colour(one.colour),
          width: 1.5,
          spanGaps: false,
          points: { show: points, size: 5, fill: colour(one.colour) },
          value: (_, value) => one.text(value),
        })),
      ],
    },
    plotData(times, series),
    box,
  );
}

// --- dialogs --------------------------------------------------------------------------------------------------------

/** A dialog over the page: Escape closes it, and the keyboard stays inside. */
export function Dialog({ title, onClose, children }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const dialog = place.current;
    dialog.showModal();
    dialog.addEventListener("close", onClose);
    return () => {
      // The browser says later that a dialog has been closed: the reader may be elsewhere by then.
      dialog.removeEventListener("close", onClose);
      if (dialog.open) dialog.close();
    };
  }, []);
  return html`<dialog ref=${place} class="dialog" aria-label=${title}>
    <h2>${title}</h2>
    ${children}
  </dialog>`;
}
