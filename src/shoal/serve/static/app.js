/** The page: finds the view of a path, keeps the stream of events, and says what is wrong. */

import { ApiError, change, read } from "./api.js";
import { Banner } from "./banner.js";
import { fill, h, set, write } from "./dom.js";
import { Live } from "./live.js";
import { routeOf } from "./routes.js";
import { bindThemeSwitch } from "./theme_switch.js";
import { CrawlView } from "./views/crawl.js";
import { showCrawls } from "./views/crawls.js";
import { showSchedule } from "./views/schedule.js";
import { showSchedules } from "./views/schedules.js";
import { showSignIn } from "./views/sign_in.js";
import { showWhy } from "./views/why.js";

/** @typedef {import("./types.js").Status} Status */
/** @typedef {import("./live.js").LiveState} LiveState */

const STATUS_SECONDS = 15;
const ANNOUNCED_SECONDS = 6;
const SIGNED_IN = "shoal.signed-in";
const WORDS = { connecting: "connecting", live: "live", lost: "not connected" };

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
function part(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`index.html has no #${id}`);
  return element;
}

export class App {
  constructor() {
    this.main = part("main");
    this.connection = part("connection");
    this.announcer = part("announcer");
    this.signOut = part("sign-out");
    this.views = part("views");
    this.banner = new Banner(part("banner"), this.main);
    /** @type {Status | null} */
    this.status = null;
    this.live = new Live({ onState: (state) => this.#connected(state), onSignIn: () => this.signIn() });
    this.ends = new AbortController();
    /** @type {CrawlView | null} */
    this.crawlView = null;
    this.isSigningIn = false;
    this.announced = 0;
  }

  async begin() {
    bindThemeSwitch(/** @type {HTMLButtonElement} */ (part("theme")));
    this.signOut.addEventListener("click", () => void this.leave());
    this.signOut.hidden = sessionStorage.getItem(SIGNED_IN) === null;
    document.addEventListener("click", (event) => this.#follow(event));
    window.addEventListener("popstate", () => this.route());
    const always = new AbortController().signal;
    this.live.on("problems", (lines) => this.#problems(lines), always);
    for (const name of /** @type {const} */ (["crawls", "crawl"])) this.live.on(name, () => this.banner.renewed(), always);
    window.setInterval(() => {
      if (!document.hidden && !this.isSigningIn) void this.#readStatus();
    }, STATUS_SECONDS * 1000);
    await this.#readStatus();
    if (!this.isSigningIn) this.route();
  }

  async #readStatus() {
    try {
      /** @type {Status} */
      const status = await read("/status");
      this.status = status;
      this.banner.alerts = status.alerts ?? [];
      this.#problems(status.problems);
    } catch (error) {
      this.failed(error);
    }
  }

  /** @param {string[] | {problems: string[]}} value */
  #problems(value) {
    this.banner.problems = Array.isArray(value) ? value : value.problems;
    this.banner.show();
    if (this.banner.problems.length > 0) void this.#probe();
    else if (this.live.source) this.banner.renewed();
  }

  /** Whether a problem of the server also makes the figures old: a store may be away while the frontier is there. */
  async #probe() {
    try {
      await read("/crawls", { limit: 1 });
      this.banner.renewed();
    } catch (error) {
      this.failed(error);
    }
  }

  /** @param {LiveState} state */
  #connected(state) {
    this.connection.dataset.state = state;
    write(this.connection, WORDS[state]);
    if (state === "lost") this.banner.out("shoal serve cannot be reached");
    if (state === "live") {
      this.banner.renewed();
      void this.#readStatus();
    }
  }

  isAdmin() {
    return this.status?.role === "admin";
  }

  /** @param {string} title */
  title(title) {
    document.title = `${title} · shoal`;
  }

  /**
   * Said by screen readers, and shown for a moment.
   * @param {string} text
   */
  announce(text) {
    window.clearTimeout(this.announced);
    fill(this.announcer, h("p", {}, text));
    this.announced = window.setTimeout(() => fill(this.announcer), ANNOUNCED_SECONDS * 1000);
  }

  succeeded() {
    this.banner.renewed();
  }

  /**
   * Something could not be read or changed.
   * @param {unknown} error
   * @param {{retry?: () => void}} [options] for what is not read again by itself
   */
  failed(error, { retry } = {}) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) {
      this.signIn();
    } else if (error.isPassing) {
      this.banner.out(error.message);
      if (retry) window.setTimeout(retry, 2000);
    } else if (error.status === 404 && !this.main.querySelector("h2")) {
      fill(this.main, h("h1", { tabindex: -1 }, "Not here"), h("p", {}, error.message));
    } else {
      this.banner.complain(error.message);
    }
  }

  signIn() {
    if (this.isSigningIn) return;
    this.isSigningIn = true;
    this.live.close();
    this.ends.abort();
    this.crawlView = null;
    showSignIn(this.main, this);
  }

  signedIn() {
    this.isSigningIn = false;
    sessionStorage.setItem(SIGNED_IN, "yes");
    this.signOut.hidden = false;
    this.banner.complain("");
    void this.#readStatus().then(() => this.route());
  }

  async leave() {
    await change("DELETE", "/session").catch(() => null);
    sessionStorage.removeItem(SIGNED_IN);
    this.signOut.hidden = true;
    this.signIn();
  }

  /** @param {string} path */
  go(path) {
    history.pushState(null, "", path);
    this.route();
  }

  /** Show the view of the address. */
  route() {
    const route = routeOf(location);
    this.banner.complain("");
    this.#mark(route.view);
    if (route.view === "crawl" && this.crawlView?.id === route.id) {
      this.crawlView.show(route.tab);
      return;
    }
    this.ends.abort();
    this.ends = new AbortController();
    const { signal } = this.ends;
    this.crawlView = null;
    fill(this.main);
    if (route.view === "crawl") this.crawlView = new CrawlView(this.main, this, { ...route, signal });
    else if (route.view === "why") showWhy(this.main, this, { ...route, signal });
    else if (route.view === "crawls") showCrawls(this.main, this, signal);
    else if (route.view === "schedules") showSchedules(this.main, this, signal);
    else if (route.view === "schedule") showSchedule(this.main, this, { ...route, signal });
    else this.#nothing();
  }

  /**
   * Mark the link of the frame under which a view lies.
   * @param {string} view
   */
  #mark(view) {
    const path = view === "none" ? "" : view.startsWith("schedule") ? "/schedules" : "/";
    for (const link of this.views.querySelectorAll("a")) set(link, { "aria-current": link.pathname === path ? "page" : null });
  }

  #nothing() {
    this.title("Not here");
    fill(this.main, h("h1", { tabindex: -1 }, "Not here"), h("p", {}, "There is no such page. All crawls are on the first one."));
  }

  /**
   * Links to views are followed without loading the page anew.
   * @param {MouseEvent} event
   */
  #follow(event) {
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a[data-page]") : null;
    if (!(link instanceof HTMLAnchorElement)) return;
    event.preventDefault();
    const isTab = link.closest(".tabs") !== null;
    this.go(link.pathname + link.search);
    // The reader goes on at the top of the new view; tabs keep their place.
    if (!isTab) {
      window.scrollTo(0, 0);
      /** @type {HTMLElement | null} */ (this.main.querySelector("h1"))?.focus();
    }
  }
}

if (document.getElementById("main")) void new App().begin();
