// Lets `locksidecar conform` play its scenes to this client. docs/conformance.md describes what it reads and writes.

import { createInterface } from "node:readline";

import {
  type Client,
  ClosedError,
  DeadlockError,
  DeniedError,
  LimitError,
  type Lock,
  LockLostError,
  LockTimeoutError,
  NotHeldError,
  UnavailableError,
  UnconfirmedError,
  UnsupportedError,
  connect,
} from "./index.js";

interface Command {
  n: number;
  do: "open" | "acquire" | "cancel" | "release" | "check" | "close";
  socket?: string;
  as?: string;
  name?: string;
  wait_ms?: number;
  lease_ms?: number;
  max_hold_ms?: number;
  crash_delay_ms?: number;
  keep_ms?: number;
  owner?: number;
  target?: number;
  confirm?: boolean;
}

const words: [new (...args: never[]) => Error, string][] = [
  [UnconfirmedError, "unconfirmed"],
  [UnavailableError, "unavailable"],
  [LockTimeoutError, "timeout"],
  [LockLostError, "lost"],
  [NotHeldError, "not_held"],
  [DeadlockError, "deadlock"],
  [DeniedError, "denied"],
  [LimitError, "limit"],
  [UnsupportedError, "unsupported"],
  [ClosedError, "closed"],
];

let client: Client;
let locks = new Map<string, Lock>();
let owners = new Map<number, number>();
let cancels = new Map<number, AbortController>();

function report(fields: Record<string, unknown>): void {
  process.stdout.write(JSON.stringify(fields) + "\n");
}

function failure(error: unknown): Record<string, unknown> {
  const known = words.find(([kind]) => error instanceof kind);
  const canceled = error instanceof Error && error.name === "AbortError";
  const reason = error instanceof LockLostError ? error.reason : undefined;
  return { error: known?.[1] ?? (canceled ? "canceled" : "other"), reason, msg: String(error) };
}

async function execute(c: Command): Promise<Record<string, unknown>> {
  switch (c.do) {
    case "open":
      [locks, owners, cancels] = [new Map(), new Map(), new Map()];
      client = await connect({ path: c.socket! });
      return { ok: true };
    case "acquire": {
      const controller = new AbortController();
      cancels.set(c.n, controller);
      if (c.owner !== undefined && !owners.has(c.owner)) owners.set(c.owner, client.newOwner());
      const lock = await client.lock(c.name!, {
        signal: controller.signal,
        ...(c.wait_ms !== undefined && { timeoutMs: c.wait_ms }),
        ...(c.lease_ms !== undefined && { leaseMs: c.lease_ms }),
        ...(c.max_hold_ms !== undefined && { maxHoldMs: c.max_hold_ms }),
        ...(c.crash_delay_ms !== undefined && { crashDelayMs: c.crash_delay_ms }),
        ...(c.keep_ms !== undefined && { keepMs: c.keep_ms }),
        ...(c.owner !== undefined && { owner: owners.get(c.owner)! }),
      });
      locks.set(c.as!, lock);
      const onLost = () => {
        if (lock.signal.reason instanceof LockLostError) report({ lost: c.as, reason: lock.signal.reason.reason });
      };
      if (lock.signal.aborted) onLost();
      else lock.signal.addEventListener("abort", onLost);
      return { ok: true, token: String(lock.token) };
    }
    case "cancel":
      cancels.get(c.target!)!.abort();
      return { ok: true };
    case "release":
      await locks.get(c.as!)!.release({ confirm: c.confirm ?? false });
      return { ok: true };
    case "check":
      try {
        await locks.get(c.as!)!.check();
        return { held: true };
      } catch (error) {
        return { held: false, ...failure(error) };
      }
    case "close":
      await client.close();
      return { ok: true };
  }
}

report({
  driver: "typescript/0.1.0",
  features: ["resume", "owners", "concurrent", "cancel", "limit", "confirm", "lease", "max_hold", "crash_delay", "keep", "notify"],
});
createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line) as Command;
  execute(command).then(
    (fields) => report({ n: command.n, ...fields }),
    (error: unknown) => report({ n: command.n, ...failure(error) }),
  );
});
