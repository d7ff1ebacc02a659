/** Lists that are read page by page, and read again while somebody looks. */

import { ApiError } from "./api.js";
import { button, h, write } from "./dom.js";
import { count } from "./format.js";

/** @typedef {import("./app.js").App} App */

const ROWS = 50;
const REREAD_SECONDS = 2;

/**
 * Calls `read` now, and again every two seconds while the page is visible and the crawl goes on, or the last call failed.
 * @param {() => Promise<void>} read
 * @param {{app: App, signal: AbortSignal, isMoving: () => boolean}} options
 * @returns {() => Promise<void>} reads at once
 */
export function keepReading(read, { app, signal, isMoving }) {
  let busy = false;
  let again = false;
  let hasFailed = false;
  const run = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      do {
        again = false;
        await read();
      } while (again && !signal.aborted);
      hasFailed = false;
      app.succeeded();
    } catch (error) {
      hasFailed = error instanceof ApiError && error.isPassing;
      if (!signal.aborted) app.failed(error);
    } finally {
      busy = false;
    }
  };
  const timer = window.setInterval(() => {
    if (!document.hidden && !busy && (hasFailed || isMoving())) void run();
  }, REREAD_SECONDS * 1000);
  const onVisible = () => {
    if (!document.hidden && isMoving()) void run();
  };
  document.addEventListener("visibilitychange", onVisible, { signal });
  signal.addEventListener("abort", () => window.clearInterval(timer));
  void run();
  return run;
}

/** @template Row */
export class PagedTable {
  /**
   * @param {{table: import("./table.js").Table<Row>, app: App, signal: AbortSignal, isMoving: () => boolean,
   *   read: (place: {limit: number, after: string | null}) => Promise<{rows: Row[], next: string | null, total?: number}>}} options
   */
  constructor({ table, app, signal, isMoving, read }) {
    this.table = table;
    this.readPage = read;
    /** @type {{after: string | null, rows: number}[]} where each page so far begins, and how many rows are before it */
    this.starts = [{ after: null, rows: 0 }];
    /** @type {{after: string, rows: number} | null} */
    this.next = null;
    this.count = h("span", { class: "muted" });
    this.back = button("Previous", () => this.#turn(-1));
    this.forth = button("Next", () => this.#turn(1));
    this.pages = h("nav", { class: "pages", "aria-label": "Pages of this list" }, this.back, this.count, this.forth);
    this.element = h("div", {}, table.element, this.pages);
    this.pages.hidden = true;
    this.reread = keepReading(() => this.#read(signal), { app, signal, isMoving });
  }

  /** Read from the first page on: the filters changed. */
  restart() {
    this.starts = [{ after: null, rows: 0 }];
    return this.reread();
  }

  /** @param {1 | -1} step */
  #turn(step) {
    if (step > 0 && this.next) this.starts.push(this.next);
    if (step < 0 && this.starts.length > 1) this.starts.pop();
    void this.reread();
  }

  /** @param {AbortSignal} signal */
  async #read(signal) {
    const start = this.starts[this.starts.length - 1];
    const { rows, next, total } = await this.readPage({ limit: ROWS, after: start.after });
    // Another page was asked for meanwhile: it is read next.
    if (signal.aborted || start !== this.starts[this.starts.length - 1]) return;
    const last = start.rows + rows.length;
    this.next = next === null ? null : { after: next, rows: last };
    this.table.fill(rows);
    const all = total === undefined ? "" : ` of ${count(total)}`;
    write(this.count, rows.length ? `${count(start.rows + 1)} to ${count(last)}${all}` : "nothing on this page");
    this.back.disabled = this.starts.length === 1;
    this.forth.disabled = next === null;
    this.pages.hidden = this.starts.length === 1 && next === null;
  }
}
