/** What is wrong, above everything else: no connection, problems of the server, alerts, a refused change. */

import { button, h, refill } from "./dom.js";
import { moment } from "./format.js";

/** @typedef {import("./types.js").Alert} Alert */

export class Banner {
  /**
   * @param {HTMLElement} place
   * @param {HTMLElement} main shows figures that may be old
   */
  constructor(place, main) {
    this.place = place;
    this.main = main;
    /** @type {string[]} */
    this.problems = [];
    /** @type {Alert[]} */
    this.alerts = [];
    /** What a read or a change ended with. */
    this.error = "";
    /** Why figures are not renewed; empty while they are. */
    this.outage = "";
    this.fresh = Date.now() / 1000;
  }

  /** Figures came just now. */
  renewed() {
    this.fresh = Date.now() / 1000;
    if (!this.outage) return;
    this.outage = "";
    this.show();
  }

  /** @param {string} line */
  out(line) {
    if (this.outage === line) return;
    this.outage = line;
    this.show();
  }

  show() {
    const old = this.outage && `${this.outage}. These figures are from ${moment(this.fresh)}; shoal tries again by itself.`;
    const lines = [
      old && h("p", { class: "line bad-line", role: "alert" }, old),
      ...this.problems.filter((line) => !this.outage.startsWith(line)).map((line) => h("p", { class: "line bad-line", role: "alert" }, line)),
      ...this.alerts.map(({ name, crawl, line, since }) =>
        h("p", { class: "line warn-line" }, h("strong", {}, name), ` ${crawl ? `${crawl}: ` : ""}${line} `, h("span", { class: "muted" }, `since ${moment(since)}`)),
      ),
      this.error && h("p", { class: "line bad-line", role: "alert" }, h("span", {}, this.error), button("Close", () => this.complain(""), { class: "small quiet" })),
    ];
    this.place.hidden = !lines.some(Boolean);
    refill(this.place, ...lines);
    this.main.toggleAttribute("data-old", Boolean(this.outage));
  }

  /** @param {string} line */
  complain(line) {
    this.error = line;
    this.show();
  }
}
