// graphile-worker: tuned (a local queue, completions in batches), or as documented (concurrency only).
import { load, main, url } from "./kit.mjs";
import { shape } from "./shape.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");
const pg = load("pg");

const quiet = new Logger(() => () => {});
const tuned = JSON.parse(process.argv[3] ?? "{}").tuned ?? true;

// A claim fills the local queue, and the next one waits until it is empty: the larger the queue, the fewer pauses. Workers
// do not wait for completions, so a delay makes batches larger without slowing the workers down.
const TUNED = {
  concurrentJobs: 24,
  maxPoolSize: 10,
  localQueue: { size: Math.max(shape.claimSize(5000), shape.concurrency ?? 24) },
  completeJobBatchDelay: 25,
  failJobBatchDelay: 25,
};
const AS_DOCUMENTED = { concurrentJobs: 24, maxPoolSize: 25 };

const slots = shape.concurrency ? { concurrentJobs: shape.concurrency } : {};
const preset = { worker: { connectionString: url, logger: quiet, ...(tuned ? TUNED : AS_DOCUMENTED), ...slots } };

await main({
  unfinished: "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)",

  async install() {
    await runMigrations({ preset });
  },

  async client(connections) {
    const pgPool = new pg.Pool({ connectionString: url, max: connections });
    pgPool.on("error", () => {});
    pgPool.on("connect", (client) => client.on("error", () => {}));
    const utils = await makeWorkerUtils({ pgPool, logger: quiet });
    return {
      enqueue: (n) => utils.addJob(shape.queueOf(n), shape.args(n), shape.isUnique ? { jobKey: String(n) } : {}),
      // Its named queues run one job at a time, so a task takes the place of a queue.
      enqueueMany: (numbers) =>
        utils.addJobs(numbers.map((n) => ({ identifier: shape.queueOf(n), payload: shape.args(n) }))),
      async close() {
        await utils.release();
        await pgPool.end();
      },
    };
  },

  async worker(onStart) {
    const task = (payload) => shape.handle(onStart, payload.n);
    const taskList = Object.fromEntries(shape.queueNames.map((name) => [name, task]));
    const runner = await run({ preset, taskList, noHandleSignals: true });
    return () => runner.stop();
  },
});
