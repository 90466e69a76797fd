import { readFileSync } from "node:fs";

/**
 * Reads CLOCK_BOOTTIME in ns, the clock of all deadlines (SPEC.md §5.3). Node has no function for it, and its own
 * clocks stop while the host is suspended. /proc/uptime has that clock, rounded down to 10 ms: the 10 ms that are
 * added make the reading late rather than early.
 */
export function boottime(): bigint {
  const [seconds, hundredths] = readFileSync("/proc/uptime", "latin1").split(" ", 1)[0]!.split(".");
  return BigInt(seconds!) * 1_000_000_000n + (BigInt(hundredths!) + 1n) * 10_000_000n;
}
