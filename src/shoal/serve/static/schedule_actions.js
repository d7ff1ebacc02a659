/** What people do to a schedule: run it now, pause it, resume it. */

import { change } from "./api.js";
import { ask } from "./dialogs.js";
import { button, h } from "./dom.js";
import { schedulePath } from "./schedule_figures.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").ScheduleRow} ScheduleRow */

/**
 * The buttons that fit a schedule; none for those who may only look.
 * @param {App} app
 * @param {{latest: () => ScheduleRow, changed: () => void}} options
 * @returns {HTMLButtonElement[]}
 */
export function scheduleButtons(app, { latest, changed }) {
  if (!app.isAdmin()) return [];
  const row = latest();
  const make = (/** @type {string} */ label, /** @type {(row: ScheduleRow) => unknown} */ act) =>
    button(label, () => void act(latest()), { class: "small", "aria-label": `${label} ${row.name}` });
  return [
    make("Run now", (one) => confirmRun(app, one, changed)),
    row.paused ? make("Resume", (one) => resume(app, one, changed)) : make("Pause", (one) => confirmPause(app, one, changed)),
  ];
}

/**
 * What a run that is asked for does to the one that goes on.
 * @param {ScheduleRow} row
 */
function overlap(row) {
  const going = row.current?.crawl || "the run before it";
  if (!row.current) return "";
  if (row.waiting) return `It will be skipped: another run waits already for ${going}.`;
  if (row.overlap === "queue") return `It waits until ${going} ends.`;
  if (row.overlap === "cancel") return `${going} is still going, and will be cancelled first.`;
  return `It will be skipped, unless ${going} has ended by then.`;
}

/**
 * @param {App} app
 * @param {ScheduleRow} row
 * @param {() => void} changed
 */
function confirmRun(app, row, changed) {
  const more = overlap(row);
  const soon = row.current ? "falls due now" : "begins within seconds";
  return ask({
    title: `Run ${row.name} now?`,
    body: [
      h("p", {}, `A run of ${row.spider} ${soon}${row.paused ? ", although the schedule is paused" : ""}. When it runs next stays as it is.`),
      more && h("p", {}, more),
    ],
    act: "Run now",
    danger: row.current !== null && row.overlap === "cancel",
    run: async () => {
      await change("POST", `${schedulePath(row.name)}/run`);
      app.announce(`a run of ${row.name} was asked for`);
      changed();
    },
  });
}

/**
 * @param {App} app
 * @param {ScheduleRow} row
 * @param {() => void} changed
 */
function confirmPause(app, row, changed) {
  const going = row.current ? ` ${row.current.crawl || "The run that begins"} goes on.` : "";
  return ask({
    title: `Pause ${row.name}?`,
    body: [
      h("p", {}, `No more runs start by themselves until somebody resumes it, whatever shoal.toml says.${going}`),
      h("p", {}, "Runs that fall due meanwhile are not made up for."),
    ],
    act: "Pause the schedule",
    run: async () => {
      await change("POST", `${schedulePath(row.name)}/pause`);
      app.announce(`${row.name} is paused`);
      changed();
    },
  });
}

/**
 * @param {App} app
 * @param {ScheduleRow} row
 * @param {() => void} changed
 */
async function resume(app, row, changed) {
  try {
    await change("POST", `${schedulePath(row.name)}/resume`);
    app.announce(`${row.name} goes on`);
    changed();
  } catch (error) {
    app.failed(error);
  }
}
