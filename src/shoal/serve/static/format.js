/** Numbers, times and sizes as people read them. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumFractionDigits: 1, notation: "compact" });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** @param {number} number */
export function count(number) {
  return WHOLE.format(number);
}

/** @param {number} number */
export function short(number) {
  return SHORT.format(number);
}

/** @param {number} number */
function digits(number) {
  return number >= 100 ? 0 : number >= 10 ? 1 : 2;
}

/** @param {number} perSecond */
export function rate(perSecond) {
  if (perSecond === 0) return "0/s";
  if (perSecond < 0.1) return `${(perSecond * 60).toFixed(1)}/min`;
  return `${perSecond >= 1000 ? count(perSecond) : perSecond.toFixed(digits(perSecond))}/s`;
}

/** @param {number} size */
export function bytes(size) {
  let unit = 0;
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : size.toFixed(digits(size))} ${UNITS[unit]}`;
}

/**
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return seconds === 0 ? "0 s" : `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** @param {number | null | undefined} at seconds since 1970 */
export function moment(at) {
  if (!at) return "–";
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/**
 * @param {number | null | undefined} at seconds since 1970
 * @param {number} [now]
 */
export function ago(at, now = Date.now() / 1000) {
  return at ? `${duration(Math.max(0, Math.round(now - at)))} ago` : "–";
}

/** @param {number} share from 0 to 1 */
export function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/**
 * @param {number} number
 * @param {string} noun
 */
export function several(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
