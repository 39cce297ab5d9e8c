// What the jobs of a workload are like: the counterpart of kit/shape.py.
import { createHash } from "node:crypto";

export const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

const BATCH = 10_000;
const BATCH_BYTES = 20_000_000;
export const params = JSON.parse(process.argv[3] ?? "{}");
const isDrain = process.argv[2] === "drain" || params.held;
const text = params.argument_bytes ? { text: randomText(params.argument_bytes) } : {};
const queueNames = ["default", ...Array.from({ length: (params.queues ?? 1) - 1 }, (_, i) => `queue-${i + 1}`)];

export const shape = {
  concurrency: params.concurrency,
  isUnique: params.unique ?? false,
  queueNames,
  batchSize: (most = BATCH) => Math.max(1, Math.min(most, Math.floor(BATCH_BYTES / (params.argument_bytes || 1)))),
  // The size of a claim that otherwise takes up to `most`. A claim of all jobs would not be measured: the time of a drain
  // runs from the first handler's start.
  claimSize: (most) => shape.batchSize(isDrain ? Math.min(most, Math.ceil(params.jobs / 20)) : most),
  args: (n) => ({ n, ...text }),
  queueOf: (n) => queueNames[((n % queueNames.length) + queueNames.length) % queueNames.length],
  handle: params.handler_ms
    ? async (onStart, n) => {
        onStart(n);
        await sleep(params.handler_ms);
      }
    : async (onStart, n) => onStart(n),
};

// A text that cannot be compressed: the same as in kit/shape.py.
export function randomText(characters) {
  const blocks = Array.from({ length: Math.floor(characters / 32) + 1 }, (_, n) => String(n));
  const digests = blocks.map((block) => createHash("sha256").update(block).digest());
  return Buffer.concat(digests).toString("base64").slice(0, characters);
}
