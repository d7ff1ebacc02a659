/** A crawl at a glance: what bounds it, its charts, its outcomes. */

import { crawlPath, read } from "../api.js";
import { Chart } from "../charts.js";
import { button, h, refill } from "../dom.js";
import { bytes, count, duration, percent, rate, short } from "../format.js";
import { keepReading } from "../paged.js";
import { byteLines, errorLines, flightLines, latencyLines, pageLines, times, waitingLines } from "../points.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").Point} Point */
/** @typedef {import("../types.js").CrawlDetail} CrawlDetail */

const MOST_POINTS = 300;
const ADVICE_SECONDS = 30;
const DAY = 86400;
/** @type {[string, number][]} */
const ZOOMS = [["5 min", 300], ["1 h", 3600], ["6 h", 21600], ["1 day", DAY], ["all", 31 * DAY]];
const FIRST_ZOOM = 1;

/**
 * The charts of a crawl, and the buttons that choose how far back they go.
 * @param {TabContext} context
 */
function charts({ app, id, signal }) {
  /** @type {Point[]} */
  let points = [];
  /** @type {number[]} */
  let buckets = [];
  let zoom = FIRST_ZOOM;
  const pages = new Chart({ title: "Pages per second", format: rate });
  const waiting = new Chart({ title: "Waiting", format: short });
  const flight = new Chart({ title: "In flight", format: short });
  const errors = new Chart({ title: "Errors per second", format: rate, note: "by kind" });
  const latency = new Chart({ title: "Seconds per request", format: duration });
  const received = new Chart({ title: "Received per second", format: bytes });
  const all = [pages, waiting, flight, errors, latency, received];
  const draw = () => {
    const at = times(points);
    pages.draw(at, pageLines(points));
    waiting.draw(at, waitingLines(points));
    flight.draw(at, flightLines(points));
    errors.draw(at, errorLines(points));
    latency.draw(at, latencyLines(points, buckets));
    received.draw(at, byteLines(points));
  };
  const load = async () => {
    const chosen = zoom;
    const answer = await read(`${crawlPath(id)}/history`, { seconds: ZOOMS[zoom][1], most: MOST_POINTS });
    if (signal.aborted || chosen !== zoom) return;
    ({ points, buckets } = answer);
    draw();
  };
  // Points come by events; the history is read anew only when another zoom is chosen.
  const reread = keepReading(load, { app, signal, isMoving: () => false });
  app.live.on("point", (/** @type {Point} */ point) => {
    const seconds = ZOOMS[zoom][1];
    const last = points.at(-1)?.at ?? 0;
    if (point.at - last < Math.min(seconds, DAY) / MOST_POINTS - 1) return;
    points = [...points, point].filter(({ at }) => at >= point.at - seconds);
    draw();
  }, signal);
  const buttons = ZOOMS.map(([title], index) =>
    button(title, () => {
      zoom = index;
      buttons.forEach((one, place) => one.setAttribute("aria-pressed", String(place === index)));
      void reread();
    }, { class: "small", "aria-pressed": String(index === zoom) }),
  );
  const group = h("div", { class: "row", role: "group", "aria-label": "How far back the charts go" }, ...buttons);
  const head = h("div", { class: "head" }, h("h2", {}, "Charts"), group);
  return h("div", {}, head, h("div", { class: "charts" }, ...all.map(({ element }) => element)));
}

/**
 * Counts by name, largest first, with their sum.
 * @param {string} caption
 * @param {Record<string, number>} counts
 * @param {string} [note] what the sum is equal to
 */
