// pg-boss: batches of 1,000 with several workers in one process, because each worker sleeps for its polling interval.
//
// It has no notifications; half a second is the shortest interval that it accepts.
import { load, main, url } from "./kit.mjs";

const PgBoss = load("pg-boss");
const QUEUE = "noop";
const WORKERS = 10;
const BATCH = 1000;

async function open(connections) {
  const boss = new PgBoss({ connectionString: url, max: connections, schedule: false, supervise: false });
  boss.on("error", () => {});
  await boss.start();
  return boss;
}

await main({
  unfinished: "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = 'noop' AND state < 'completed')",

  async install() {
    const boss = await open(2);
    await boss.createQueue(QUEUE);
    await boss.stop({ graceful: false });
  },

  async client(connections) {
    const boss = await open(connections);
    return {
      enqueue: (n) => boss.send(QUEUE, { n }),
      enqueueMany: (numbers) => boss.insert(numbers.map((n) => ({ name: QUEUE, data: { n } }))),
      close: () => boss.stop({ graceful: false, close: true }),
    };
  },

  async worker(onStart) {
    const boss = await open(WORKERS);
    for (let i = 0; i < WORKERS; i++) {
      await boss.work(QUEUE, { batchSize: BATCH, pollingIntervalSeconds: 0.5 }, async (jobs) => {
        for (const job of jobs) onStart(job.data.n);
      });
    }
    return () => boss.stop({ graceful: false, close: true });
  },
});
