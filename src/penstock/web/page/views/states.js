// State: how large the state of each operator is, how it is spread, and what is stored for one key.

import { html } from "../vendor/preact-htm.js";
import { Empty } from "../parts.js";

export function States() {
  return html`<${Empty}>…<//>`;
}
