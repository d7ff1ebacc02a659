/** Which view an address means. */

/**
 * @typedef {{view: "crawls"} | {view: "crawl", id: string, tab: string} | {view: "why", id: string, url: string}
 *   | {view: "schedules"} | {view: "schedule", name: string} | {view: "none"}} Route
 */

/**
 * @param {{pathname: string, search: string}} place
 * @returns {Route}
 */
export function routeOf({ pathname, search }) {
  const query = new URLSearchParams(search);
  if (pathname === "/") return { view: "crawls" };
  if (/^\/schedules\/?$/.test(pathname)) return { view: "schedules" };
  const [, schedule] = /^\/schedules\/([^/]+)\/?$/.exec(pathname) ?? [];
  if (schedule) return { view: "schedule", name: decoded(schedule) };
  const [, id, why] = /^\/crawls\/([^/]+)(\/why)?\/?$/.exec(pathname) ?? [];
  if (!id) return { view: "none" };
  const name = decoded(id);
  if (why) return { view: "why", id: name, url: query.get("url") ?? "" };
  return { view: "crawl", id: name, tab: query.get("tab") ?? "overview" };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
