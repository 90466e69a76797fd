import type { Permits } from "./lock.js";

/** How to wait for a lock or for permits, and how to hold them. */
export interface AcquireOptions {
  /** How long to wait, in ms. Default: without limit. */
  timeoutMs?: number;
  /** Ends the wait. */
  signal?: AbortSignal;
  /** A fixed lease, in ms: the hold is lost after it. Default: the sidecar renews the hold until the release. */
  leaseMs?: number;
  /** How long the hold may last, in ms. Default: without limit. */
  maxHoldMs?: number;
  /** How much longer the hold lasts if this process dies, in ms. Default: 0. */
  crashDelayMs?: number;
}

/** A number of permits that clients of all hosts share. Client.semaphore() makes it. */
export class Semaphore {
  constructor(
    readonly name: string,
    /** How many permits there are. Clients should name the same number; none is stored. */
    readonly of: number,
    private readonly request: (permits: number, options: AcquireOptions) => Promise<Permits>,
  ) {}

  /**
   * Acquires permits, and waits for them, in the order of the requests. Each call has permits of its own: one that waits
   * while its caller has others may wait for its own. Whatever error it throws, no more is held than before.
   */
  acquire(permits = 1, options: AcquireOptions = {}): Promise<Permits> {
    return this.request(permits, options);
  }

  /** Acquires permits if so many are free, and no earlier request waits; throws LockTimeoutError if not. */
  tryAcquire(permits = 1, options: Omit<AcquireOptions, "timeoutMs"> = {}): Promise<Permits> {
    return this.acquire(permits, { ...options, timeoutMs: 0 });
  }
}
