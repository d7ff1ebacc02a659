/** What the list of schedules and the view of one show alike: its state, when it runs, how a run went. */

import { badge } from "./crawl_figures.js";
import { h, pageLink } from "./dom.js";
import { count, duration, moment } from "./format.js";
import { whenInWords } from "./schedule_words.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./types.js").ScheduleRow} ScheduleRow */
/** @typedef {import("./types.js").RunEntry} RunEntry */

/** @param {string} name */
export function schedulePath(name) {
  return `/schedules/${encodeURIComponent(name)}`;
}

/** @param {string} line */
function under(line) {
  return h("span", { class: "under" }, line);
}

/**
 * Whether it runs, waits or is paused: a run that goes on is not touched by a pause.
 * @param {ScheduleRow} row
 */
export function stateOf(row) {
  return [badge(row.state), row.paused && row.state !== "paused" && [" ", badge("paused")]].flat();
}

/**
 * @param {ScheduleRow} row
 * @returns {Child[]}
 */
export function whenOf(row) {
  const words = whenInWords(row);
  return [words, row.cron && row.cron !== words && under(row.cron), row.jitter > 0 && under(`up to ${duration(row.jitter)} later`)];
}

/**
 * The time zone, and its clock at the next start.
 * @param {ScheduleRow} row
 * @returns {Child[]}
 */
export function zoneOf(row) {
  return [h("span", { class: "unbroken" }, row.timezone), row.next_local && h("span", { class: "under unbroken" }, row.next_local.slice(0, 16))];
}

/**
 * @param {ScheduleRow} row
 * @returns {Child[]}
 */
export function nextStart(row) {
  if (row.next_start === null) return ["–"];
  return [moment(row.next_start), under(`in ${duration(Math.max(0, row.next_start - Date.now() / 1000))}`)];
}

/**
 * How a run ended, or that it goes on.
 * @param {RunEntry} entry
 */
export function runState(entry) {
  return [badge(entry.state), entry.number > 1 && ` ${count(entry.number)} times`];
}

/** @param {RunEntry} entry */
export function runLink(entry) {
  return entry.crawl ? pageLink(`/crawls/${encodeURIComponent(entry.crawl)}`, entry.crawl, { class: "url" }) : "–";
}

/**
 * The run that goes on or the last one, and the one that waits for it.
 * @param {ScheduleRow} row
 * @returns {Child[]}
 */
export function lastRun(row) {
  const entry = row.current ?? row.last;
  const waits = row.waiting && under("one more waits for it");
  if (!entry) return [row.waiting ? "" : "none yet", row.waiting && under(`one waits: ${row.waiting.reason}`)];
  const at = moment(entry.ended || entry.started || entry.due);
  return [...runState(entry), " ", entry.crawl && runLink(entry), under(entry.reason ? `${at}: ${entry.reason}` : at), waits];
}
