/** Dead letters: filtered, queued again or dropped, one, those of a filter, or all. */

import { change, crawlPath, read } from "../api.js";
import { told } from "../crawl_actions.js";
import { ask, field } from "../dialogs.js";
import { button, h, pageLink, webLink, write } from "../dom.js";
import { count, moment, several } from "../format.js";
import { PagedTable } from "../paged.js";
import { Table } from "../table.js";

/** @typedef {import("./crawl.js").TabContext} TabContext */
/** @typedef {import("../types.js").Letter} Letter */
/** @typedef {{host: string, reason: string, since: string}} Filter */
/** @typedef {{number: number, isLeast: boolean}} Matching */

/** @type {[string, string][]} */
const AGES = [["", "at any time"], ["3600", "in the last hour"], ["86400", "in the last day"], ["604800", "in the last week"]];

/**
 * The filter as the API takes it.
 * @param {Filter} filter
 * @returns {Record<string, string | number>}
 */
function given({ host, reason, since }) {
  return {
    ...(host && { host }),
    ...(reason && { reason }),
    ...(since && { since: Math.floor(Date.now() / 1000) - Number(since) }),
  };
}

/**
 * How many letters the filter has: exactly, or at least.
 * @param {Matching} matching
 */
function counted({ number, isLeast }) {
  return isLeast ? `at least ${count(number)}` : count(number);
}

/**
 * @param {TabContext} context
 * @param {{changed: () => void, filter: () => Filter, matching: () => Matching}} options
 */
function bulkButtons({ app, id }, { changed, filter, matching }) {
  const run = async (/** @type {"requeue" | "drop"} */ verb) => {
    const body = given(filter());
    const isAll = Object.keys(body).length === 0;
    const { number, isLeast } = matching();
    const letters = isLeast ? `at least ${several(number, "dead letter")}` : several(number, "dead letter");
    const which = isAll ? `all ${letters}` : `${letters} of this filter`;
    const effect = verb === "requeue" ? "They are fetched again with all their attempts, at the pace of their hosts." : "They count as done with the outcome dropped. This cannot be undone.";
    await ask({
      title: `${verb === "requeue" ? "Requeue" : "Drop"} ${which}?`,
      body: [h("p", {}, effect)],
      act: verb === "requeue" ? "Requeue them" : "Drop them",
      danger: verb === "drop",
      run: async () => {
        const answer = await change("POST", `${crawlPath(id)}/dead/${verb}`, isAll ? { all: true } : body);
        app.announce(told(answer, verb === "requeue" ? "requeued" : "dropped"));
        changed();
      },
    });
  };
  const requeue = button("Requeue all", () => void run("requeue"), { class: "small" });
  const drop = button("Drop all", () => void run("drop"), { class: "small danger-quiet" });
  return { requeue, drop };
}

/**
 * @param {(filter: Filter) => void} changed
 */
function filterForm(changed) {
  const host = h("input", { name: "host", autocomplete: "off", spellcheck: "false" });
  const reason = h("input", { name: "reason", autocomplete: "off", spellcheck: "false" });
  const since = h("select", { name: "since" }, ...AGES.map(([value, title]) => h("option", { value }, title)));
  const form = h(
    "form",
    { class: "filters", "aria-label": "Which dead letters" },
    field("Host", host),
    field("Reason", reason),
    field("Given up", since),
    h("button", { type: "submit", class: "small" }, "Filter"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    changed({ host: host.value.trim(), reason: reason.value.trim(), since: since.value });
  });
  since.addEventListener("change", () => form.requestSubmit());
  return form;
}

/**
 * @param {TabContext} context
 * @param {() => void} changed
 * @returns {Table<Letter>}
 */
function letterTable({ app, id }, changed) {
  const act = async (/** @type {Letter} */ row, /** @type {"requeue" | "drop"} */ verb) => {
    try {
      const answer = await change("POST", `${crawlPath(id)}/dead/${verb}`, { key: row.key });
      app.announce(told(answer, verb === "requeue" ? "requeued" : "dropped"));
      changed();
    } catch (error) {
      app.failed(error);
    }
  };
  const buttons = (/** @type {Letter} */ row) => [
    button("Requeue", () => void act(row, "requeue"), { class: "small", "aria-label": `Requeue ${row.url}` }),
    button("Drop", () => void act(row, "drop"), { class: "small danger-quiet", "aria-label": `Drop ${row.url}` }),
  ];
  return new Table({
    caption: "Dead letters, newest first",
    keyOf: (/** @type {Letter} */ row) => row.key,
    empty: "No dead letters here.",
    columns: [
      { title: "URL", cell: (row) => [row.method !== "GET" && `${row.method} `, webLink(row.url), " ", pageLink(`${crawlPath(id)}/why?url=${encodeURIComponent(row.url)}`, "why", { class: "aside" })] },
      { title: "Reason", cell: (row) => [h("span", { class: "bad" }, row.reason), row.detail && h("details", {}, h("summary", {}, "Detail"), h("pre", { tabindex: 0, "aria-label": `Detail of ${row.url}` }, row.detail))] },
      { title: "Attempts", kind: "number", cell: (row) => count(row.attempts) },
      { title: "Handler", cell: (row) => row.handler },
      { title: "Given up", kind: "number", cell: (row) => moment(row.at) },
      { title: "Actions", kind: "actions", cell: (row) => (app.isAdmin() ? buttons(row) : []) },
    ],
  });
}

/**
 * @param {HTMLElement} root
 * @param {TabContext} context
 */
export function showDeadLetters(root, context) {
  const { app, id, signal, isMoving } = context;
  /** @type {Filter} */
  let filter = { host: "", reason: "", since: "" };
  /** @type {Matching} */
  let matching = { number: 0, isLeast: false };
  const changed = () => void list.reread();
  const bulk = bulkButtons(context, { changed, filter: () => filter, matching: () => matching });
  const sum = h("p", { class: "muted", role: "status" });
  const list = new PagedTable({
    table: letterTable(context, changed),
    app,
    signal,
    isMoving,
    read: async (place) => {
      const answer = await read(`${crawlPath(id)}/dead`, { ...place, ...given(filter) });
      matching = { number: answer.matching, isLeast: answer.matching_is_least };
      const isAll = Object.keys(given(filter)).length === 0;
      const all = several(answer.total, "dead letter");
      write(sum, isAll ? all : `${counted(matching)} of ${all} match this filter`);
      write(bulk.requeue, isAll ? "Requeue all" : `Requeue these ${counted(matching)}`);
      write(bulk.drop, isAll ? "Drop all" : `Drop these ${counted(matching)}`);
      bulk.requeue.disabled = bulk.drop.disabled = answer.letters.length === 0;
      return { rows: answer.letters, next: answer.next, ...(!matching.isLeast && { total: matching.number }) };
    },
  });
  const form = filterForm((wanted) => {
    filter = wanted;
    void list.restart();
  });
  const buttons = h("div", { class: "row" }, ...(app.isAdmin() ? [bulk.requeue, bulk.drop] : []));
  root.append(h("div", { class: "head" }, h("h2", {}, "Dead letters"), buttons), form, sum, list.element);
}
