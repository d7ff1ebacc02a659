/** Line charts as SVG, drawn by hand: axes, lines, a reading at the pointer or the arrow keys, and a table for screen readers. */

import { fill, h, svg, write } from "./dom.js";

/** @typedef {import("./points.js").Line} Line */
/** @typedef {{title: string, format: (value: number) => string, note?: string}} ChartOptions */
/** @typedef {{left: number, width: number, from: number, until: number, top: number}} Scale */

const HEIGHT = 150;
const TOP = 8;
const BOTTOM = 20;
const RIGHT = 8;
const DIGIT_WIDTH = 6.5;
const TABLE_ROWS = 40;

/**
 * The smallest round number that is not below.
 * @param {number} value
 */
export function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 2.5, 5, 10].find((step) => step * power >= value * 0.999999) ?? 10);
}

/**
 * @param {number} at
 * @param {number} span seconds on the axis
 */
function clock(at, span) {
  const date = new Date(at * 1000);
  if (span > 2 * 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const seconds = span < 240 ? /** @type {const} */ ({ second: "2-digit" }) : {};
  return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...seconds });
}

export class Chart {
  /** @param {ChartOptions} options */
  constructor({ title, format, note = "" }) {
    this.title = title;
    this.format = format;
    /** @type {number[]} */
    this.times = [];
    /** @type {Line[]} */
    this.lines = [];
    this.cursor = -1;
    this.canvas = svg("svg", { class: "canvas", height: HEIGHT, role: "img", tabindex: 0 });
    this.legend = h("p", { class: "legend" });
    this.table = h("div", { class: "scroll" });
    this.details = h("details", { ontoggle: () => this.#tell() }, h("summary", {}, `${title} as a table`), this.table);
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("strong", {}, title), note && h("span", { class: "muted" }, ` ${note}`)),
      this.legend,
      this.canvas,
      this.details,
    );
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#read(-1));
    this.canvas.addEventListener("blur", () => this.#read(-1));
    this.canvas.addEventListener("keydown", (event) => this.#step(event));
    new ResizeObserver(() => this.#paint()).observe(this.element);
  }

  /**
   * @param {number[]} times seconds since 1970
   * @param {Line[]} lines with a value for each time
   */
  draw(times, lines) {
    this.times = times;
    this.lines = lines;
    this.cursor = Math.min(this.cursor, times.length - 1);
    this.#paint();
    if (this.details.open) this.#tell();
  }

  /** @returns {number} */
  #highest() {
    return roundUp(Math.max(0, ...this.lines.flatMap((line) => line.values.map((value) => value ?? 0))));
  }

  /** @returns {Scale} */
  #scale() {
    const top = this.#highest();
    const widest = Math.max(...[0, top / 2, top].map((value) => this.#mark(value).length));
    const left = widest * DIGIT_WIDTH + 8;
    const width = Math.max(60, this.element.clientWidth - 2 * 12 - left - RIGHT);
    const from = this.times[0] ?? 0;
    return { left, width, from, until: Math.max(this.times.at(-1) ?? 1, from + 1), top };
  }

  /**
   * @param {number} at
   * @param {Scale} scale
   */
  #x(at, scale) {
    return scale.left + ((at - scale.from) / (scale.until - scale.from)) * scale.width;
  }

  /**
   * @param {number} value
   * @param {Scale} scale
   */
  #y(value, scale) {
    return TOP + (1 - value / scale.top) * (HEIGHT - TOP - BOTTOM);
  }

  /**
   * A value of the axis, without digits that say nothing.
   * @param {number} value
   */
  #mark(value) {
    return this.format(value).replace(/\.0+(?=\D|$)/, "");
  }

