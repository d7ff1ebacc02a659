/** The stream of server-sent events. It comes back by itself, and says when it is away. */

import { ApiError, address, read } from "./api.js";

const EVENTS = /** @type {const} */ (["crawls", "crawl", "point", "problems"]);
const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 10000;

/** @typedef {"connecting" | "live" | "lost"} LiveState */
/** @typedef {(value: any) => void} Reader */

export class Live {
  /** @param {{onState: (state: LiveState) => void, onSignIn: () => void}} told */
  constructor({ onState, onSignIn }) {
    this.onState = onState;
    this.onSignIn = onSignIn;
    /** @type {EventSource | null} */
    this.source = null;
    /** @type {string | null} */
    this.crawl = null;
    /** @type {Map<string, Set<Reader>>} */
    this.readers = new Map(EVENTS.map((name) => [name, new Set()]));
    this.pause = FIRST_PAUSE;
    this.timer = 0;
  }

  /**
   * Listen to all crawls, or to one of them as well.
   * @param {string | null} crawl
   */
  follow(crawl) {
    if (this.source && this.crawl === crawl) return;
    this.crawl = crawl;
    this.open();
  }

  /**
   * @param {typeof EVENTS[number]} name
   * @param {Reader} reader
   * @param {AbortSignal} signal ends the reading
   */
  on(name, reader, signal) {
    const readers = this.readers.get(name);
    readers?.add(reader);
    signal.addEventListener("abort", () => readers?.delete(reader));
  }

  open() {
    this.close();
    const source = new EventSource(address("/events", { crawl: this.crawl }));
    this.source = source;
    source.onopen = () => {
      this.pause = FIRST_PAUSE;
      this.onState("live");
    };
    // The browser's own retry hides why the stream ended: a sign-in that ran out must be seen.
    source.onerror = () => this.lose();
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => {
        const value = JSON.parse(/** @type {MessageEvent} */ (event).data);
        for (const reader of [...(this.readers.get(name) ?? [])]) reader(value);
      });
    }
  }

  lose() {
    this.close();
    this.onState("lost");
    this.timer = window.setTimeout(() => this.retry(), this.pause);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
  }

  async retry() {
    try {
      await read("/status");
      this.open();
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) this.onSignIn();
      else this.lose();
    }
  }

  close() {
    window.clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}
