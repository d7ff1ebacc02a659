/** The newest items of a crawl, as a table with a column for each of their commonest fields. */

import { crawlPath, read } from "../api.js";
import { fill, h, pageLink, webLink } from "../dom.js";
import { moment } from "../format.js";
import { PagedTable } from "../paged.js";
import { searchForm } from "../search.js";
import { Table } from "../table.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").ItemRow} ItemRow */

const FIELDS_SHOWN = 5;
const LONGEST = 160;

/** @param {unknown} value */
function shown(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/**
 * Fields that most of the items have, in the order of the items.
 * @param {ItemRow[]} rows
 */
function commonFields(rows) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { data } of rows) for (const name of Object.keys(data)) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort(([, one], [, two]) => two - one).slice(0, FIELDS_SHOWN).map(([name]) => name);
}

/**
 * @param {string[]} fields
 * @param {string} id of the crawl
 */
function itemTable(fields, id) {
  const whole = (/** @type {ItemRow} */ row) =>
    h("details", {}, h("summary", {}, "Show"), h("pre", { tabindex: 0, "aria-label": `Item ${row.key}` }, JSON.stringify(row.data, null, 2)));
  return new Table({
    caption: "Items, newest first",
    keyOf: (/** @type {ItemRow} */ row) => row.key,
    empty: "No items here yet.",
    columns: [
      { title: "Key", cell: (row) => h("span", { class: "strong url" }, row.key) },
      ...fields.map((name) => ({ title: name, cell: (/** @type {ItemRow} */ row) => shown(row.data[name]) })),
      { title: "Page", cell: (row) => [webLink(row.url), " ", pageLink(`${crawlPath(id)}/why?url=${encodeURIComponent(row.url)}`, "why", { class: "aside" })] },
      { title: "Last seen", kind: "number", cell: (row) => [moment(row.last_seen), row.version > 1 && h("span", { class: "under" }, `version ${row.version}`), row.gone_at !== null && h("span", { class: "under" }, `gone since ${moment(row.gone_at)}`)] },
      { title: "All fields", cell: whole },
    ],
  });
}

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showItems(root, { app, id, signal, isMoving }) {
  let search = "";
  let known = "";
  const place = h("div", {});
  const table = itemTable([], id);
  const list = new PagedTable({
    table,
    app,
    signal,
    isMoving,
    read: async (where) => {
      const answer = await read(`${crawlPath(id)}/items`, { ...where, search });
      const fields = commonFields(answer.items);
      // A table with other columns takes the place of the former one only when the fields differ.
      if (fields.join("\n") !== known && answer.items.length) {
        known = fields.join("\n");
        list.table = itemTable(fields, id);
        fill(place, list.table.element);
      }
      return { rows: answer.items, next: answer.next };
    },
  });
  place.append(table.element);
  const form = searchForm("Search items", (text) => {
    search = text;
    void list.restart();
  });
  root.append(h("div", { class: "head" }, h("h2", {}, "Items"), form), place, list.pages);
}
