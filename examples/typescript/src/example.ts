// Two workers want one lock, and three want the two permits of a semaphore. Run it beside a sidecar: node dist/example.js [NAME]

import { setTimeout as sleep } from "node:timers/promises";

import { LockTimeoutError, connect } from "./index.js";

await using client = await connect();
const name = process.argv[2] ?? "example";

async function work(worker: string): Promise<void> {
  // Waits for at most 5 s. The lock is released at the end of the function, however it ends.
  await using lock = await client.lock(name, { timeoutMs: 5_000 });
  console.log(`${worker} holds ${lock.name} with the token ${lock.token}`);
  // What takes long gets the signal, and ends when the lock is lost.
  await sleep(50, undefined, { signal: lock.signal });
  await lock.check();
  console.log(`${worker} is done`);
}

await Promise.all([work("first"), work("second")]);

{
  await using held = await client.lock(name);
  await client.tryLock(name).catch((error: unknown) => {
    if (!(error instanceof LockTimeoutError)) throw error;
    console.log(`while ${held.name} is held, tryLock fails`);
  });
}

let working = 0;
const slots = client.semaphore(`${name}:slots`, 2);

async function slot(): Promise<number> {
  await using permits = await slots.acquire();
  const now = ++working;
  await sleep(50, undefined, { signal: permits.signal });
  working--;
  return now;
}

const most = Math.max(...(await Promise.all([slot(), slot(), slot()])));
console.log(`of three workers, ${most} had permits of ${slots.name} at one time`);
