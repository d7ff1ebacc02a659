/** The button that goes from the system's theme to light, to dark, and back; the choice is remembered. */

const KEY = "shoal.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

/** @returns {"system" | "light" | "dark"} */
function current() {
  const theme = document.documentElement.dataset.theme;
  return theme === "light" || theme === "dark" ? theme : "system";
}

/** @param {string} theme */
function keep(theme) {
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
}

/** @param {HTMLButtonElement} button */
export function bindThemeSwitch(button) {
  const label = () => {
    button.textContent = `Theme: ${current()}`;
  };
  button.addEventListener("click", () => {
    const theme = NEXT[current()];
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    keep(theme);
    label();
  });
  label();
}
