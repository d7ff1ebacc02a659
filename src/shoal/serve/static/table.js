/** Tables that change under the reader's eyes: rows stay where they are, and cells are touched only when they differ. */

import { fill, h, refill } from "./dom.js";

/** @typedef {import("./dom.js").Child} Child */

/**
 * @template Row
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: Row, latest: () => Row) => Child | Child[]} cell `latest` gives the row as it is when a button is pressed
 * @property {"text" | "number" | "actions" | "wide"} [kind]
 */

/** @template Row */
export class Table {
  /**
   * @param {{caption: string, columns: Column<Row>[], keyOf: (row: Row) => string, empty: string,
   *   markOf?: (row: Row) => string}} options `markOf` names how a row is marked
   */
  constructor({ caption, columns, keyOf, empty, markOf = () => "" }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.markOf = markOf;
    /** @type {Map<string, {row: Row, element: HTMLTableRowElement}>} */
    this.shown = new Map();
    // Roles by name: at phone width rows are laid out as blocks, and browsers then forget that this is a table.
    this.body = h("tbody", { role: "rowgroup" });
    const titles = columns.map(({ title, kind }) => h("th", { scope: "col", role: "columnheader", class: kind ?? "text" }, title));
    const head = h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...titles));
    this.table = h("table", { role: "table" }, h("caption", { class: "unseen" }, caption), head, this.body);
    this.empty = h("p", { class: "empty" }, empty);
    this.empty.hidden = true;
    this.table.hidden = true;
    this.element = h("div", { class: "table" }, this.table, this.empty);
  }

  /** @param {Row[]} rows */
  fill(rows) {
    const former = this.shown;
    this.shown = new Map();
    for (const row of rows) {
      const key = this.keyOf(row);
      const known = former.get(key) ?? { row, element: this.#row() };
      known.row = row;
      this.shown.set(key, known);
      this.#update(key, known);
    }
    const wanted = [...this.shown.values()].map(({ element }) => element);
    const present = [...this.body.children];
    if (wanted.length !== present.length || wanted.some((element, index) => element !== present[index])) {
      const focused = /** @type {HTMLElement | null} */ (document.activeElement);
      fill(this.body, ...wanted);
      // Rows that were moved lose the focus.
      if (focused && this.body.contains(focused)) focused.focus();
    }
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
  }

  #row() {
    const cells = this.columns.map(({ title, kind }) => h("td", { role: "cell", class: kind ?? "text", "data-title": title }));
    return h("tr", { role: "row" }, ...cells);
  }

  /**
   * @param {string} key
   * @param {{row: Row, element: HTMLTableRowElement}} known
   */
  #update(key, { row, element }) {
    element.className = this.markOf(row);
    this.columns.forEach(({ cell }, index) => {
      const latest = () => this.shown.get(key)?.row ?? row;
      const content = cell(row, latest);
      refill(element.cells[index], ...(Array.isArray(content) ? content : [content]));
    });
  }
}
