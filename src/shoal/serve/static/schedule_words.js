/** When a schedule runs, in words. What has no plain words keeps its expression: a wrong word is worse than none. */

const DAY_NAMES = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const SHORT_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MOST_TIMES = 4;
/** @type {[string, number][]} */
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
/** @type {Record<string, string>} */
const ALIASES = {
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
};

/**
 * @param {{cron: string, every: number}} timing `every` is in seconds; 0: by the cron expression
 * @returns {string}
 */
export function whenInWords({ cron, every }) {
  return every ? interval(every) : cronInWords(cron) || cron;
}

/** @param {number} seconds */
function interval(seconds) {
  const [unit, size] = UNITS.find(([, one]) => seconds % one === 0) ?? ["second", 1];
  return everyOf(seconds / size, unit);
}

/**
 * @param {number} number
 * @param {string} unit
 */
function everyOf(number, unit) {
  return number === 1 ? `every ${unit}` : `every ${number} ${unit}s`;
}

/**
 * @param {string} cron
 * @returns {string} empty: there are no plain words for it
 */
function cronInWords(cron) {
  const text = cron.trim().toLowerCase();
  const fields = (ALIASES[text] ?? text).split(/\s+/);
  if (fields.length !== 5) return "";
  const [minute, hour, day, month, weekday] = fields;
  const days = month === "*" ? daysInWords(day, weekday) : "";
  const times = days && timesInWords(minute, hour);
  if (!times) return "";
  if (days === "every day") return times.startsWith("every") ? times : `${days} ${times}`;
  return times.startsWith("every") ? `${times}, ${days}` : `${days} ${times}`;
}

/**
 * @param {string} minute
 * @param {string} hour
 */
function timesInWords(minute, hour) {
  if (hour === "*") {
    const step = stepOf(minute, 60);
    if (step) return everyOf(step, "minute");
    const at = numberOf(minute, 59);
    if (at === null) return "";
    return at === 0 ? "every hour" : `every hour at minute ${at}`;
  }
  const at = numberOf(minute, 59);
  if (at === null) return "";
  const step = stepOf(hour, 24);
  if (step) return `${everyOf(step, "hour")}${at === 0 ? "" : ` at minute ${at}`}`;
  const hours = hour.split(",").map((one) => numberOf(one, 23));
  if (hours.length > MOST_TIMES || hours.includes(null)) return "";
  return `at ${listed(hours.map((one) => `${two(one ?? 0)}:${two(at)}`))}`;
}

/**
 * @param {string} day
 * @param {string} weekday
 */
function daysInWords(day, weekday) {
  if (day === "*" && weekday === "*") return "every day";
  if (weekday === "*") {
    if (day === "l") return "on the last day of each month";
    // The 29th to the 31st are not in every month.
    const number = numberOf(day, 28);
    return number ? `on day ${number} of each month` : "";
  }
  if (day !== "*") return "";
  const [first, last, ...more] = weekday.split("-").map(dayOf);
  if (last !== undefined && !more.length) {
    return first !== null && last !== null && first < last && last - first < 6 ? `${nameOf(first)} to ${nameOf(last)}` : "";
  }
  const days = weekday.split(",").map(dayOf);
  return days.includes(null) ? "" : listed(days.map((one) => nameOf(one ?? 0)));
}

/**
 * Every so many of a field, from 0 on; only where the last step of a round is as long as the others.
 * @param {string} text
 * @param {number} whole
 */
function stepOf(text, whole) {
  if (text === "*") return 1;
  const step = Number(/^\*\/(\d{1,2})$/.exec(text)?.[1] ?? 0);
  return step > 0 && step < whole && whole % step === 0 ? step : 0;
}

/**
 * @param {string} text
 * @param {number} most
 */
function numberOf(text, most) {
  return /^\d{1,2}$/.test(text) && Number(text) <= most ? Number(text) : null;
}

/** @param {string} text */
function dayOf(text) {
  const index = SHORT_DAYS.indexOf(text);
  return index >= 0 ? index : numberOf(text, 7);
}

/** @param {number} day 0 and 7 are Sunday */
function nameOf(day) {
  return DAY_NAMES[day % 7];
}

/** @param {number} number */
function two(number) {
  return String(number).padStart(2, "0");
}

/** @param {string[]} words */
function listed(words) {
  const last = words.at(-1) ?? "";
  return words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${last}` : last;
}