  #paint() {
    if (!this.element.clientWidth) return;
    const scale = this.#scale();
    const whole = scale.left + scale.width + RIGHT;
    this.canvas.setAttribute("viewBox", `0 0 ${whole} ${HEIGHT}`);
    this.canvas.setAttribute("width", String(whole));
    this.canvas.setAttribute("aria-label", this.#summary());
    if (this.times.length < 2) {
      const text = svg("text", { x: whole / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no figures yet");
      fill(this.canvas, text);
    } else {
      fill(this.canvas, ...this.#axes(scale), ...this.lines.map((line, index) => this.#line(line, index, scale)));
    }
    this.#read(this.cursor);
  }

  /**
   * @param {Scale} scale
   * @returns {SVGElement[]}
   */
  #axes(scale) {
    const drawn = [0, 0.5, 1].flatMap((share) => {
      const y = this.#y(share * scale.top, scale);
      return [
        svg("line", { class: "grid", x1: scale.left, x2: scale.left + scale.width, y1: y, y2: y }),
        svg("text", { x: scale.left - 6, y: y + 4, "text-anchor": "end" }, this.#mark(share * scale.top)),
      ];
    });
    const span = scale.until - scale.from;
    const ticks = scale.width > 420 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1];
    return drawn.concat(
      ticks.map((share) => {
        const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
        const x = scale.left + share * scale.width;
        return svg("text", { x, y: HEIGHT - 5, "text-anchor": anchor }, clock(scale.from + share * span, span));
      }),
    );
  }

  /**
   * @param {Line} line
   * @param {number} index
   * @param {Scale} scale
   */
  #line(line, index, scale) {
    let path = "";
    let broken = true;
    line.values.forEach((value, position) => {
      if (value === null) {
        broken = true;
        return;
      }
      const x = this.#x(this.times[position], scale).toFixed(1);
      path += `${broken ? "M" : "L"}${x} ${this.#y(value, scale).toFixed(1)}`;
      broken = false;
    });
    return svg("path", { class: `line line-${index % 6}`, d: path });
  }

  /** @param {PointerEvent} event */
  #point(event) {
    if (this.times.length < 2) return;
    const scale = this.#scale();
    const at = scale.from + ((event.offsetX - scale.left) / scale.width) * (scale.until - scale.from);
    let nearest = 0;
    this.times.forEach((time, index) => {
      if (Math.abs(time - at) < Math.abs(this.times[nearest] - at)) nearest = index;
    });
    this.#read(nearest);
  }

  /** @param {KeyboardEvent} event */
  #step(event) {
    const last = this.times.length - 1;
    const from = this.cursor < 0 ? last + 1 : this.cursor;
    /** @type {Record<string, number>} */
    const targets = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last };
    if (!(event.key in targets) || last < 1) return;
    event.preventDefault();
    this.#read(Math.max(0, Math.min(last, targets[event.key])));
    this.canvas.setAttribute("aria-label", this.#summary());
  }

  /**
   * Show the values at one time; at the last one without a cursor.
   * @param {number} index
   */
  #read(index) {
    this.cursor = index;
    this.canvas.querySelector(".cursor")?.remove();
    if (index >= 0 && this.times.length > 1) {
      const scale = this.#scale();
      const x = this.#x(this.times[index], scale);
      this.canvas.append(svg("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    const shown = index < 0 ? this.times.length - 1 : index;
    fill(
      this.legend,
      ...this.lines.map((line, position) =>
        h("span", { class: `key key-${position % 6}` }, `${line.name} `, h("b", {}, this.#value(line.values[shown]))),
      ),
      index >= 0 && h("span", { class: "muted" }, new Date(this.times[shown] * 1000).toLocaleTimeString("en-GB")),
    );
  }

  /** @param {number | null | undefined} value */
  #value(value) {
    return value === null || value === undefined ? "–" : this.format(value);
  }

  #summary() {
    const shown = this.cursor < 0 ? this.times.length - 1 : this.cursor;
    if (shown < 0) return `${this.title}: no figures yet`;
    const values = this.lines.map((line) => `${line.name} ${this.#value(line.values[shown])}`);
    const when = this.cursor < 0 ? "now" : new Date(this.times[shown] * 1000).toLocaleTimeString("en-GB");
    return `${this.title}, ${when}: ${values.join(", ")}`;
  }

  /** The same figures as a table, newest first, made only while it is open. */
  #tell() {
    if (!this.details.open) return;
    const every = Math.max(1, Math.ceil(this.times.length / TABLE_ROWS));
    const shown = this.times.map((_, index) => index).filter((index) => (this.times.length - 1 - index) % every === 0);
    const heading = h("tr", {}, ...["time", ...this.lines.map((line) => line.name)].map((text) => h("th", { scope: "col" }, text)));
    const rows = shown.reverse().map((index) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, new Date(this.times[index] * 1000).toLocaleString("en-GB")),
        ...this.lines.map((line) => h("td", { class: "number" }, this.#value(line.values[index]))),
      ),
    );
    const caption = h("caption", { class: "unseen" });
    write(caption, this.title);
    fill(this.table, h("table", { class: "plain" }, caption, h("thead", {}, heading), h("tbody", {}, ...rows)));
  }
}
