/**
 * What the API gives, as far as the page reads it. The OpenAPI document has all of it.
 *
 * @typedef {"running" | "paused" | "finished" | "stopped" | "cancelled"} CrawlState
 * @typedef {{known: number, queued: number, delayed: number, leased: number, done: number, dead: number, cancelled: number,
 *   retried: number, lost: number, stale: number, duplicates: number}} Counts
 * @typedef {{host: string, waiting: number, rate: string, seconds_left: number}} LastHost
 * @typedef {{id: string, spider: string, state: CrawlState, reason: string, refusal: string, created: number,
 *   finished: number | null, counts: Counts, cost: number, budget: number | null, rate: number, eta_seconds: number | null,
 *   last_hosts: LastHost[], bound: string, workers: number, other_code: number, errors: number,
 *   kinds: {kind: string, waiting: number, workers: number}[], priority: number}} CrawlSummary
 * @typedef {CrawlSummary & {outcomes: Record<string, number>, rejected: Record<string, number>,
 *   notes: Record<string, number>, settings: Record<string, unknown>, places: Record<string, unknown>}} CrawlDetail
 * @typedef {{name: string, crawl: string, line: string, since: number}} Alert
 * @typedef {{version: string, frontier: string, store: string | null, archive: string | null, problems: string[],
 *   role: "admin" | "reader", spiders: string[], alerts: Alert[]}} Status
 * @typedef {{at: number, queued: number, delayed: number, leased: number, done: number, dead: number, retried: number,
 *   lost: number, outcomes: Record<string, number>, fetch_times: number[], received_bytes: number, workers: number,
 *   cost: number}} Point
 * @typedef {{worker: string, host: string, pid: number, machine: string, state: "at work" | "left" | "lost", pages: number,
 *   rate: number, busy: number, slots: number, memory_bytes: number, load: number, started: number, seen: number,
 *   left: number | null, version: string, troubles: string[], kinds: string[], other_code: boolean}} WorkerRow
 * @typedef {{host: string, waiting: number, in_flight: number, rate: string, interval: number, cap: number | null,
 *   starts_in: number, resting: boolean, why: string, known: number, has_rules: boolean, blocked?: boolean,
 *   boosted?: boolean}} HostRow
 * @typedef {{exit: string, host: string, requests: number, ok: number, blocked: number, failed: number, in_flight: number,
 *   bytes: number, seconds: number, cost: number, state: string, rests_for: number, machine: string, offered: boolean}} ExitRow
 * @typedef {{machine: string, pool: string, exits: number, workers: number}} OfferRow
 * @typedef {{key: string, url: string, data: Record<string, unknown>, first_seen: number, last_seen: number,
 *   changed_at: number, version: number, gone_at: number | null}} ItemRow
 * @typedef {{key: string, url: string, host: string, reason: string, detail: string, attempts: number, at: number,
 *   method: string, handler: string}} Letter
 * @typedef {{reason: string, count: number, meaning: string, samples: string[]}} Rejection
 * @typedef {{url: string, outcome: string, attempt: number, at: number, status: number, final_url: string, worker: string,
 *   exit: string, size: number, elapsed: number, error: string, archived: string, request: string}} FetchRow
 * @typedef {{key: string, url: string, crawl: string, last_seen: number, version: number, size: number,
 *   data: Record<string, unknown> | null}} PageItem
 * @typedef {{state: string, sentence: string, url: string, crawl: string, key: string | number, lane: string,
 *   task: {state: string, attempts: number, reason: string, detail: string, worker: string, due_in: number, losses: number},
 *   fetch: FetchRow | null, found_on: string | null, kept_out: string | null, maybe: string[], merged_with: string | null,
 *   merged: string[], request: string, pool: string, set_aside: string, untold: string,
 *   attempts: FetchRow[], items: PageItem[]}} Fate
 * @typedef {"queued" | "starting" | "running" | "finished" | "stopped" | "failed" | "cancelled" | "interrupted" | "skipped" | "missed"} RunState
 * @typedef {{run: string, due: number, state: RunState, started: number, ended: number, crawl: string, reason: string,
 *   log: string, number: number}} RunEntry
 * @typedef {{name: string, spider: string, origin: "file" | "api", cron: string, timezone: string, every: number,
 *   jitter: number, overlap: "skip" | "queue" | "cancel", missed: "skip" | "once", workers: number,
 *   arguments: Record<string, string>, settings: Record<string, unknown>, paused: boolean,
 *   state: "waits" | "runs" | "paused" | "unknown", next_start: number | null, next_local: string,
 *   current: RunEntry | null, waiting: RunEntry | null, last: RunEntry | null}} ScheduleRow
 */

export {};
