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
  type Permits,
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
  permits?: number;
  of?: number;
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
let handles = new Map<string, Lock | Permits>();
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
      [handles, owners, cancels] = [new Map(), new Map(), new Map()];
      client = await connect({ path: c.socket! });
      return { ok: true };
    case "acquire": {
      const controller = new AbortController();
      cancels.set(c.n, controller);
      if (c.owner !== undefined && !owners.has(c.owner)) owners.set(c.owner, client.newOwner());
      const options = {
        signal: controller.signal,
        ...(c.wait_ms !== undefined && { timeoutMs: c.wait_ms }),
        ...(c.lease_ms !== undefined && { leaseMs: c.lease_ms }),
        ...(c.max_hold_ms !== undefined && { maxHoldMs: c.max_hold_ms }),
        ...(c.crash_delay_ms !== undefined && { crashDelayMs: c.crash_delay_ms }),
      };
      const handle =
        c.of !== undefined
          ? await client.semaphore(c.name!, c.of).acquire(c.permits, options)
          : await client.lock(c.name!, {
              ...options,
              ...(c.keep_ms !== undefined && { keepMs: c.keep_ms }),
              ...(c.owner !== undefined && { owner: owners.get(c.owner)! }),
            });
      handles.set(c.as!, handle);
      const onLost = () => {
        if (handle.signal.reason instanceof LockLostError) report({ lost: c.as, reason: handle.signal.reason.reason });
      };
      if (handle.signal.aborted) onLost();
      else handle.signal.addEventListener("abort", onLost);
      return { ok: true, ...("token" in handle && { token: String(handle.token) }) };
    }
    case "cancel":
      cancels.get(c.target!)!.abort();
      return { ok: true };
    case "release":
      await handles.get(c.as!)!.release({ confirm: c.confirm ?? false });
      return { ok: true };
    case "check":
      try {
        await handles.get(c.as!)!.check();
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
  features: ["resume", "owners", "concurrent", "cancel", "limit", "confirm", "lease", "max_hold", "crash_delay", "keep", "permits", "notify"],
});
createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line) as Command;
  execute(command).then(
    (fields) => report({ n: command.n, ...fields }),
    (error: unknown) => report({ n: command.n, ...failure(error) }),
  );
});
