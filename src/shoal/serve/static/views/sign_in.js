/** Sign-in by token, when the API wants one. */

import { change } from "../api.js";
import { field } from "../dialogs.js";
import { fill, h } from "../dom.js";

/** @typedef {import("../app.js").App} App */

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
export function showSignIn(root, app) {
  app.title("Sign in");
  const token = h("input", { type: "password", name: "token", required: true, autocomplete: "current-password" });
  const error = h("p", { class: "error", role: "alert" });
  const form = h(
    "form",
    { class: "card sign-in" },
    h("h1", { tabindex: -1 }, "Sign in"),
    field("Token", token, "the one that shoal serve was started with, or the read-only one"),
    error,
    h("button", { type: "submit", class: "primary" }, "Sign in"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    fill(error);
    try {
      await change("POST", "/session", { token: token.value });
      app.signedIn();
    } catch (problem) {
      fill(error, problem instanceof Error ? problem.message : String(problem));
      token.select();
    }
  });
  fill(root, form);
  token.focus();
}
