/** Calls of the API. */

const ROOT = "/api/v1";

/** An answer that is no success; status 0: there was none. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} line
   */
  constructor(status, line) {
    super(line);
    this.status = status;
  }

  /** Whether the same call may succeed later without anybody changing it. */
  get isPassing() {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

/**
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return ROOT + path + (text ? `?${text}` : "");
}

/**
 * @param {string} method
 * @param {string} url
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
function call(method, url, body) {
  const json = body === undefined ? {} : { body: JSON.stringify(body), type: "application/json" };
  return send(method, url, json);
}

/**
 * @param {string} method
 * @param {string} url
 * @param {{body?: string, type?: string}} content
 * @returns {Promise<any>}
 */
async function send(method, url, { body, type }) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json" };
  if (type) headers["Content-Type"] = type;
  /** @type {RequestInit} */
  const request = { method, headers, credentials: "same-origin", ...(body !== undefined && { body }) };
  let response;
  try {
    response = await fetch(url, request);
  } catch {
    throw new ApiError(0, "shoal serve cannot be reached");
  }
  if (!response.ok) throw new ApiError(response.status, await errorLine(response));
  return response.status === 204 ? null : response.json();
}

/** @param {Response} response */
async function errorLine(response) {
  const answer = await response.json().catch(() => null);
  const line = answer && typeof answer.error === "string" ? answer.error : "";
  return line || `shoal serve answered with status ${response.status}`;
}

/**
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function read(path, query) {
  return call("GET", address(path, query));
}

/**
 * @param {"POST" | "PUT" | "DELETE"} method
 * @param {string} path
 * @param {unknown} [body]
 */
export function change(method, path, body) {
  return call(method, address(path), body);
}

/**
 * @param {string} crawl
 * @param {string} lines a URL each
 */
export function addUrls(crawl, lines) {
  return send("POST", address(`${crawlPath(crawl)}/urls`), { body: lines, type: "text/plain" });
}

/** @param {string} id */
export function crawlPath(id) {
  return `/crawls/${encodeURIComponent(id)}`;
}
