/** One crawl: its figures at the top, and a tab for each thing to look at. */

import { crawlPath, read } from "../api.js";
import { crawlButtons } from "../crawl_actions.js";
import { badge, ended, progressBar, timeLeft } from "../crawl_figures.js";
import { fill, h, pageLink, refill } from "../dom.js";
import { count, moment, rate } from "../format.js";
import { showDeadLetters } from "./dead_letters.js";
import { showExits } from "./exits.js";
import { showHosts } from "./hosts.js";
import { showItems } from "./items.js";
import { showOverview } from "./overview.js";
import { showRejected } from "./rejected.js";
import { showWorkers } from "./workers.js";

/** @typedef {import("../app.js").App} App */
/** @typedef {import("../types.js").CrawlDetail} CrawlDetail */
/** @typedef {import("../types.js").CrawlSummary} CrawlSummary */
/**
 * What a tab is given: `crawl()` is the newest state, `isMoving()` whether its figures may change by themselves.
 * @typedef {{app: App, id: string, signal: AbortSignal, crawl: () => CrawlDetail, isMoving: () => boolean,
 *   onCrawl: (reader: (crawl: CrawlDetail) => void) => void}} TabContext
 */

/** @type {Record<string, {title: string, show: (root: HTMLElement, context: TabContext) => void}>} */
const TABS = {
  overview: { title: "Overview", show: showOverview },
  workers: { title: "Workers", show: showWorkers },
  hosts: { title: "Hosts", show: showHosts },
  exits: { title: "Exits", show: showExits },
  items: { title: "Items", show: showItems },
  dead: { title: "Dead letters", show: showDeadLetters },
  rejected: { title: "Rejected", show: showRejected },
};

export class CrawlView {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   * @param {{id: string, tab: string, signal: AbortSignal}} place
   */
  constructor(root, app, { id, tab, signal }) {
    this.app = app;
    this.id = id;
    this.signal = signal;
    this.tab = tab;
    /** @type {CrawlDetail | null} */
    this.crawl = null;
    /** @type {AbortController | null} */
    this.tabEnds = null;
    /** @type {Set<(crawl: CrawlDetail) => void>} */
    this.readers = new Set();
    this.heading = h("h1", { tabindex: -1 }, id);
    this.under = h("p", { class: "muted" });
    this.actions = h("div", { class: "row" });
    this.notices = h("div", {});
    this.bar = h("div", {});
    this.tiles = h("dl", { class: "tiles" });
    this.tabs = h("nav", { class: "tabs", "aria-label": "Parts of this crawl" });
    this.panel = h("section", { class: "panel", "aria-label": "Overview" });
    const crumbs = h("p", { class: "crumbs" }, pageLink("/", "All crawls"));
    const titles = h("div", {}, crumbs, this.heading, this.under);
    root.append(h("div", { class: "head" }, titles, this.actions), this.notices, this.bar, this.tiles, this.tabs, this.panel);
    signal.addEventListener("abort", () => this.tabEnds?.abort());
    app.title(id);
    app.live.on("crawl", (crawl) => this.#take(crawl), signal);
    app.live.follow(id);
    void this.#begin();
  }

  async #begin() {
    try {
      this.#take(await read(crawlPath(this.id)));
    } catch (error) {
      if (!this.signal.aborted) this.app.failed(error, { retry: () => void this.#begin() });
    }
  }

  /** @param {CrawlDetail} crawl */
  #take(crawl) {
    if (this.signal.aborted || crawl.id !== this.id) return;
    const isFirst = this.crawl === null;
    const former = this.crawl?.state;
    this.crawl = crawl;
    this.#figures(crawl);
    if (isFirst) this.show(this.tab);
    if (former && former !== crawl.state) this.app.announce(`${crawl.id} is ${crawl.state}`);
    for (const reader of [...this.readers]) reader(crawl);
  }

  /** @param {CrawlDetail} crawl */
  #figures(crawl) {
    refill(this.heading, crawl.id, " ", badge(crawl.state));
    refill(this.under, `spider ${crawl.spider}, begun ${moment(crawl.created)}${crawl.finished ? `, finished ${moment(crawl.finished)}` : ""}${crawl.priority ? `, priority ${crawl.priority}` : ""}`);
    const changed = (/** @type {CrawlSummary | null} */ answer) => {
      if (answer === null) this.app.go("/");
      else this.#take({ ...(this.crawl ?? crawl), ...answer });
    };
    refill(
      this.actions,
      pageLink(`${crawlPath(crawl.id)}/why`, "Why a URL …", { class: "button small" }),
      ...crawlButtons(this.app, crawl, { latest: () => this.crawl ?? crawl, changed, all: true }),
    );
    const lines = [crawl.refusal, crawl.reason].filter(Boolean);
    refill(this.notices, ...lines.map((line) => h("p", { class: "notice" }, line)));
    refill(this.bar, progressBar(crawl));
    refill(this.tiles, ...tiles(crawl));
    this.#links();
  }

  #links() {
    const counts = this.crawl?.counts;
    const links = Object.entries(TABS).map(([name, { title }]) => {
      const path = crawlPath(this.id) + (name === "overview" ? "" : `?tab=${name}`);
      const number = name === "dead" && counts?.dead ? ` (${count(counts.dead)})` : "";
      return pageLink(path, title + number, { "aria-current": name === this.tab ? "page" : null });
    });
    refill(this.tabs, ...links);
  }

  /** @param {string} tab */
  show(tab) {
    this.tab = tab in TABS ? tab : "overview";
    if (!this.crawl) return;
    this.tabEnds?.abort();
    this.readers.clear();
    this.tabEnds = new AbortController();
    const { title, show } = TABS[this.tab];
    this.#links();
    fill(this.panel);
    this.panel.setAttribute("aria-label", title);
    this.app.title(`${title}, ${this.id}`);
    show(this.panel, {
      app: this.app,
      id: this.id,
      signal: this.tabEnds.signal,
      crawl: () => /** @type {CrawlDetail} */ (this.crawl),
      isMoving: () => this.crawl?.state === "running" || this.crawl?.state === "paused",
      onCrawl: (reader) => void this.readers.add(reader),
    });
  }
}

/** @param {CrawlDetail} crawl */
function tiles(crawl) {
  const { queued, delayed, leased, dead, retried } = crawl.counts;
  const cost = crawl.budget ? `${crawl.cost.toFixed(2)} of ${crawl.budget.toFixed(2)}` : crawl.cost.toFixed(2);
  /** @type {[string, import("../dom.js").Child[], string?][]} */
  const figures = [
    ["Pages", [count(ended(crawl))]],
    ["Rate", [crawl.state === "running" ? rate(crawl.rate) : "–"]],
    ["Time left", timeLeft(crawl)],
    ["Waiting", [count(queued + delayed), delayed > 0 && h("span", { class: "under" }, `${count(delayed)} delayed`)]],
    ["In flight", [count(leased)]],
    ["Errors", [count(crawl.errors), crawl.errors > 0 && h("span", { class: "under" }, `${count(dead)} dead, ${count(retried)} retried`)], crawl.errors ? "bad" : ""],
    ["Workers", [count(crawl.workers)]],
  ];
  if (crawl.cost || crawl.budget) figures.push(["Cost", [cost]]);
  return figures.map(([title, value, mark]) => h("div", {}, h("dt", {}, title), h("dd", { class: mark ?? "" }, ...value)));
}
