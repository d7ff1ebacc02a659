/** The exits of a crawl: how they do at each host, and what they cost. */

import { crawlPath, read } from "../api.js";
import { badge } from "../crawl_figures.js";
import { h, refill } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { PagedTable } from "../paged.js";
import { Table } from "../table.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").ExitRow} ExitRow */
/** @typedef {import("../types.js").OfferRow} OfferRow */

/** A line for each machine that offers exits of its own. @param {OfferRow[]} offers */
function offersShown(offers) {
  return offers.map((one) =>
    h("p", {}, h("strong", {}, one.machine), ` offers ${count(one.exits)} to ${one.pool}, in ${count(one.workers)} ${one.workers === 1 ? "worker" : "workers"}`),
  );
}

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showExits(root, { app, id, signal, isMoving }) {
  const table = new Table({
    caption: "Exits",
    keyOf: (/** @type {ExitRow} */ row) => `${row.exit} ${row.host}`,
    empty: "No exit has been used: requests of this crawl leave directly.",
    columns: [
      { title: "Exit", cell: (row) => [h("span", { class: "strong" }, row.exit), h("span", { class: "under url" }, row.host)] },
      { title: "State", cell: (row) => [badge(row.state), !row.offered && h("span", { class: "under" }, "not offered now"), row.rests_for > 0 && h("span", { class: "under" }, `for ${duration(row.rests_for)}`)] },
      { title: "Requests", kind: "number", cell: (row) => count(row.requests) },
      { title: "OK", kind: "number", cell: (row) => count(row.ok) },
      { title: "Blocked", kind: "number", cell: (row) => count(row.blocked) },
      { title: "Failed", kind: "number", cell: (row) => count(row.failed) },
      { title: "In flight", kind: "number", cell: (row) => count(row.in_flight) },
      { title: "Received", kind: "number", cell: (row) => bytes(row.bytes) },
      { title: "Per request", kind: "number", cell: (row) => (row.requests ? duration(row.seconds / row.requests) : "–") },
      { title: "Cost", kind: "number", cell: (row) => row.cost.toFixed(2) },
    ],
  });
  const offers = h("div", {});
  const list = new PagedTable({
    table,
    app,
    signal,
    isMoving,
    read: async (place) => {
      const answer = await read(`${crawlPath(id)}/exits`, place);
      refill(offers, ...offersShown(answer.offers));
      return { rows: answer.exits, next: answer.next ?? null };
    },
  });
  root.append(h("h2", {}, "Exits"), offers, list.element);
}
