/** Figures of a crawl that several views show: its state, its progress, what is left. */

import { h, pageLink, svg, unseen } from "./dom.js";
import { count, duration, percent } from "./format.js";

/** @typedef {import("./types.js").CrawlSummary} CrawlSummary */

/** @param {string} state */
export function badge(state) {
  return h("span", { class: `badge badge-${state.replace(/\W+/g, "-")}` }, state);
}

/** @param {CrawlSummary} crawl */
export function ended(crawl) {
  return crawl.counts.done + crawl.counts.dead;
}

/** @param {CrawlSummary} crawl */
function whole(crawl) {
  const { queued, delayed, leased, cancelled } = crawl.counts;
  return ended(crawl) + queued + delayed + leased + cancelled;
}

/**
 * How much of what is known is done, in flight and dead.
 * @param {CrawlSummary} crawl
 */
export function progressBar(crawl) {
  const all = whole(crawl);
  const { done, dead, leased } = crawl.counts;
  const parts = /** @type {[string, number][]} */ ([["done", done], ["dead", dead], ["leased", leased]]);
  let left = 0;
  const pieces = parts.map(([name, number]) => {
    const width = all ? (number / all) * 100 : 0;
    left += width;
    return svg("rect", { class: `part-${name}`, x: (left - width).toFixed(2), width: width.toFixed(2), height: 6 });
  });
  const share = all ? ended(crawl) / all : 0;
  const label = `${percent(share)} of ${count(all)} known tasks are done`;
  return h(
    "div",
    { class: "progress" },
    svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...pieces),
    h("span", { class: "progress-text" }, h("b", {}, percent(share)), ` ${count(ended(crawl))} of ${count(all)}`),
  );
}

/**
 * The time left, and the hosts that decide it.
 * @param {CrawlSummary} crawl
 */
export function timeLeft(crawl) {
  if (crawl.state !== "running") return [crawl.finished ? `took ${duration(crawl.finished - crawl.created)}` : "–"];
  const hosts = crawl.last_hosts.slice(0, 2).map(({ host, rate }) => `${host} at ${rate}`);
  return [h("span", {}, duration(crawl.eta_seconds)), hosts.length > 0 && h("span", { class: "under" }, unseen("decided by "), hosts.join(", "))];
}

/** @param {CrawlSummary} crawl */
export function crawlLink(crawl) {
  return pageLink(`/crawls/${encodeURIComponent(crawl.id)}`, crawl.id, { class: "strong url" });
}
