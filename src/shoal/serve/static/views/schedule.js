/** One schedule: what it runs and when, and how its runs went. */

import { read } from "../api.js";
import { h, pageLink, refill } from "../dom.js";
import { count, duration, moment } from "../format.js";
import { keepReading } from "../paged.js";
import { scheduleButtons } from "../schedule_actions.js";
import { nextStart, runLink, runState, schedulePath, stateOf, whenOf, zoneOf } from "../schedule_figures.js";
import { Table } from "../table.js";

/** @typedef {import("../app.js").App} App */
/** @typedef {import("../dom.js").Child} Child */
/** @typedef {import("../types.js").ScheduleRow} ScheduleRow */
/** @typedef {import("../types.js").RunEntry} RunEntry */

const OVERLAP = {
  skip: "a run that falls due while one is going is skipped",
  queue: "a run that falls due while one is going waits for its end",
  cancel: "a run that falls due cancels the crawl of the one that is going",
};
const MISSED = { skip: "runs that nobody could start are left out", once: "one of the runs that nobody could start is made up for" };

/** @returns {Table<RunEntry>} */
function historyTable() {
  return new Table({
    caption: "Runs, newest first",
    // A run that was missed and then made up for has two lines.
    keyOf: (/** @type {RunEntry} */ entry) => `${entry.run} ${entry.state} ${entry.started} ${entry.ended}`,
    empty: "It has not run yet.",
    columns: [
      { title: "Due", cell: (entry) => moment(entry.due) },
      { title: "State", cell: runState },
      { title: "Crawl", cell: runLink },
      { title: "Started", kind: "number", cell: (entry) => moment(entry.started) },
      { title: "Took", kind: "number", cell: (entry) => (entry.started && entry.ended ? duration(Math.max(0, entry.ended - entry.started)) : "–") },
      { title: "Why", cell: (entry) => [entry.reason || "–", entry.log && h("span", { class: "under url" }, `output: ${entry.log}`)] },
    ],
  });
}

/**
 * @param {ScheduleRow} row
 * @returns {[string, Child[]][]}
 */
function facts(row) {
  const pairs = (/** @type {Record<string, unknown>} */ values) =>
    h("code", {}, Object.entries(values).map(([name, value]) => `${name}=${value}`).join(" "));
  /** @type {[string, Child[]][]} */
  const found = [
    ["When", whenOf(row)],
    ["Time zone", zoneOf(row)],
    ["Next start", nextStart(row)],
    ["Overlap", [OVERLAP[row.overlap]]],
    ["Missed", [MISSED[row.missed]]],
    ["Workers", [count(row.workers)]],
  ];
  if (Object.keys(row.arguments).length) found.push(["Arguments", [pairs(row.arguments)]]);
  if (Object.keys(row.settings).length) found.push(["Settings", [pairs(row.settings)]]);
  found.push(["Written in", [row.origin === "file" ? "shoal.toml, and changed there" : "the frontier, over HTTP"]]);
  return found;
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {{name: string, signal: AbortSignal}} place
 */
export function showSchedule(root, app, { name, signal }) {
  app.title(`Schedule ${name}`);
  app.live.follow(null);
  /** @type {ScheduleRow | null} */
  let row = null;
  const heading = h("h1", { tabindex: -1 }, name);
  const under = h("p", { class: "muted" });
  const actions = h("div", { class: "row" });
  const about = h("dl", { class: "facts" });
  const table = historyTable();
  const titles = h("div", {}, h("p", { class: "crumbs" }, pageLink("/schedules", "All schedules")), heading, under);
  root.append(h("div", { class: "head" }, titles, actions), about);
  /** @param {ScheduleRow} latest */
  const show = (latest) => {
    // Only now: a schedule that is not there has no history.
    if (!row) root.append(h("h2", {}, "Runs"), table.element);
    row = latest;
    refill(heading, latest.name, " ", ...stateOf(latest));
    refill(under, h("span", { class: "url" }, `spider ${latest.spider}`));
    refill(actions, ...scheduleButtons(app, { latest: () => row ?? latest, changed: () => void reread() }));
    refill(about, ...facts(latest).flatMap(([title, value]) => [h("dt", {}, title), h("dd", {}, ...value)]));
  };
  const reread = keepReading(async () => {
    const latest = await read(schedulePath(name));
    const { runs } = await read(`${schedulePath(name)}/history`);
    if (signal.aborted) return;
    show(latest);
    table.fill(runs);
  }, { app, signal, isMoving: () => row !== null });
}