function countTable(caption, counts, note = "") {
  const rows = Object.entries(counts).sort(([one, first], [two, second]) => second - first || one.localeCompare(two));
  const sum = rows.reduce((total, [, number]) => total + number, 0);
  const cells = rows.map(([name, number]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, count(number)), h("td", { class: "number muted" }, sum ? percent(number / sum) : "")),
  );
  const foot = h("tr", {}, h("th", { scope: "row" }, "sum"), h("td", { class: "number" }, count(sum)), h("td", { class: "number muted" }, ""));
  const columns = h("tr", {}, ...[caption, "tasks", "share"].map((title, index) => h("th", { scope: "col", class: index ? "number" : "" }, title)));
  return h(
    "div",
    {},
    h("table", { class: "plain counts" }, h("caption", {}, caption), h("thead", { class: "unseen" }, columns), h("tbody", {}, ...cells), h("tfoot", {}, foot)),
    note && h("p", { class: "muted" }, note),
  );
}

/** @param {CrawlDetail} crawl */
function outcomes(crawl) {
  const { done, dead } = crawl.counts;
  const sum = Object.values(crawl.outcomes).reduce((total, number) => total + number, 0);
  const whole = `${count(done)} done + ${count(dead)} dead = ${count(done + dead)}`;
  return countTable("Outcomes", crawl.outcomes, sum === done + dead ? whole : `${whole}; the rest is being counted`);
}

/** The kinds of tasks and who does them, of a crawl with several. @param {CrawlDetail} crawl */
function kinds(crawl) {
  if (!crawl.kinds.length) return null;
  const rows = crawl.kinds.map((one) =>
    h("li", { class: one.waiting && !one.workers ? "bad" : "" }, `${one.kind}: ${count(one.waiting)} waiting, ${one.workers ? count(one.workers) : "no"} ${one.workers === 1 ? "worker" : "workers"}`),
  );
  return h("div", {}, h("h2", {}, "Kinds of tasks"), h("ul", {}, ...rows));
}

/** @param {CrawlDetail} crawl */
function lastHosts(crawl) {
  if (!crawl.last_hosts.length) return null;
  const rows = crawl.last_hosts.map((host) =>
    h("li", {}, h("span", { class: "url" }, host.host), `: ${count(host.waiting)} waiting at ${host.rate}, ${duration(host.seconds_left)} left`),
  );
  return h("div", {}, h("h2", {}, "Hosts that finish last"), h("ul", {}, ...rows));
}

/** @param {Record<string, unknown>} values */
function settings(values) {
  const rows = Object.entries(values).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("code", {}, text)));
  });
  return h("table", { class: "plain" }, h("caption", { class: "unseen" }, "Settings"), h("tbody", {}, ...rows));
}

/**
 * What is saturated, and what would help, where shoal can tell.
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
function advise(root, { id, signal, isMoving }) {
  const load = async () => {
    const advice = await read(`${crawlPath(id)}/advice`).catch(() => null);
    if (signal.aborted || !advice?.lines?.length) return;
    refill(root, h("h2", {}, "Advice"), h("ul", {}, ...advice.lines.map((/** @type {string} */ line) => h("li", {}, line))));
  };
  const timer = window.setInterval(() => {
    if (!document.hidden && isMoving()) void load();
  }, ADVICE_SECONDS * 1000);
  signal.addEventListener("abort", () => window.clearInterval(timer));
  void load();
}

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showOverview(root, context) {
  const bound = h("div", {});
  const counts = h("div", { class: "columns" });
  const advice = h("div", {});
  const all = h("div", {});
  const show = (/** @type {CrawlDetail} */ crawl) => {
    refill(bound, crawl.bound && h("p", { class: "bound" }, h("strong", {}, "Bound by: "), crawl.bound), kinds(crawl), lastHosts(crawl));
    const notes = Object.keys(crawl.notes).length > 0 && countTable("Notes", crawl.notes);
    refill(counts, outcomes(crawl), notes);
    refill(all, settings({ ...crawl.places, ...crawl.settings }));
  };
  root.append(bound, advice, charts(context), counts, h("details", {}, h("summary", {}, "Settings and places"), all));
  show(context.crawl());
  context.onCrawl(show);
  // A crawl that ended long ago has none.
  if (context.isMoving()) advise(advice, context);
}
