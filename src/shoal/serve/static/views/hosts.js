/** The hosts of a crawl: what waits, at which pace, and what rests; people change the pace, block and boost. */

import { change, crawlPath, read } from "../api.js";
import { ask, field } from "../dialogs.js";
import { button, h } from "../dom.js";
import { count, duration } from "../format.js";
import { PagedTable } from "../paged.js";
import { searchForm } from "../search.js";
import { Table } from "../table.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").HostRow} HostRow */

/**
 * @param {HostRow} row
 * @param {TabContext} context
 * @param {() => void} changed
 */
function askPace(row, { app, id }, changed) {
  const rate = h("input", { name: "rate", value: row.rate, required: true, autocomplete: "off", spellcheck: "false" });
  return ask({
    title: `The pace of ${row.host}`,
    body: [
      h("p", {}, "For all workers together, from the next request on, until somebody changes it again."),
      field("Requests", rate, "such as 2/s, 30/m or unlimited"),
    ],
    act: "Change the pace",
    run: async (form) => {
      const host = await change("PUT", `${crawlPath(id)}/hosts/${encodeURIComponent(row.host)}`, { rate: String(form.get("rate")).trim() });
      app.announce(`the pace of ${row.host} is ${host?.rate ?? "changed"}`);
      changed();
    },
  });
}

/**
 * @param {HostRow} row
 * @param {TabContext} context
 * @param {() => void} changed
 */
function askBlock(row, { app, id }, changed) {
  return ask({
    title: `Block ${row.host}?`,
    body: [h("p", {}, `Nothing more is fetched from it until it is unblocked. Its ${count(row.waiting)} waiting tasks stay, and the crawl does not finish before they are done.`)],
    act: "Block the host",
    danger: true,
    run: async () => {
      await change("PUT", `${crawlPath(id)}/hosts/${encodeURIComponent(row.host)}`, { blocked: true });
      app.announce(`${row.host} is blocked`);
      changed();
    },
  });
}

/**
 * @param {HostRow} row
 * @param {() => HostRow} latest
 * @param {{context: TabContext, changed: () => void}} options
 */
function hostButtons(row, latest, { context, changed }) {
  if (!context.app.isAdmin()) return [];
  const put = async (/** @type {object} */ body, /** @type {string} */ said) => {
    try {
      await change("PUT", `${crawlPath(context.id)}/hosts/${encodeURIComponent(row.host)}`, body);
      context.app.announce(`${row.host} ${said}`);
      changed();
    } catch (error) {
      context.app.failed(error);
    }
  };
  const make = (/** @type {string} */ label, /** @type {() => void} */ act) =>
    button(label, act, { class: "small", "aria-label": `${label} ${row.host}` });
  return [
    make("Pace", () => void askPace(latest(), context, changed)),
    row.boosted
      ? make("No boost", () => void put({ boost: false }, "is no longer boosted"))
      : make("Boost", () => void put({ boost: true }, "is boosted")),
    row.blocked
      ? make("Unblock", () => void put({ blocked: false }, "is no longer blocked"))
      : make("Block", () => void askBlock(latest(), context, changed)),
  ];
}

/** @param {HostRow} row */
function pace(row) {
  const why = !row.blocked && !row.resting && row.why;
  return [row.rate, why && h("span", { class: "under" }, why)];
}

/** @param {HostRow} row */
function nextStart(row) {
  if (row.blocked) return "blocked";
  if (row.resting) return [`rests ${duration(row.starts_in)}`, row.why && h("span", { class: "under" }, row.why)];
  if (row.waiting === 0) return "–";
  return row.starts_in > 0 ? `in ${duration(row.starts_in)}` : "now";
}

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showHosts(root, context) {
  const { app, id, signal, isMoving } = context;
  let search = "";
  const table = new Table({
    caption: "Hosts, those with most waiting tasks first",
    keyOf: (/** @type {HostRow} */ row) => row.host,
    markOf: (row) => (row.blocked || row.resting ? "resting" : ""),
    empty: "No host here.",
    columns: [
      { title: "Host", cell: (row) => [h("span", { class: "strong url" }, row.host), row.has_rules && h("span", { class: "under" }, "has robots.txt rules")] },
      { title: "Waiting", kind: "number", cell: (row) => count(row.waiting) },
      { title: "In flight", kind: "number", cell: (row) => `${count(row.in_flight)}${row.cap ? ` of ${count(row.cap)}` : ""}` },
      { title: "Pace", kind: "number", cell: pace },
      { title: "Next start", kind: "number", cell: nextStart },
      { title: "Known URLs", kind: "number", cell: (row) => count(row.known) },
      { title: "Actions", kind: "actions", cell: (row, latest) => hostButtons(row, latest, { context, changed: () => void list.reread() }) },
    ],
  });
  const list = new PagedTable({
    table,
    app,
    signal,
    isMoving,
    read: async (place) => {
      const answer = await read(`${crawlPath(id)}/hosts`, { ...place, search });
      return { rows: answer.hosts, next: answer.next };
    },
  });
  const form = searchForm("Search hosts", (text) => {
    search = text;
    void list.restart();
  });
  root.append(h("div", { class: "head" }, h("h2", {}, "Hosts"), form), list.element);
}
