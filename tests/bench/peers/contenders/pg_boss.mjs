// pg-boss: batches of 1,000 with several workers in one process, because each worker sleeps for its polling interval.
//
// It has no notifications; half a second is the shortest interval that it accepts.
import { load, main, url } from "./kit.mjs";
import { shape } from "./shape.mjs";

const PgBoss = load("pg-boss");
const WORKERS = 10;
const BATCH = 1000;

async function open(connections) {
  const boss = new PgBoss({ connectionString: url, max: connections, schedule: false, supervise: false });
  boss.on("error", () => {});
  await boss.start();
  return boss;
}

await main({
  unfinished: "SELECT EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')",

  async install() {
    const boss = await open(2);
    const policy = shape.isUnique ? { policy: "short" } : {};
    for (const name of shape.queueNames) await boss.createQueue(name, { name, ...policy });
    await boss.stop({ graceful: false });
  },

  async client(connections) {
    const boss = await open(connections);
    return {
      enqueue: (n) => boss.send(shape.queueOf(n), shape.args(n), shape.isUnique ? { singletonKey: String(n) } : {}),
      enqueueMany: (numbers) => boss.insert(numbers.map((n) => ({ name: shape.queueOf(n), data: shape.args(n) }))),
      close: () => boss.stop({ graceful: false, close: true }),
    };
  },

  async worker(onStart) {
    const boss = await open(WORKERS);
    // The jobs of a batch run at the same time, so the slots are divided among the workers.
    const batchSize = shape.concurrency ? shape.concurrency / WORKERS : shape.claimSize(BATCH);
    const workers = shape.queueNames.length > 1 ? 1 : WORKERS;
    for (const name of shape.queueNames) {
      for (let i = 0; i < workers; i++) {
        await boss.work(name, { batchSize, pollingIntervalSeconds: 0.5 }, (jobs) =>
          Promise.all(jobs.map((job) => shape.handle(onStart, job.data.n))),
        );
      }
    }
    return () => boss.stop({ graceful: false, close: true });
  },
});
