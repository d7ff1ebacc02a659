/** What people do to a crawl: start, pause, resume, cancel, put before others, re-run, delete, add URLs. */

import { addUrls, change, crawlPath } from "./api.js";
import { ask, field } from "./dialogs.js";
import { button, h } from "./dom.js";
import { count, several } from "./format.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").CrawlSummary} CrawlSummary */
/** @typedef {(crawl: CrawlSummary | null) => void} Changed */

/**
 * The buttons that fit the state of a crawl; none for those who may only look.
 * @param {App} app
 * @param {CrawlSummary} crawl
 * @param {{latest: () => CrawlSummary, changed: Changed, all?: boolean}} options `all`: the rarer ones, too
 * @returns {HTMLButtonElement[]}
 */
export function crawlButtons(app, crawl, { latest, changed, all = false }) {
  if (!app.isAdmin()) return [];
  /** @type {(label: string, act: (crawl: CrawlSummary) => unknown, danger?: boolean) => HTMLButtonElement} */
  const make = (label, act, danger = false) =>
    button(label, () => void act(latest()), {
      class: danger ? "small danger-quiet" : "small",
      "aria-label": `${label} ${crawl.id}`,
    });
  const pause = make("Pause", (one) => post(app, one, "pause", { changed, said: "is paused" }));
  const resume = make("Resume", (one) => post(app, one, "resume", { changed, said: "goes on" }));
  const cancel = make("Cancel", (one) => confirmCancel(app, one, changed), true);
  const rerun = make("Re-run", (one) => confirmRerun(app, one));
  const remove = make("Delete", (one) => confirmDelete(app, one, changed), true);
  const add = make("Add URLs", (one) => addDialog(app, one));
  const priority = make("Priority", (one) => priorityDialog(app, one, changed));
  if (crawl.refusal) return [remove];
  if (crawl.state === "running") return [pause, ...(all ? [add, priority] : []), cancel];
  if (crawl.state === "paused") return [resume, ...(all ? [add, priority] : []), cancel];
  return [rerun, remove];
}

/**
 * @param {App} app
 * @param {CrawlSummary} crawl
 * @param {string} verb
 * @param {{changed: Changed, said: string}} options
 */
async function post(app, crawl, verb, { changed, said }) {
  try {
    changed(await change("POST", `${crawlPath(crawl.id)}/${verb}`));
    app.announce(`${crawl.id} ${said}`);
  } catch (error) {
    app.failed(error);
  }
}

/** @param {CrawlSummary} crawl */
function waiting(crawl) {
  return crawl.counts.queued + crawl.counts.delayed + crawl.counts.leased;
}

/**
 * @param {App} app
 * @param {CrawlSummary} crawl
 * @param {Changed} changed
 */
function confirmCancel(app, crawl, changed) {
  const workers = crawl.workers ? ` ${several(crawl.workers, "worker")} will stop working on it.` : "";
  return ask({
    title: `Cancel ${crawl.id}?`,
    body: [
      h("p", {}, `${several(waiting(crawl), "task")} that wait or are in flight will be set aside.${workers}`),
      h("p", {}, "Its items, archived pages and dead letters stay."),
    ],
    act: "Cancel the crawl",
    danger: true,
    run: async () => {
      changed(await change("POST", `${crawlPath(crawl.id)}/cancel`));
      app.announce(`${crawl.id} is cancelled`);
    },
  });
}

/**
 * @param {App} app
 * @param {CrawlSummary} crawl
 */
function confirmRerun(app, crawl) {
  return ask({
    title: `Run ${crawl.spider} again?`,
    body: [
      h("p", {}, "A new crawl of the same spider begins, with the same arguments, and with the settings that were given when it was started here."),
      h("p", {}, `${crawl.id} stays as it is. Items with the same key are updated.`),
    ],
    act: "Run again",
    run: async () => {
      const fresh = await change("POST", `${crawlPath(crawl.id)}/rerun`);
      app.announce(`${fresh.id} has begun`);
      app.go(crawlPath(fresh.id));
    },
  });
}

