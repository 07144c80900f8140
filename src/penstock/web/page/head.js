// The head of a job: its name and state, and the answers to four questions in words.

import { html } from "./vendor/preact-htm.js";
import { live, now } from "./live.js";
import { CopyJson, State } from "./parts.js";
import { to } from "./places.js";
import * as words from "./words.js";

export function connectionText() {
  if (live.state === "live") return "live";
  if (live.state === "connecting") return "connecting …";
  return `${words.duration(Math.max(0, Math.round((Date.now() - live.lostAt) / 1000) * 1000))} ago`;
}

export function JobHead({ job, history }) {
  const end = job.ended ?? now();
  return html`<section class="job-head" aria-label="The job in short">
    <h1><span class="job-name" title=${job.name}>${job.name}</span> <${State} of=${job.flink_state} text=${job.state} />
      <span class="quiet">${job.ended === null ? "for" : "ended; ran"} ${words.duration(end - job.started)} · parallelism ${job.parallelism} · since ${words.moment(job.started)}</span>
      <span class="tools"><a class="tool" href=${`penstock/jobs/${job.id}`} target="_blank" rel="noopener">REST</a><${CopyJson} value=${job} /></span>
    </h1>
    <dl class="answers">${answers(job, history).map(
      ([question, level, text, more, view]) => html`<div key=${question} class=${level}>
        <dt>${question}</dt><dd><a href=${to(job.id, view)}><strong>${text}</strong>${more && html` <span>${more}</span>`}</a></dd>
      </div>`,
    )}</dl>
  </section>`;
}

/** The four questions: question, level, answer, more about it, and the view that shows it. */
export function answers(job, history) {
  return [healthy(job), keepingUp(job, history), lastCheckpoint(job), crashNow(job)];
}

/** Whether the tasks of the job have run at all. */
const hasRun = (job) => job.attempts.some((attempt) => attempt.ran !== null);

const said = (job, topic) => job.sentences.find((sentence) => sentence.topic === topic);

function healthy(job) {
  const question = "Healthy?";
  const stuck = said(job, "stuck");
  const state = said(job, "state");
  if (job.ended !== null) return [question, job.flink_state === "FAILED" ? "bad" : "quiet", "The job has ended", reasonOf(state, job), "restarts"];
  if (state && !hasRun(job)) return [question, "quiet", "Not running yet", reasonOf(state, job), "restarts"];
  if (state) return [question, state.level === "bad" ? "bad" : "warn", `No, it is ${job.state}`, reasonOf(state, job), "restarts"];
  if (stuck) return [question, "bad", "A slot is stuck", stuck.text, "restarts"];
  const failure = job.failures[0];
  if (job.restarts > 0 && failure)
    return [question, "good", "Yes", `after ${words.counted(job.restarts, "restart")}, the last ${words.ago(now() - failure.when)}`, "restarts"];
  return [question, "good", "Yes", "no restart", "restarts"];
}

function reasonOf(sentence, job) {
  const failure = job.failures[0];
  if (job.ended !== null && job.flink_state !== "FAILED") return job.state;
  return failure ? words.firstLine(failure.text) : (sentence?.text ?? job.state);
}

function keepingUp(job, history) {
  const question = "Keeping up?";
  const rates = `${words.rate(job.rates.rows_in_per_s)} read`;
  if (job.ended !== null) return [question, "quiet", "–", `${words.count(job.rows.read ?? job.rows.in)} records read in all`, "overview"];
  if (job.flink_state !== "RUNNING") return [question, hasRun(job) ? "warn" : "quiet", hasRun(job) ? "No" : "Not yet", "nothing is read", "overview"];
  const slow = said(job, "bottleneck");
  const lag = job.watermark_lag_ms;
  const late = lag === null ? "" : `, event time is ${words.duration(Math.max(0, lag))} behind${trend(history)}`;
  if (slow) return [question, slow.level === "bad" ? "bad" : "warn", slow.level === "bad" ? "No" : "Barely", `${slow.text.split(": it is at work")[0]}; ${rates}${late}`, "graph"];
  // A slot with idle time takes what comes; without, something may be waiting outside that nobody counts.
  if (job.vertices.length > 0 && job.vertices.every((vertex) => vertex.parallelism > 0 && vertex.shares.idle.mean < NO_TIME_LEFT && vertex.shares.busy.mean + vertex.shares.waiting.mean > 0))
    return [question, "warn", "At full speed", `no slot has idle time; ${rates}${late}`, "graph"];
  return [question, "good", "Yes", `${rates}${late}`, "graph"];
}

