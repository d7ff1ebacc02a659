/** All crawls. */

import { read } from "../api.js";
import { crawlButtons, startDialog } from "../crawl_actions.js";
import { badge, crawlLink, progressBar, timeLeft } from "../crawl_figures.js";
import { button, h } from "../dom.js";
import { count, moment, rate } from "../format.js";
import { PagedTable } from "../paged.js";
import { Table } from "../table.js";

/** @typedef {import("../app.js").App} App */
/** @typedef {import("../types.js").CrawlSummary} CrawlSummary */

/**
 * @param {App} app
 * @param {() => void} reread
 * @returns {Table<CrawlSummary>}
 */
function crawlTable(app, reread) {
  return new Table({
    caption: "Crawls, newest first",
    keyOf: (/** @type {CrawlSummary} */ crawl) => crawl.id,
    empty: "No crawls yet. Start a spider here, or with: shoal run FILE",
    columns: [
      { title: "Crawl", cell: (crawl) => [crawlLink(crawl), h("span", { class: "under" }, `${crawl.spider}, ${moment(crawl.created)}${crawl.priority ? `, priority ${crawl.priority}` : ""}`)] },
      { title: "State", cell: (crawl) => [badge(crawl.state), (crawl.refusal || crawl.reason) && h("span", { class: "under" }, crawl.refusal || crawl.reason)] },
      { title: "Progress", kind: "wide", cell: progressBar },
      { title: "Rate", kind: "number", cell: (crawl) => (crawl.state === "running" ? rate(crawl.rate) : "–") },
      { title: "Time left", kind: "number", cell: timeLeft },
      { title: "Errors", kind: "number", cell: (crawl) => h("span", { class: crawl.errors ? "bad" : "" }, count(crawl.errors)) },
      { title: "Workers", kind: "number", cell: (crawl) => count(crawl.workers) },
      { title: "Actions", kind: "actions", cell: (crawl, latest) => crawlButtons(app, crawl, { latest, changed: reread }) },
    ],
  });
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {AbortSignal} signal
 */
export function showCrawls(root, app, signal) {
  app.title("Crawls");
  app.live.follow(null);
  /** @type {Map<string, CrawlSummary>} */
  const news = new Map();
  /** @type {CrawlSummary[]} */
  let rows = [];
  const table = crawlTable(app, () => void list.reread());
  const list = new PagedTable({
    table,
    app,
    signal,
    isMoving: () => false,
    read: async (place) => {
      const answer = await read("/crawls", place);
      news.clear();
      rows = answer.crawls;
      return { rows, next: answer.next };
    },
  });
  app.live.on("crawls", (value) => {
    /** @type {CrawlSummary[]} */
    const crawls = value.crawls;
    for (const crawl of crawls) news.set(crawl.id, crawl);
    // The events have the newest crawls, as the first page has: crawls that came or went are seen there.
    const isOther = rows.map(({ id }) => id).join("\n") !== crawls.map(({ id }) => id).join("\n");
    if (isOther && list.starts.length === 1) void list.reread();
    rows = rows.map((crawl) => news.get(crawl.id) ?? crawl);
    table.fill(rows);
  }, signal);
  const start = button("Start a spider", () => void startDialog(app), { class: "primary" });
  const spiders = app.status?.spiders ?? [];
  start.hidden = !app.isAdmin() || spiders.length === 0;
  root.append(h("div", { class: "head" }, h("h1", { tabindex: -1 }, "Crawls"), start), list.element);
}
