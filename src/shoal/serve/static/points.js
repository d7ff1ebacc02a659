/** The history of a crawl as lines of charts. Points count totals: what happened is the difference of two of them. */

/** @typedef {import("./types.js").Point} Point */
/** @typedef {{name: string, values: (number | null)[]}} Line */

// Outcomes that are no errors: see the page on reasons and outcomes.
const FINE = new Set(["ok", "not_modified", "redirected", "robots", "robots_unavailable", "dropped"]);
const KINDS_SHOWN = 4;
const PERCENTILES = [50, 90, 99];

/**
 * What changed from each point to the next, per second; null where a counter went back.
 * @param {Point[]} points
 * @param {(point: Point) => number} total
 */
function speeds(points, total) {
  return points.slice(1).map((point, index) => {
    const former = points[index];
    const seconds = point.at - former.at;
    const change = total(point) - total(former);
    return seconds > 0 && change >= 0 ? change / seconds : null;
  });
}

/** @param {Point[]} points */
export function times(points) {
  return points.slice(1).map((point) => point.at);
}

/**
 * @param {Point[]} points
 * @returns {Line[]}
 */
export function pageLines(points) {
  return [{ name: "pages", values: speeds(points, (point) => point.done + point.dead) }];
}

/**
 * @param {Point[]} points
 * @returns {Line[]}
 */
export function byteLines(points) {
  return [{ name: "received", values: speeds(points, (point) => point.received_bytes) }];
}

/**
 * @param {Point[]} points
 * @returns {Line[]}
 */
export function waitingLines(points) {
  const shown = points.slice(1);
  return [
    { name: "queued", values: shown.map((point) => point.queued) },
    { name: "delayed", values: shown.map((point) => point.delayed) },
  ];
}

/**
 * @param {Point[]} points
 * @returns {Line[]}
 */
export function flightLines(points) {
  return [{ name: "in flight", values: points.slice(1).map((point) => point.leased) }];
}

/**
 * The commonest kinds of errors, the others together, and retries.
 * @param {Point[]} points
 * @returns {Line[]}
 */
export function errorLines(points) {
  const last = points.at(-1)?.outcomes ?? {};
  const kinds = Object.keys(last)
    .filter((name) => !FINE.has(name) && name !== "other")
    .sort((one, two) => last[two] - last[one] || one.localeCompare(two));
  const shown = kinds.slice(0, KINDS_SHOWN);
  const rest = [...kinds.slice(KINDS_SHOWN), ...("other" in last ? ["other"] : [])];
  const lines = shown.map((name) => ({ name, values: speeds(points, (point) => point.outcomes[name] ?? 0) }));
  if (rest.length) {
    const total = (/** @type {Point} */ point) => rest.reduce((sum, name) => sum + (point.outcomes[name] ?? 0), 0);
    lines.push({ name: "other kinds", values: speeds(points, total) });
  }
  return [{ name: "retries", values: speeds(points, (point) => point.retried) }, ...lines];
}

/**
 * Percentiles of the seconds that requests took, each between two points.
 * @param {Point[]} points
 * @param {number[]} buckets
 * @returns {Line[]}
 */
export function latencyLines(points, buckets) {
  const counted = points.slice(1).map((point, index) => bucketChange(points[index].fetch_times, point.fetch_times));
  return PERCENTILES.map((share) => ({
    name: share === 50 ? "median" : `${share} %`,
    values: counted.map((counts) => percentile(counts, buckets, share / 100)),
  }));
}

/**
 * @param {number[]} former
 * @param {number[]} latter
 */
function bucketChange(former, latter) {
  return latter.map((number, index) => Math.max(0, number - (former[index] ?? 0)));
}

/**
 * The value under which a share of the measurements lies, evenly spread within its bucket; null without measurements.
 * @param {number[]} counts per bucket, the last one for everything above
 * @param {number[]} buckets upper bounds
 * @param {number} share
 */
export function percentile(counts, buckets, share) {
  const all = counts.reduce((sum, number) => sum + number, 0);
  if (all === 0) return null;
  let left = share * all;
  for (const [index, number] of counts.entries()) {
    if (number > 0 && left <= number) {
      const low = index === 0 ? 0 : buckets[index - 1];
      const high = buckets[index] ?? low;
      return low + (high - low) * (left / number);
    }
    left -= number;
  }
  return buckets.at(-1) ?? null;
}
