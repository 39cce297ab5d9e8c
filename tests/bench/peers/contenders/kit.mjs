// The workloads for contenders on Node: the counterpart of kit/, measured the same way.
//
// A contender has: unfinished (SQL query: is a job waiting or running?), install(), client(connections) with enqueue(n),
// enqueueMany(numbers) and close(), and worker(onStart), which returns a function that stops it. `shape` says what the jobs
// are like, as kit/shape.py does.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

import { params, shape, sleep } from "./shape.mjs";

// The packages are installed outside the tree, where an import does not find them.
export const load = createRequire(`${process.env.BENCH_NODE}/`);
const pg = load("pg");

export const url = process.env.BENCH_DATABASE_URL;
const now = () => process.hrtime.bigint();
const ms = (ns) => Number(ns) / 1e6;

const POLL_INTERVAL_MS = 5;
const FINISH_TIMEOUT_MS = 60_000;
const START_TIMEOUT_MS = 10_000; // after this, percentiles are of the jobs that have started

async function connected(use) {
  const connection = new pg.Client({ connectionString: url });
  await connection.connect();
  try {
    return await use(connection);
  } finally {
    await connection.end();
  }
}

const value = async (connection, sql) => Object.values((await connection.query(sql)).rows[0])[0];
const walPosition = async (connection) =>
  Number(await value(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"));

async function settle(connection, { vacuum }) {
  if (vacuum) await connection.query("VACUUM ANALYZE");
  await connection.query("CHECKPOINT");
}

async function fill(client, jobs, perCall) {
  for (let first = 0; first < jobs; first += perCall) {
    await client.enqueueMany(numbers(first, Math.min(first + perCall, jobs)));
  }
}

function numbers(first, end) {
  return Array.from({ length: end - first }, (_, i) => first + i);
}

// A seeded generator (mulberry32): the same arrivals in each round.
function randomGenerator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function thirds(starts) {
  const cuts = [0, Math.floor(starts.length / 3), Math.floor((2 * starts.length) / 3), starts.length - 1];
  return [0, 1, 2].map((i) => (cuts[i + 1] - cuts[i]) / (Number(starts[cuts[i + 1]] - starts[cuts[i]]) / 1e9));
}

function latencies(acknowledged, started) {
  const waits = [];
  for (const [number, at] of acknowledged) {
    if (started.has(number)) waits.push(ms(started.get(number) - at));
  }
  waits.sort((a, b) => a - b);
  if (waits.length === 0) return { measured: 0 };
  const percentile = (share) => waits[Math.min(waits.length - 1, Math.floor(waits.length * share))];
  return {
    measured: waits.length,
    p50_ms: percentile(0.5),
    p95_ms: percentile(0.95),
    p99_ms: percentile(0.99),
    max_ms: waits.at(-1),
  };
}

async function drain(contender, { jobs, processes = 0, pinned = false, timeout_s = 120 }) {
  await contender.install();
  const client = await contender.client(2);
  await fill(client, jobs, shape.batchSize());
  await client.close();
  return connected(async (connection) => {
    await settle(connection, { vacuum: true });
    let pin;
    if (pinned) {
      pin = new pg.Client({ connectionString: url });
      await pin.connect();
      await pin.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
      await pin.query("SELECT count(*) FROM pg_class"); // the first statement takes the snapshot
    }
    const before = await walPosition(connection);
    const workers = processes ? await workerProcesses(processes) : await ownWorker(contender, jobs, timeout_s);
    const until = Date.now() + (processes ? timeout_s * 1000 : FINISH_TIMEOUT_MS);
    while (await value(connection, contender.unfinished)) {
      if (Date.now() > until) throw new Error("jobs are still unfinished long after the last handler");
      await sleep(POLL_INTERVAL_MS);
    }
    const end = now();
    const starts = await workers.starts();
    await workers.stop();
    const written = (await walPosition(connection)) - before;
    await pin?.end();
    const seconds = Number(end - starts[0]) / 1e9;
    const rates = { jobs_per_s: jobs / seconds, thirds: thirds(starts.slice(0, jobs)) };
    return { jobs, seconds, ...rates, wal_bytes_per_job: written / jobs, handler_calls: starts.length };
  });
}

// Run a worker in this process until all jobs have started.
async function ownWorker(contender, jobs, timeout_s) {
  const starts = [];
  let allStarted;
  const all = new Promise((resolve, reject) => {
    allStarted = resolve;
    setTimeout(() => reject(new Error(`not all jobs started within ${timeout_s} s`)), timeout_s * 1000).unref();
  });
  const stop = await contender.worker(() => {
    starts.push(now());
    if (starts.length === jobs) allStarted();
  });
  await all;
  return { starts: async () => starts, stop };
}

// Run workers in other processes, which start at the same time and tell their starts at the end.
async function workerProcesses(processes) {
  const children = [];
  for (let i = 0; i < processes; i++) children.push(await workerProcess({ held: true }));
  for (const child of children) child.release();
  return {
    async starts() {
      const told = await Promise.all(children.map((child) => child.starts(0)));
      return told.flatMap((starts) => [...starts.values()]).sort((a, b) => (a < b ? -1 : 1));
    },
    stop: () => Promise.all(children.map((child) => child.stop())),
  };
}

async function produce(client, jobs, producers) {
  const share = async (first) => {
    for (let number = first; number < jobs; number += producers) await client.enqueue(number);
  };
  await Promise.all(numbers(0, producers).map(share));
}

async function enqueue(
  contender,
  { mode, jobs, per_call = shape.batchSize(), producers = 32, connections = 10, worker = false },
) {
  await contender.install();
  const workerChild = worker ? await workerProcess({}) : undefined;
  const client = await contender.client(mode === "producers" ? connections : 1);
  for (let number = 0; number < 50; number++) await client.enqueue(-1 - number); // a unique key may be made of it
  if (mode === "producers") await produce(client, 5 * producers, producers);
  await connected((connection) => settle(connection, { vacuum: false }));
  const startedAt = now();
  if (mode === "one") {
    for (let number = 0; number < jobs; number++) await client.enqueue(number);
  } else if (mode === "bulk") {
    await fill(client, jobs, per_call);
  } else {
    await produce(client, jobs, producers);
  }
  const seconds = Number(now() - startedAt) / 1e9;
  await client.close();
  await workerChild?.stop();
  return { jobs, seconds, jobs_per_s: jobs / seconds };
}

async function warmUp(client) {
  for (let number = 0; number < 20; number++) {
    await client.enqueue(-1 - number);
    await sleep(20);
  }
  await connected((connection) => settle(connection, { vacuum: false }));
  await sleep(500);
}

async function latency(contender, { jobs, seed = 1 }) {
  const random = randomGenerator(seed);
  await contender.install();
  const workerChild = await workerProcess({ expect: jobs });
  const client = await contender.client(1);
  await warmUp(client);
  const acknowledged = new Map();
  for (let number = 0; number < jobs; number++) {
    await client.enqueue(number);
    acknowledged.set(number, now());
    await sleep(15 + 10 * random());
  }
  const started = await workerChild.starts(START_TIMEOUT_MS);
  await client.close();
  await workerChild.stop();
  return { jobs, ...latencies(acknowledged, started) };
}

async function steady(contender, { rate, seconds, connections = 10, seed = 1 }) {
  const random = randomGenerator(seed);
  const times = [];
  for (let time = 0; (time += -Math.log(1 - random()) / rate) < seconds; ) times.push(time);
  const jobs = times.length;
  await contender.install();
  const workerChild = await workerProcess({ expect: jobs });
  const client = await contender.client(connections);
  await warmUp(client);
  const acknowledged = new Map();
  const startedAt = now();
  const sending = [];
  for (const [number, time] of times.entries()) {
    const ahead = time * 1000 - ms(now() - startedAt);
    if (ahead > 0) await sleep(ahead);
    sending.push(client.enqueue(number).then(() => acknowledged.set(number, now())));
  }
  await Promise.all(sending);
  const started = await workerChild.starts(START_TIMEOUT_MS);
  await client.close();
  await workerChild.stop();
  let last = startedAt;
  for (const at of started.values()) if (at > last) last = at;
  const behind = ms(last - startedAt) / 1000 - times.at(-1);
  const keptUp = started.size === jobs && behind <= Math.max(0.25, 0.05 * seconds);
  return { jobs, kept_up: keptUp, ...latencies(acknowledged, started) };
}

// Run the worker process: print "ready", then the start times, and exit when standard input is closed.
// With `held`, the worker starts after "ready", when a line arrives.
async function runWorker(contender, { expect = 0, held = false }) {
  const started = [];
  const input = new Promise((resolve) => process.stdin.once("data", resolve));
  if (held) {
    console.log("ready");
    await input;
  }
  let closed = false;
  // An exit cuts off what the other end of the pipe has not read yet, so wait until it is written.
  const printStarts = () => new Promise((resolve) => process.stdout.write(`${JSON.stringify(started)}\n`, resolve));
  const stop = await contender.worker((number) => {
    if (number < 0) return;
    started.push([number, now().toString()]);
    if (started.length === expect && !closed) printStarts();
  });
  if (!held) {
    await sleep(500);
    console.log("ready");
  }
  process.stdin.resume();
  await new Promise((resolve) => process.stdin.on("end", resolve));
  closed = true;
  if (held || started.length < expect) await printStarts();
  await Promise.race([stop(), sleep(5000)]);
  process.exit(0);
}

async function workerProcess(own) {
  const child = spawn(process.execPath, [process.argv[1], "worker", JSON.stringify({ ...params, ...own })], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const exited = new Promise((resolve) => child.on("exit", resolve));
  const first = await lines.next();
  if (first.value !== "ready") throw new Error(`the worker process did not start: ${first.value}`);
  return {
    release: () => child.stdin.write("\n"),
    async starts(timeout) {
      const line = lines.next();
      const inTime = await Promise.race([line.then(() => true), sleep(timeout).then(() => false)]);
      if (!inTime) child.stdin.end();
      return new Map(JSON.parse((await line).value).map(([number, at]) => [number, BigInt(at)]));
    },
    async stop() {
      child.stdin.end();
      await exited;
    },
  };
}

const WORKLOADS = { drain, enqueue, latency, steady, worker: runWorker };

export async function main(contender) {
  const result = await WORKLOADS[process.argv[2]](contender, params);
  console.log(JSON.stringify(result));
  process.exit(0);
}