const NO_TIME_LEFT = 0.03;
const TREND_FROM_POINTS = 30;

/** Whether the lag grows or shrinks, over the ten minutes that are kept by the second. */
export function trend(history) {
  const lags = (history?.seconds.series.lag_ms ?? []).filter((lag) => lag !== null);
  if (lags.length < TREND_FROM_POINTS) return "";
  const third = Math.floor(lags.length / 3);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const before = mean(lags.slice(0, third));
  const after = mean(lags.slice(-third));
  if (Math.abs(after - before) < Math.max(1_000, 0.1 * Math.abs(before))) return ", steady";
  return after > before ? ", and growing" : ", and shrinking";
}

function lastCheckpoint(job) {
  const question = "Last checkpoint?";
  const { latest_completed: latest, latest_failed: failed, counts } = job.checkpoints;
  if (failed && (!latest || failed.checkpoint > latest.checkpoint))
    return [question, "bad", `Checkpoint ${failed.checkpoint} failed`, failed.failure_text, "checkpoints"];
  if (!latest) return [question, counts.in_progress > 0 || !hasRun(job) ? "quiet" : "warn", counts.in_progress > 0 ? "The first is under way" : "None yet", "", "checkpoints"];
  const took = `took ${words.duration(latest.duration_ms)}, ${words.size(latest.state_bytes)}`;
  const slow = underWayFor(job);
  if (slow > SLOW_MS && slow > 3 * (job.settings.checkpoint?.interval_ms ?? SLOW_MS))
    return [question, "warn", words.ago(now() - (latest.ended ?? latest.triggered)), `checkpoint ${latest.checkpoint} ${took}; the next has been under way for ${words.duration(Math.round(slow / 1000) * 1000)}`, "checkpoints"];
  const when = job.ended === null ? words.ago(now() - (latest.ended ?? latest.triggered)) : words.moment(latest.ended);
  return [question, "good", when, `${latest.is_savepoint ? "savepoint" : "checkpoint"} ${latest.checkpoint} ${took}`, "checkpoints"];
}

const SLOW_MS = 10_000;

/** How long the oldest checkpoint that has not ended has taken so far. */
function underWayFor(job) {
  const open = job.checkpoints.history.filter((each) => each.status === "IN_PROGRESS");
  return job.ended === null && open.length > 0 ? now() - Math.min(...open.map((each) => each.triggered)) : 0;
}

function crashNow(job) {
  const question = "A crash now?";
  const { records, since_ms: since, checkpoint } = job.at_risk;
  if (job.ended !== null) return [question, "quiet", "–", "nothing is running", "checkpoints"];
  if (!hasRun(job)) return [question, "quiet", "Would cost nothing", "nothing has been read", "checkpoints"];
  if (checkpoint === null)
    return [question, "warn", "All would be read again", records === null ? "no checkpoint has completed" : `${words.count(records)} records: no checkpoint has completed`, "checkpoints"];
  if (since === null) return [question, "quiet", `Would restart from checkpoint ${checkpoint}`, "", "checkpoints"];
  const what = records === null ? "" : `${words.short(records)} ${records === 1 ? "record" : "records"}, `;
  return [question, "quiet", `${what}${words.duration(since)}`, "would be read again", "checkpoints"];
}
