/** All schedules: when each runs next, and how its last run ended. */

import { read } from "../api.js";
import { h, pageLink, refill } from "../dom.js";
import { keepReading } from "../paged.js";
import { scheduleButtons } from "../schedule_actions.js";
import { lastRun, nextStart, schedulePath, stateOf, whenOf, zoneOf } from "../schedule_figures.js";
import { Table } from "../table.js";

/** @typedef {import("../app.js").App} App */
/** @typedef {import("../types.js").ScheduleRow} ScheduleRow */

const NOBODY = "No shoal serve --spiders FOLDER is there to start runs: until there is one, none starts.";
const EMPTY = "No schedules yet. Write [[schedules]] into shoal.toml, then start: shoal serve --spiders FOLDER";

/**
 * @param {App} app
 * @param {() => void} changed
 * @returns {Table<ScheduleRow>}
 */
function scheduleTable(app, changed) {
  /** @type {import("../table.js").Column<ScheduleRow>[]} */
  const columns = [
    { title: "Schedule", cell: (row) => [pageLink(schedulePath(row.name), row.name, { class: "strong url" }), h("span", { class: "under url" }, row.spider)] },
    { title: "State", cell: stateOf },
    { title: "When", cell: whenOf },
    { title: "Time zone", cell: zoneOf },
    { title: "Next start", kind: "number", cell: nextStart },
    { title: "Last run", cell: lastRun },
  ];
  if (app.isAdmin()) columns.push({ title: "Actions", kind: "actions", cell: (_, latest) => scheduleButtons(app, { latest, changed }) });
  return new Table({ caption: "Schedules, by name", keyOf: (row) => row.name, empty: EMPTY, columns });
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {AbortSignal} signal
 */
export function showSchedules(root, app, signal) {
  app.title("Schedules");
  app.live.follow(null);
  const notice = h("div", {});
  const table = scheduleTable(app, () => void reread());
  root.append(h("div", { class: "head" }, h("h1", { tabindex: -1 }, "Schedules")), notice, table.element);
  const reread = keepReading(async () => {
    const { is_run, schedules } = await read("/schedules");
    if (signal.aborted) return;
    refill(notice, schedules.length > 0 && !is_run && h("p", { class: "notice" }, NOBODY));
    table.fill(schedules);
  }, { app, signal, isMoving: () => true });
}
