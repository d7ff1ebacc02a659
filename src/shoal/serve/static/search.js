/** A search field that waits until the typing pauses. */

import { h } from "./dom.js";

const PAUSE = 300;

/**
 * @param {string} label
 * @param {(text: string) => void} changed
 */
export function searchForm(label, changed) {
  let timer = 0;
  const input = h("input", { type: "search", "aria-label": label, placeholder: label, autocomplete: "off", spellcheck: "false" });
  const now = () => {
    window.clearTimeout(timer);
    changed(input.value.trim());
  };
  input.addEventListener("input", () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(now, PAUSE);
  });
  const form = h("form", { role: "search", class: "search" }, input);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    now();
  });
  return form;
}
