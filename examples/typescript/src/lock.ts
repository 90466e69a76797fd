import { boottime } from "./boottime.js";
import { LockLostError, type LocksidecarError, NotHeldError } from "./errors.js";

/** What a handle needs of the session that granted it. */
export interface Holder {
  /** Sends a release of one entry, if the sidecar may have the hold. */
  sendRelease(hold: Hold): void;
  /** Waits until Redis has executed the release of the hold. */
  confirm(hold: Hold, signal?: AbortSignal): Promise<void>;
}

/** One granted request, with the handles of its entries. */
export class Hold {
  entries = 0;
  /** Why the hold ended without a release. */
  ended: LocksidecarError | undefined;
  /** The session that had it was not resumed: it lasts until its deadline, and the sidecar does not know it. */
  orphaned = false;
  readonly handles = new Set<Handle>();
  private timer: NodeJS.Timeout | undefined;

  constructor(
    readonly holder: Holder,
    readonly name: string,
    readonly number: bigint,
    readonly token: bigint,
    /** It has a fixed lease: lease events do not apply to it. */
    readonly fixed: boolean,
    /** When max_hold ends, in CLOCK_BOOTTIME. */
    private readonly maxHoldEnd: bigint | undefined,
    private deadline: bigint,
    /** What is held, for messages. */
    readonly subject: string,
  ) {
    this.setTimer();
  }

  /** Until when the holder may rely on the hold. */
  get end(): bigint {
    return this.maxHoldEnd !== undefined && this.maxHoldEnd < this.deadline ? this.maxHoldEnd : this.deadline;
  }

  /** A deadline that the sidecar sent. Only a later one counts. */
  extend(deadline: bigint): void {
    if (deadline > this.deadline) {
      this.deadline = deadline;
      this.setTimer();
    }
  }

  /** Ends the hold without a release. The first reason counts. */
  lose(why: LocksidecarError): void {
    this.stopTimer();
    this.ended ??= why;
    for (const handle of this.handles) handle.onLost(this.ended);
    this.handles.clear();
  }

  /** The error for a loss. */
  lost(reason: string): LockLostError {
    return new LockLostError(this.name, reason, this.subject);
  }

  stopTimer(): void {
    clearTimeout(this.timer);
  }

  /**
   * Decides whether the hold has ended by its deadline, after everything that had arrived by now was handled: a lease
   * event may wait in the socket (SPEC.md §5.2).
   */
  async decide(): Promise<void> {
    if (this.ended !== undefined || boottime() < this.end) return;
    await arrived();
    const now = boottime();
    if (this.ended !== undefined || this.entries === 0 || now < this.end) return;
    const entries = this.entries;
    this.lose(this.lost(this.maxHoldEnd !== undefined && now >= this.maxHoldEnd ? "max_hold" : "expired"));
    for (let i = 0; i < entries; i++) this.holder.sendRelease(this);
    this.entries = 0;
  }

  private setTimer(): void {
    clearTimeout(this.timer);
    // The clock of the timer stops while the host is suspended, so it may fire late; check() is never late. It does not
    // keep the process running.
    const left = Number((this.end - boottime()) / 1_000_000n) + 1;
    this.timer = setTimeout(
      () => {
        void this.decide().then(() => {
          if (this.ended === undefined && this.entries > 0) this.setTimer();
        });
      },
      Math.min(Math.max(left, 1), 3_600_000),
    );
    this.timer.unref();
  }
}

/** Returns when everything that has arrived by now was read: after a whole turn of the event loop. */
function arrived(): Promise<void> {
  return new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
}

/** A handle for what was acquired, and for exactly one release. `await using` releases it at the end of its block. */
abstract class Handle implements AsyncDisposable {
  private readonly controller = new AbortController();
  private released = false;

  constructor(protected readonly hold: Hold) {
    hold.entries++;
    hold.handles.add(this);
    if (hold.ended !== undefined) this.onLost(hold.ended);
  }

  get name(): string {
    return this.hold.name;
  }

  /** Is aborted at the loss, with the LockLostError as its reason: also at the deadline, if no sidecar answers. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Whether it is certainly held now. It reads the clock. False may also mean that it takes a `check` to know. */
  get held(): boolean {
    return !this.released && this.hold.ended === undefined && boottime() < this.hold.end;
  }

  /** Throws LockLostError after a loss, and NotHeldError after the release. */
  async check(): Promise<void> {
    await this.hold.decide();
    if (this.released) throw this.notHeld();
    if (this.hold.ended !== undefined) throw this.hold.ended;
  }

  /**
   * Releases what is held. Does not wait for the sidecar; with `confirm` it waits until Redis has executed the release,
   * so that another host that is signalled after that finds it free. Throws LockLostError after a loss, NotHeldError
   * after an earlier release, UnconfirmedError if only the confirmation is missing.
   */
  async release(options: { confirm?: boolean; signal?: AbortSignal } = {}): Promise<void> {
    if (this.released) throw this.notHeld();
    if (!this.held) await this.check();
    // Another call may have released it while this one has waited.
    if (this.released) throw this.notHeld();
    this.released = true;
    const hold = this.hold;
    hold.handles.delete(this);
    hold.entries--;
    if (hold.entries === 0) hold.stopTimer();
    hold.holder.sendRelease(hold);
    if (options.confirm) await hold.holder.confirm(hold, options.signal);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.released) await this.release();
  }

  /** Called by the hold. */
  onLost(why: LocksidecarError): void {
    this.controller.abort(why);
  }

  private notHeld(): NotHeldError {
    return new NotHeldError(`${this.hold.subject} was released before; acquire it again`);
  }
}

/** A handle for one entry of a lock. */
export class Lock extends Handle {
  /** The fencing token: larger for every later hold of the lock. Write it into what the lock protects before anything is read. */
  get token(): bigint {
    return this.hold.token;
  }
}

/** A handle for permits of a semaphore. They have no fencing token, because others have permits at the same time. */
export class Permits extends Handle {
  constructor(
    hold: Hold,
    /** How many are held. */
    readonly permits: number,
    /** How many the semaphore has: fewer than the acquire named, if a policy of the host says so. */
    readonly of: number,
  ) {
    super(hold);
  }
}
