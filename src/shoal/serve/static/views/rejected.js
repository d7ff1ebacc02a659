/** URLs that did not become tasks: by which rule, how many, and some of them. */

import { crawlPath, read } from "../api.js";
import { h, pageLink, webLink } from "../dom.js";
import { count } from "../format.js";
import { keepReading } from "../paged.js";
import { Table } from "../table.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").Rejection} Rejection */

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showRejected(root, { app, id, signal, isMoving }) {
  const sample = (/** @type {string} */ url) =>
    h("li", {}, webLink(url), " ", pageLink(`${crawlPath(id)}/why?url=${encodeURIComponent(url)}`, "why", { class: "aside" }));
  const table = new Table({
    caption: "Reasons why URLs were kept out",
    keyOf: (/** @type {Rejection} */ row) => row.reason,
    empty: "No URL was kept out.",
    columns: [
      { title: "Reason", cell: (row) => [h("span", { class: "strong" }, row.reason), h("span", { class: "under" }, row.meaning)] },
      { title: "URLs", kind: "number", cell: (row) => count(row.count) },
      { title: "Samples", cell: (row) => (row.samples.length ? h("details", {}, h("summary", {}, `Show ${row.samples.length}`), h("ul", {}, ...row.samples.map(sample))) : "–") },
    ],
  });
  root.append(h("h2", {}, "Rejected"), table.element);
  keepReading(async () => {
    const answer = await read(`${crawlPath(id)}/rejected`);
    if (!signal.aborted) table.fill(answer.reasons);
  }, { app, signal, isMoving });
}
