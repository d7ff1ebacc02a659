/** The workers of a crawl. Lost ones stay, marked. */

import { crawlPath, read } from "../api.js";
import { badge } from "../crawl_figures.js";
import { h } from "../dom.js";
import { ago, bytes, count, moment, percent, rate } from "../format.js";
import { keepReading } from "../paged.js";
import { Table } from "../table.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").WorkerRow} WorkerRow */

/** The kinds of tasks that a worker does, where that is worth a word. @param {WorkerRow} row */
function kindsOf(row) {
  return row.kinds.join() === "http" ? "" : `, does ${row.kinds.join(", ")}`;
}

/** What hinders a worker, and whether it works with other code than the others. @param {WorkerRow} row */
function troubles(row) {
  return row.other_code ? [...row.troubles, "other code of the spider than the crawl's"] : row.troubles;
}

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showWorkers(root, { app, id, signal, isMoving }) {
  const table = new Table({
    caption: "Workers",
    keyOf: (/** @type {WorkerRow} */ row) => row.worker,
    markOf: (row) => (row.state === "lost" ? "lost" : row.state === "left" ? "past" : ""),
    empty: "No worker has joined this crawl yet: shoal worker FILE --frontier URL",
    columns: [
      { title: "Worker", cell: (row) => [h("span", { class: "strong" }, row.worker), h("span", { class: "under" }, `${row.host || row.machine}, process ${row.pid}, shoal ${row.version}${kindsOf(row)}`)] },
      { title: "State", cell: (row) => [badge(row.state), ...troubles(row).map((line) => h("span", { class: "under bad" }, line))] },
      { title: "Pages", kind: "number", cell: (row) => count(row.pages) },
      { title: "Rate", kind: "number", cell: (row) => rate(row.rate) },
      { title: "Slots busy", kind: "number", cell: (row) => `${count(row.busy)} of ${count(row.slots)}` },
      { title: "Memory", kind: "number", cell: (row) => bytes(row.memory_bytes) },
      { title: "CPU", kind: "number", cell: (row) => percent(row.load) },
      { title: "Since", kind: "number", cell: (row) => moment(row.started) },
      { title: "Last heartbeat", kind: "number", cell: (row) => (row.left ? `left ${moment(row.left)}` : ago(row.seen)) },
    ],
  });
  root.append(h("h2", {}, "Workers"), table.element);
  keepReading(async () => {
    const answer = await read(`${crawlPath(id)}/workers`);
    if (!signal.aborted) table.fill(answer.workers);
  }, { app, signal, isMoving });
}
