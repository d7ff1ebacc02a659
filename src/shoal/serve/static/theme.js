// Runs before the first paint, so that a dark page never flashes white. No module: modules run after the page is read.
(() => {
  try {
    const kept = localStorage.getItem("shoal.theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // Storage may be switched off: the system's theme it is.
  }
})();
