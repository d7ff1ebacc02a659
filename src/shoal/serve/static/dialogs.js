/** Dialogs: native ones, so that Esc closes them, focus stays inside, and returns to where it was. */

import { button, fill, h } from "./dom.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {{title: string, body: Child[], act: string, danger?: boolean, run: (form: FormData) => Promise<unknown>}} Question */

/**
 * Ask; on yes, run, and stay open with the error if that fails.
 * @param {Question} question
 * @returns {Promise<boolean>} whether it was done
 */
export function ask({ title, body, act, danger = false, run }) {
  const error = h("p", { class: "error", role: "alert" });
  const yes = h("button", { type: "submit", class: danger ? "danger" : "primary" }, act);
  const dialog = h("dialog", { "aria-label": title });
  const no = button("Keep as it is", () => dialog.close());
  let done = false;
  const form = h("form", { method: "dialog" }, h("h2", {}, title), ...body, error, h("p", { class: "row end" }, no, yes));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    yes.disabled = true;
    fill(error);
    try {
      await run(new FormData(form));
      done = true;
      dialog.close();
    } catch (problem) {
      fill(error, problem instanceof Error ? problem.message : String(problem));
    } finally {
      yes.disabled = false;
    }
  });
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
  });
}

/**
 * A field with its label and a hint.
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [hint]
 */
export function field(label, control, hint = "") {
  return h("label", { class: "field" }, h("span", {}, label), control, hint && h("span", { class: "muted" }, hint));
}
