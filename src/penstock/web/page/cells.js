// A thousand numbers at once: a cell each, the darker the larger. The table beside it says the same in words.

import { html, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { useWidth } from "./width.js";

const CELL = 16;
const SMALL_CELL = 10;
const MANY = 400;

export function Cells({ values, label, text, colour = "busy" }) {
  const canvas = useRef(null);
  const [box, width] = useWidth();
  const [pointed, setPointed] = useState(null);
  const cell = values.length > MANY ? SMALL_CELL : CELL;
  const columns = Math.max(1, Math.floor(width / cell));
  const height = Math.ceil(values.length / columns) * cell;
  useLayoutEffect(() => {
    const styles = getComputedStyle(document.documentElement);
    const scale = window.devicePixelRatio || 1;
    canvas.current.width = columns * cell * scale;
    canvas.current.height = height * scale;
    const pen = canvas.current.getContext("2d");
    pen.scale(scale, scale);
    const [ground, full] = [styles.getPropertyValue("--cell").trim(), styles.getPropertyValue(`--${colour}`).trim()];
    const most = Math.max(...values.map((value) => value ?? 0));
    values.forEach((value, place) => {
      const x = (place % columns) * cell;
      const y = Math.floor(place / columns) * cell;
      pen.globalAlpha = 1;
      pen.fillStyle = ground;
      pen.fillRect(x, y, cell - 1, cell - 1);
      if (!value || most <= 0) return;
      pen.globalAlpha = Math.max(0.06, value / most);
      pen.fillStyle = full;
      pen.fillRect(x, y, cell - 1, cell - 1);
    });
  });
  const point = (event) => {
    const area = canvas.current.getBoundingClientRect();
    const place = Math.floor((event.clientY - area.top) / cell) * columns + Math.floor((event.clientX - area.left) / cell);
    setPointed(place >= 0 && place < values.length ? place : null);
  };
  return html`<div ref=${box} class="cells">
    <canvas ref=${canvas} role="img" aria-label=${label} style=${{ width: `${columns * cell}px`, height: `${height}px` }} onMouseMove=${point} onMouseLeave=${() => setPointed(null)}></canvas>
    <p class="cells-text">${pointed === null || pointed >= values.length ? "" : text(pointed)}</p>
  </div>`;
}
