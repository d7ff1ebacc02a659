/**
 * The only module that makes elements. Scraped text is hostile: it becomes text nodes and attributes, never markup, and a
 * link only if it is http or https. `make check` looks for ways around this.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {(event: Event) => void} Listener */
/** @typedef {Record<string, string | number | boolean | null | undefined | Listener>} Attributes */

const SVG = "http://www.w3.org/2000/svg";
const FORBIDDEN = /^(on|src|style$|formaction$|action$|xlink:)/i;

/**
 * @param {Element} element
 * @param {Attributes} attributes
 */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.replace(/^on/, ""), value);
    } else if (FORBIDDEN.test(name) || (name === "href" && !isSafeLink(String(value)))) {
      throw new Error(`the attribute ${name} is not set from here`);
    } else if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * Our own paths, and pages of the web.
 * @param {string} link
 */
function isSafeLink(link) {
  return /^(\/(?![\/\\])|\?|#)/.test(link) || isWebUrl(link);
}

/** @param {string} text */
function isWebUrl(text) {
  try {
    return /^https?:$/.test(new URL(text).protocol);
  } catch {
    return false;
  }
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  append(element, children);
  return element;
}

/**
 * @param {string} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  set(element, attributes);
  append(element, children);
  return element;
}

/**
 * @param {Element} parent
 * @param {readonly Child[]} children
 */
function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * Gives the parent new children.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/**
 * Gives the parent new children only where they differ, so that focus, selections and what was unfolded stay.
 * @param {Element} parent
 * @param {...Child} children
 */
export function refill(parent, ...children) {
  const draft = /** @type {Element} */ (parent.cloneNode(false));
  append(draft, children);
  const folds = draft.querySelectorAll("details");
  parent.querySelectorAll("details").forEach((fold, index) => folds[index]?.toggleAttribute("open", fold.open));
  if (draft.isEqualNode(parent)) return;
  const place = focusIn(parent);
  parent.replaceChildren(...draft.childNodes);
  if (place >= 0) focusables(parent)[place]?.focus();
}

/**
 * @param {Element} parent
 * @returns {NodeListOf<HTMLElement>}
 */
function focusables(parent) {
  return parent.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]");
}

/** @param {Element} parent */
function focusIn(parent) {
  const focused = document.activeElement;
  return focused && parent.contains(focused) ? [...focusables(parent)].indexOf(/** @type {HTMLElement} */ (focused)) : -1;
}

/**
 * A text that changes: touched only when it differs.
 * @param {Element} element
 * @param {string} text
 */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A link to a scraped URL; plain text unless it is http or https.
 * @param {string} url
 * @param {string} [text]
 */
export function webLink(url, text = url) {
  if (!isWebUrl(url)) return h("span", { class: "url" }, text);
  return h("a", { class: "url", href: url, rel: "noreferrer noopener nofollow", target: "_blank" }, text);
}

/**
 * A link to a view of this page.
 * @param {string} path
 * @param {Child} text
 * @param {Attributes} [attributes]
 */
export function pageLink(path, text, attributes = {}) {
  return h("a", { ...attributes, href: path, "data-page": true }, text);
}

/**
 * @param {string} label
 * @param {() => void} act
 * @param {Attributes} [attributes]
 */
export function button(label, act, attributes = {}) {
  return h("button", { type: "button", ...attributes, onclick: () => act() }, label);
}

/**
 * Words only screen readers say.
 * @param {string} text
 */
export function unseen(text) {
  return h("span", { class: "unseen" }, text);
}
