/** The life of one URL: where it was found, which rules it passed, every attempt, what came of it. */

import { address, crawlPath, read } from "../api.js";
import { badge } from "../crawl_figures.js";
import { field } from "../dialogs.js";
import { fill, h, pageLink, webLink } from "../dom.js";
import { bytes, duration, moment } from "../format.js";

/** @typedef {import("../app.js").App} App */
/** @typedef {import("../types.js").Fate} Fate */
/** @typedef {import("../types.js").FetchRow} FetchRow */
/** @typedef {import("../types.js").PageItem} PageItem */
/** @typedef {import("../dom.js").Child} Child */

/**
 * @param {FetchRow[]} rows
 */
function attempts(rows) {
  const titles = ["Attempt", "At", "Outcome", "Status", "Took", "Size", "Exit", "Worker", "Archived"];
  const cells = rows.map((row) =>
    h(
      "tr",
      { role: "row" },
      ...[
        String(row.attempt),
        moment(row.at),
        [row.outcome, row.error && h("span", { class: "under bad" }, row.error), row.final_url && row.final_url !== row.url && h("span", { class: "under" }, "ended at ", webLink(row.final_url))],
        row.status ? String(row.status) : "–",
        duration(row.elapsed),
        bytes(row.size),
        row.exit || "direct",
        row.worker,
        row.archived ? "yes" : "–",
      ].map((cell, index) => h("td", { role: "cell", "data-title": titles[index] }, ...(Array.isArray(cell) ? cell : [cell]))),
    ),
  );
  const head = h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...titles.map((title) => h("th", { scope: "col", role: "columnheader" }, title))));
  return h("div", { class: "table" }, h("table", { role: "table" }, h("caption", { class: "unseen" }, "Attempts"), head, h("tbody", { role: "rowgroup" }, ...cells)));
}

/**
 * @param {Fate} fate
 * @param {string} id of the crawl
 */
function story(fate, id) {
  const why = (/** @type {string} */ url) => [webLink(url), " ", pageLink(`${crawlPath(id)}/why?url=${encodeURIComponent(url)}`, "why", { class: "aside" })];
  /** @type {[string, Child[]][]} */
  const facts = [];
  if (fate.found_on) facts.push(["Found on", why(fate.found_on)]);
  else if (fate.state !== "unknown") facts.push(["Found on", ["a start URL, a sitemap, or added by hand"]]);
  if (fate.kept_out) facts.push(["Kept out by", [fate.kept_out]]);
  else if (fate.state !== "unknown") facts.push(["Rules", ["it passed all of them"]]);
  if (fate.maybe.length) facts.push(["May have been kept out by", [fate.maybe.join(", ")]]);
  if (fate.merged_with) facts.push(["Same page as", why(fate.merged_with)]);
  if (fate.merged.length) facts.push(["Other spellings", [h("ul", {}, ...fate.merged.map((url) => h("li", {}, webLink(url))))]]);
  facts.push(["Host", [h("span", { class: "url" }, fate.lane)]]);
  facts.push(["Request", [fate.request]]);
  if (fate.task.worker) facts.push(["With", [fate.task.worker]]);
  if (fate.task.reason) facts.push(["Reason", [h("span", { class: "bad" }, fate.task.reason)]]);
  if (fate.task.detail) facts.push(["Detail", [h("pre", { tabindex: 0, "aria-label": "Detail" }, fate.task.detail)]]);
  if (fate.set_aside) facts.push(["Set aside", [fate.set_aside]]);
  const { attempts: rows, items } = fate;
  const isArchived = rows.some((row) => row.archived);
  if (isArchived) {
    const path = address(`${crawlPath(id)}/page`, { key: String(fate.key) });
    facts.push(["Archived page", [h("a", { href: path, download: "page.txt" }, "Download as text")]]);
  }
  return h(
    "article",
    { class: "card" },
    h("p", { class: "sentence" }, badge(fate.state), " ", fate.sentence),
    h("dl", { class: "facts" }, ...facts.flatMap(([title, value]) => [h("dt", {}, title), h("dd", {}, ...value)])),
    rows.length > 0 && h("h3", {}, rows.length > 1 ? "Attempts" : "Latest attempt"),
    rows.length > 0 && attempts(rows),
    items.length > 0 && h("h3", {}, "Items"),
    ...items.flatMap((item) => pageItem(item, id)),
  );
}

/**
 * @param {PageItem} item
 * @param {string} id of the crawl
 */
function pageItem(item, id) {
  const about = [item.key, bytes(item.size), item.crawl !== id && `written again by ${item.crawl} since`].filter(Boolean).join(" · ");
  const shown = item.data === null ? "too large to be shown here" : JSON.stringify(item.data, null, 2);
  return [h("p", { class: "under" }, about), h("pre", { tabindex: 0, "aria-label": `Item ${item.key}` }, shown)];
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {{id: string, url: string, signal: AbortSignal}} place
 */
export function showWhy(root, app, { id, url, signal }) {
  app.title(`Why, ${id}`);
  app.live.follow(null);
  const input = h("input", { name: "url", type: "text", inputmode: "url", value: url, required: true, autocomplete: "off", spellcheck: "false" });
  const form = h("form", { class: "filters", role: "search" }, field("URL", input), h("button", { type: "submit", class: "primary" }, "Tell"));
  const answer = h("div", { "aria-live": "polite" });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    app.go(`${crawlPath(id)}/why?url=${encodeURIComponent(input.value.trim())}`);
  });
  const crumbs = h("p", { class: "crumbs" }, pageLink("/", "Crawls"), " / ", pageLink(crawlPath(id), id), " / why");
  root.append(crumbs, h("h1", { tabindex: -1 }, "What became of a URL"), form, answer);
  if (!url) return;
  read(`${crawlPath(id)}/why`, { url }).then(
    ({ fates }) => {
      if (!signal.aborted) fill(answer, h("h2", {}, webLink(url)), ...fates.map((/** @type {Fate} */ fate) => story(fate, id)));
    },
    (error) => {
      if (!signal.aborted) fill(answer, h("p", { class: "error", role: "alert" }, error.message));
    },
  );
}