/**
 * @param {App} app
 * @param {CrawlSummary} crawl
 * @param {Changed} changed
 */
function confirmDelete(app, crawl, changed) {
  return ask({
    title: `Delete ${crawl.id}?`,
    body: [
      h("p", {}, `What the frontier knows of it goes: ${several(crawl.counts.known, "known URL")}, ${several(crawl.counts.dead, "dead letter")}, its history.`),
      h("p", {}, "Its items and archived pages stay in their store and archive. This cannot be undone."),
    ],
    act: "Delete the crawl",
    danger: true,
    run: async () => {
      await change("DELETE", crawlPath(crawl.id));
      app.announce(`${crawl.id} is deleted`);
      changed(null);
    },
  });
}

/**
 * @param {App} app
 * @param {CrawlSummary} crawl
 */
function addDialog(app, crawl) {
  const urls = h("textarea", { name: "urls", rows: 8, required: true, spellcheck: "false" });
  return ask({
    title: `Add URLs to ${crawl.id}`,
    body: [field("URLs", urls, "one per line; the rules of the crawl hold for them, and known ones are left out")],
    act: "Add",
    run: async () => {
      const answer = await addUrls(crawl.id, `${urls.value.trim()}\n`);
      const rejected = Object.values(/** @type {Record<string, number>} */ (answer.rejected)).reduce((sum, one) => sum + one, 0);
      app.announce(`${several(answer.taken, "URL")} taken: ${count(answer.new)} new, ${count(answer.duplicates)} known already, ${count(rejected)} kept out`);
    },
  });
}

/**
 * @param {App} app
 * @param {CrawlSummary} crawl
 * @param {Changed} changed
 */
function priorityDialog(app, crawl, changed) {
  const number = h("input", { name: "priority", type: "number", min: -1000, max: 1000, step: 1, value: crawl.priority, required: true });
  return ask({
    title: `Priority of ${crawl.id}`,
    body: [field("Priority", number, "over other crawls of the same workers and hosts: the higher one goes first, 0 is the usual one")],
    act: "Set",
    run: async (form) => {
      const priority = Number(form.get("priority"));
      changed(await change("POST", `${crawlPath(crawl.id)}/priority`, { priority }));
      app.announce(`${crawl.id} has priority ${priority}`);
    },
  });
}

/**
 * `name=value` lines as an object.
 * @param {string} text
 */
export function pairs(text) {
  /** @type {Record<string, string>} */
  const found = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`"${line.trim()}" is not name=value`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

/** @param {App} app */
export function startDialog(app) {
  const spiders = app.status?.spiders ?? [];
  const spider = h("select", { name: "spider", required: true }, ...spiders.map((name) => h("option", { value: name }, name)));
  const workers = h("input", { name: "workers", type: "number", min: 1, max: 64, value: 1, required: true });
  const settings = h("textarea", { name: "settings", rows: 4, spellcheck: "false" });
  const given = h("textarea", { name: "arguments", rows: 2, spellcheck: "false" });
  const fresh = h("input", { name: "fresh", type: "checkbox" });
  return ask({
    title: "Start a spider",
    body: [
      field("Spider file", spider),
      field("Arguments", given, "of the spider, one name=value per line, such as city=Bonn"),
      field("Settings", settings, "one name=value per line, such as rate=2/s"),
      field("Workers", workers),
      h("label", { class: "check" }, fresh, "Begin anew, even if a crawl of this spider is unfinished"),
    ],
    act: "Start",
    run: async (form) => {
      const crawl = await change("POST", "/crawls", {
        spider: form.get("spider"),
        arguments: pairs(String(form.get("arguments"))),
        settings: pairs(String(form.get("settings"))),
        workers: Number(form.get("workers")),
        fresh: form.has("fresh"),
      });
      app.announce(`${crawl.id} has begun`);
      app.go(crawlPath(crawl.id));
    },
  });
}

/**
 * What a change of many rows did.
 * @param {Record<string, number>} answer
 * @param {string} name
 */
export function told(answer, name) {
  return `${count(answer[name] ?? 0)} ${name}`;
}
