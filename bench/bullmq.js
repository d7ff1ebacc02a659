// BullMQ's own speed: adds N jobs in bulk, then processes them with one worker. Prints one line of JSON.
// Usage: node bullmq.js PORT JOBS CONCURRENCY

const { createRequire } = require("node:module");
const path = require("node:path");

// The packages lie in the folder this is started in.
const wanted = createRequire(path.join(process.cwd(), "package.json"));
const { Queue, Worker } = wanted("bullmq");

const BATCH = 1000;
const [port, jobs, concurrency] = process.argv.slice(2).map(Number);
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const seconds = (since) => Number(process.hrtime.bigint() - since) / 1e9;
const payload = (number) => ({ url: `https://host-000001.example.com/catalogue/item-${String(number).padStart(9, "0")}/index.html` });

async function add(queue) {
  const since = process.hrtime.bigint();
  for (let first = 0; first < jobs; first += BATCH) {
    const batch = Array.from({ length: Math.min(BATCH, jobs - first) }, (_, place) => ({
      name: "page",
      data: payload(first + place),
      opts: { removeOnComplete: true },
    }));
    await queue.addBulk(batch);
  }
  return jobs / seconds(since);
}

function processAll() {
  return new Promise((resolve, reject) => {
    let done = 0;
    let since = process.hrtime.bigint();
    const worker = new Worker("bench", async () => {}, { connection, concurrency });
    worker.on("ready", () => { since = process.hrtime.bigint(); });
    worker.on("error", reject);
    worker.on("completed", async () => {
      done += 1;
      if (done === jobs) {
        const rate = jobs / seconds(since);
        await worker.close();
        resolve(rate);
      }
    });
  });
}

async function main() {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const added = await add(queue);
  const processed = await processAll();
  await queue.close();
  console.log(JSON.stringify({ added_per_second: added, processed_per_second: processed }));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
