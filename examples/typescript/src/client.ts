import { type Socket, createConnection } from "node:net";

import { boottime } from "./boottime.js";
import {
  BadRequestError,
  ClosedError,
  DeniedError,
  LocksidecarError,
  ProtocolError,
  UnavailableError,
  UnconfirmedError,
  UnsupportedError,
  errorOf,
} from "./errors.js";
import { Hold, type Holder, Lock, Permits } from "./lock.js";
import { Fields, FrameReader, MAX_CLAIMS, MAX_PERMITS, Violation, frame } from "./protocol.js";
import { type AcquireOptions, Semaphore } from "./semaphore.js";

const SECOND = 1_000_000_000n;
const HELLO_TIMEOUT = 5_000; // ms, for the answer to hello
const BYE_TIMEOUT = 1_000; // ms, for the answer to bye
const FIRST_PAUSE = 5; // ms, between two attempts to connect; doubles up to one of the next two
const LONGEST_PAUSE = 500;
const LONGEST_LOOK = 100; // while no sidecar listens
const MAX_TICKET = 128; // bytes

export interface ConnectOptions {
  /** The path of the socket. Default: $LOCKSIDECAR_SOCKET, or /run/locksidecar/locksidecar.sock. */
  path?: string;
  /** Name and version of the program, for operators. */
  name?: string;
  /** For how long a call waits while no sidecar serves the client, in ms. Default: 10,000, and 2,000 for connect(). */
  patienceMs?: number;
}

export interface LockOptions extends AcquireOptions {
  /** The lock stays held so long after its grant, however the hold ends, in ms. Default: 0. */
  keepMs?: number;
  /** The owner that may re-enter the lock, from Client.newOwner(). Default: each lock has an owner of its own. */
  owner?: number;
}

/**
 * How far the session has come on its connection.
 *
 *                    connect                 answer: resumed             last claim answered
 *     disconnected ───────────► greeting ──────────────────► claiming ──────────────────────► serving
 *          ▲                       │ │     answer: a new session, nothing to claim               ▲ │
 *          │                       │ └───────────────────────────────────────────────────────────┘ │
 *          └── the connection ends ┴─────────────────────────────────────────────────────────────◄─┘
 *
 * Requests are sent in serving only. Holds are valid until their deadlines in each of them.
 */
type Phase = "disconnected" | "greeting" | "claiming" | "serving";

/** A request that waits for its answer, over as many connections as that takes. */
interface Call {
  id: number;
  op: "acquire" | "acquire_permits" | "confirm" | "info";
  fields: Record<string, unknown>;
  hold?: Hold; // of confirm: whose release is confirmed
  sidecar?: string; // of confirm: the uuid of the sidecar that executes the release
  waitUntil?: bigint; // of an acquire: when wait_ms has passed
  wasSent: boolean; // over the connection that there is now
  isAbandoned: boolean; // its caller has left: what is granted is released
  patience: NodeJS.Timeout | undefined; // while no sidecar serves the session
  resolve(answer: Fields): void;
  reject(why: LocksidecarError): void;
}

/** Connects to the sidecar of this host, and waits for one that is just starting. */
export async function connect(options: ConnectOptions = {}): Promise<Client> {
  const client = new Client(options);
  await client.open();
  return client;
}

/** A session with the sidecar. One client is enough for a program. `await using` closes it. */
export class Client implements AsyncDisposable, Holder {
  private readonly path: string;
  private readonly name: string;
  private readonly patienceMs: number;
  private readonly firstPatienceMs: number;

  private phase: Phase = "disconnected";
  private socket: Socket | undefined;
  private helloSentAt = 0n;
  private helloTimer: NodeJS.Timeout | undefined;
  private ticket: string | undefined; // of the newest answer to hello
  private sidecar = ""; // uuid
  private lastId = 0;
  private lastOwner = 0;
  private helloId = 0;
  private lastClaim = 0; // id
  private afterClaims: Uint8Array[] = []; // releases that wait for the answer to the last claim

  private readonly calls = new Map<number, Call>(); // in the order of their first sending
  private readonly holds = new Map<bigint, Hold>(); // without those that are orphaned
  private readonly orphans = new Set<Hold>();
  private mayHaveState = false; // the sidecar may have something of the session that must not outlive it

  private pause = FIRST_PAUSE;
  private retry: NodeJS.Timeout | undefined; // the next attempt to connect
  private outage: LocksidecarError | undefined; // why there is no connection
  private opening: { resolve(): void; reject(why: LocksidecarError): void; until: number } | undefined;

  private closed: ClosedError | undefined;
  private bye: { id: number; done(): void } | undefined;

  constructor(options: ConnectOptions = {}) {
    this.path = options.path || process.env.LOCKSIDECAR_SOCKET || "/run/locksidecar/locksidecar.sock";
    this.name = options.name ?? "typescript/0.1.0";
    this.patienceMs = options.patienceMs ?? 10_000;
    this.firstPatienceMs = options.patienceMs ?? 2_000;
  }

  /** An owner for LockOptions.owner. All that use it share its locks. */
  newOwner(): number {
    return ++this.lastOwner;
  }

  /** Acquires the lock, and waits for it. Whatever error it throws, nothing is held, and nothing needs to be cleaned up. */
  lock(name: string, options: LockOptions = {}): Promise<Lock> {
    const call = this.newCall("acquire", { name, owner: options.owner, keep_ms: options.keepMs });
    return this.acquire(call, options, (answer) => new Lock(this.onGrant(call, answer, `the lock ${JSON.stringify(name)}`)));
  }

  /** Acquires the lock if it is free; throws LockTimeoutError if not. */
  tryLock(name: string, options: Omit<LockOptions, "timeoutMs"> = {}): Promise<Lock> {
    return this.lock(name, { ...options, timeoutMs: 0 });
  }

  /** A semaphore of `of` permits: over all hosts, at most so many are held at one time. It sends nothing. */
  semaphore(name: string, of: number): Semaphore {
    return new Semaphore(name, of, (permits, options) => {
      const call = this.newCall("acquire_permits", { name, permits, of });
      return this.acquire(call, options, (answer) => {
        const hold = this.onGrant(call, answer, `the hold of ${JSON.stringify(name)} (${permits} of ${of} permits)`);
        return new Permits(hold, permits, answer.has("of") ? Number(answer.int("of")) : of);
      });
    });
  }

  /** Sends an acquire, and makes the handle of what is granted. */
  private async acquire<H>(call: Call, options: AcquireOptions, onGrant: (answer: Fields) => H): Promise<H> {
    options.signal?.throwIfAborted();
    Object.assign(call.fields, {
      lease_ms: options.leaseMs,
      max_hold_ms: options.maxHoldMs,
      crash_delay_ms: options.crashDelayMs,
    });
    const timeout = options.timeoutMs;
    if (timeout !== undefined) {
      call.fields.wait_ms = Math.ceil(timeout);
      call.waitUntil = boottime() + BigInt(Math.ceil(timeout)) * 1_000_000n;
    }
    checkName(call.fields.name as string);
    return await new Promise<H>((resolve, reject) => {
      // The grant is handled at once, before the frames after it: the next may be its lost event.
      call.resolve = (answer) => resolve(onGrant(answer));
      call.reject = reject;
      this.wait(call, options.signal, timeout === undefined ? undefined : timeout + 2_000);
    });
  }

  /** Ends the session: the sidecar releases what it holds. Waits a moment for the answer of the sidecar. */
  async close(): Promise<void> {
    if (this.closed !== undefined) return;
    this.closed = new ClosedError("the client was closed");
    this.opening?.reject(this.closed);
    // Nothing is relied on any more before the sidecar can release it.
    this.loseAll(this.closed);
    this.rejectAll(this.closed);
    if (!this.mayHaveState && this.phase !== "serving" && this.phase !== "claiming") {
      this.hangUp();
      return;
    }
    await new Promise<void>((resolve) => {
      // If the answer does not come in time, the client goes on trying in the background while the process runs.
      const timer = setTimeout(resolve, BYE_TIMEOUT);
      this.bye = {
        id: 0,
        done: () => {
          clearTimeout(timer);
          this.bye = undefined;
          this.hangUp();
          resolve();
        },
      };
      if (this.phase === "serving" || this.phase === "claiming") this.sendBye();
      else if (this.phase === "disconnected") this.connect();
    });
    this.socket?.unref();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Connects for the first time. connect() does this. */
  open(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.opening = {
        until: Date.now() + this.firstPatienceMs,
        resolve: () => {
          this.opening = undefined;
          resolve();
        },
        reject: (why) => {
          this.opening = undefined;
          this.hangUp();
          reject(why);
        },
      };
      this.connect();
    });
  }

  // --- Calls ---

  private newCall(op: Call["op"], fields: Record<string, unknown>): Call {
    return { id: 0, op, fields, wasSent: false, isAbandoned: false, patience: undefined, resolve() {}, reject() {} };
  }

  /** Sends a call now or over the next connection. It gives up when the signal is aborted, or after a time in ms. */
  private wait(call: Call, signal?: AbortSignal, giveUpMs?: number): void {
    if (this.closed !== undefined) {
      call.reject(this.closed);
      return;
    }
    const { resolve, reject } = call;
    const onAbort = () => this.giveUp(call, signal!.reason as LocksidecarError);
    const late = () => this.giveUp(call, new UnavailableError(`the sidecar at ${this.path} does not answer; is it stopped?`));
    const timer = giveUpMs === undefined ? undefined : setTimeout(late, giveUpMs);
    const settled = () => {
      clearTimeout(timer);
      clearTimeout(call.patience);
      signal?.removeEventListener("abort", onAbort);
    };
    call.resolve = (answer) => {
      settled();
      resolve(answer);
    };
    call.reject = (why) => {
      settled();
      reject(why);
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    call.id = ++this.lastId;
    this.calls.set(call.id, call);
    if (this.phase === "serving") this.sendCall(call);
    else this.startPatience(call);
    if (this.phase === "disconnected" && this.retry === undefined) this.connect();
  }

  private sendCall(call: Call): void {
    call.wasSent = true;
    if (call.waitUntil !== undefined && call.fields.wait_ms !== 0) {
      const left = Number((call.waitUntil - boottime()) / 1_000_000n);
      call.fields.wait_ms = Math.max(1, Math.min(left, call.fields.wait_ms as number));
    }
    if (isAcquire(call)) this.mayHaveState = true;
    this.write(frame({ op: call.op, id: call.id, ...call.fields }));
  }

  private startPatience(call: Call): void {
    clearTimeout(call.patience);
    call.patience = setTimeout(() => {
      this.calls.delete(call.id);
      call.reject(this.outage ?? new UnavailableError(`no sidecar answers at ${this.path}`));
    }, this.patienceMs);
  }

  /** Ends a call whose caller leaves. If its acquire is granted later, the hold is released. */
  private giveUp(call: Call, why: LocksidecarError): void {
    if (isAcquire(call) && call.wasSent) {
      call.isAbandoned = true;
      this.write(frame({ op: "cancel", target: call.id }));
    } else {
      this.calls.delete(call.id);
    }
    call.reject(why);
  }

  private rejectAll(why: LocksidecarError): void {
    const calls = [...this.calls.values()];
    this.calls.clear();
    for (const call of calls) call.reject(why);
  }

  // --- Holds ---

  private onGrant(call: Call, answer: Fields, subject: string): Hold {
    const number = answer.int("hold");
    const deadline = answer.int("deadline_ns");
    const known = this.holds.get(number); // a re-entry
    if (known !== undefined) {
      known.extend(deadline);
      return known;
    }
    const end = answer.has("end_ns") ? answer.int("end_ns") : undefined;
    const name = call.fields.name as string;
    const hold = new Hold(this, name, number, answer.int("token"), call.fields.lease_ms !== undefined, end, deadline, subject);
    this.holds.set(number, hold);
    return hold;
  }

  sendRelease(hold: Hold): void {
    if (hold.orphaned) {
      if (hold.entries === 0 || hold.ended !== undefined) this.orphans.delete(hold);
      return;
    }
    if (hold.entries === 0 || hold.ended !== undefined) this.holds.delete(hold.number);
    const release = frame({ op: "release", hold: hold.number });
    if (this.phase === "serving") this.write(release);
    else if (this.phase === "claiming") this.afterClaims.push(release);
    // Otherwise the hold is claimed with the entries that are left.
  }

  /** Holds and orphans are lost at once. */
  private loseAll(why: LocksidecarError | ((hold: Hold) => LocksidecarError)): void {
    const holds = [...this.holds.values(), ...this.orphans];
    this.holds.clear();
    this.orphans.clear();
    for (const hold of holds) hold.lose(typeof why === "function" ? why(hold) : why);
  }

  /** The sidecar knows nothing of the holds any more: they are valid until their deadlines. */
  private orphanHolds(): void {
    for (const hold of this.holds.values()) {
      hold.orphaned = true;
      this.orphans.add(hold);
    }
    this.holds.clear();
    this.mayHaveState = false;
  }

  async confirm(hold: Hold, signal?: AbortSignal): Promise<void> {
    const call = this.newCall("confirm", { name: hold.name });
    call.hold = hold;
    call.sidecar = this.sidecar;
    try {
      if (hold.orphaned) throw new UnavailableError("the sidecar was restarted, and has no record of the lock");
      if (hold.entries > 0) return; // the lock stays with its owner
      await new Promise((resolve, reject) => {
        call.resolve = resolve;
        call.reject = reject;
        this.wait(call, signal);
      });
    } catch (why) {
      throw new UnconfirmedError(
        `${hold.subject} is released, but other hosts may find it held until its lease ends: ${String(why)}`,
        { cause: why },
      );
    }
  }

  // --- The connection ---

  private get isNeeded(): boolean {
    const waiting = this.holds.size > 0 || this.calls.size > 0 || this.opening !== undefined;
    return this.bye !== undefined || (this.closed === undefined && (waiting || this.mayHaveState));
  }

  private connect(): void {
    clearTimeout(this.retry);
    this.retry = undefined;
    if (this.socket !== undefined) return;
    const socket = createConnection({ path: this.path });
    const reader = new FrameReader();
    this.socket = socket;
    if (this.closed !== undefined) socket.unref(); // it is there for bye only
    let failure: NodeJS.ErrnoException | undefined;
    socket.on("connect", () => this.greet());
    socket.on("error", (error) => (failure = error));
    socket.on("data", (chunk: Buffer) => {
      reader.push(chunk);
      try {
        for (let body = reader.next(); body !== undefined && this.socket === socket; body = reader.next()) {
          this.onFrame(new Fields(body));
        }
      } catch (error) {
        if (!(error instanceof Violation)) throw error;
        this.onViolation(error);
      }
    });
    socket.on("close", () => {
      if (this.socket === socket) this.onDisconnected(failure);
    });
  }

  private greet(): void {
    this.phase = "greeting";
    this.helloSentAt = boottime();
    this.helloId = ++this.lastId;
    this.write(frame({ op: "hello", id: this.helloId, v: 1, client: this.name, resumable: true, resume: this.ticket }));
    this.helloTimer = setTimeout(() => this.socket?.destroy(), HELLO_TIMEOUT);
  }

  private write(bytes: Uint8Array): void {
    this.socket?.write(bytes);
  }

  /** Closes the connection. Nothing may be relied on that the sidecar then releases. */
  private hangUp(): void {
    clearTimeout(this.retry);
    this.retry = undefined;
    clearTimeout(this.helloTimer);
    const socket = this.socket;
    this.socket = undefined;
    this.phase = "disconnected";
    this.afterClaims = [];
    socket?.destroy();
  }

  /** The connection has ended, or the sidecar has announced it. The session goes on over the next one. */
  private onDisconnected(error?: NodeJS.ErrnoException): void {
    const wasConnected = this.phase !== "disconnected";
    this.hangUp();
    this.outage = connectError(this.path, error);
    if (wasConnected) {
      for (const call of [...this.calls.values()]) {
        if (call.isAbandoned) this.calls.delete(call.id); // what was granted to it is not claimed
        if (call.wasSent) this.startPatience(call);
        call.wasSent = false;
      }
    }
    if (this.opening !== undefined && (error?.code === "EACCES" || Date.now() >= this.opening.until)) {
      this.opening.reject(this.outage);
      return;
    }
    if (this.bye !== undefined && this.ticket === undefined) this.bye.done();
    if (!this.isNeeded) return;
    // While no sidecar listens an attempt costs it nothing.
    const pause = error === undefined ? this.pause : Math.min(this.pause, LONGEST_LOOK);
    this.retry = setTimeout(() => this.connect(), pause * (0.75 + Math.random() / 2));
    if (this.bye !== undefined) this.retry.unref();
    this.pause = Math.min(2 * this.pause, LONGEST_PAUSE);
  }

  /** Ends the session, but not the client: the next call begins another session. */
  private endSession(why: LocksidecarError): void {
    this.ticket = undefined;
    this.orphanHolds();
    this.hangUp();
    this.opening?.reject(why);
    this.rejectAll(why);
    this.bye?.done();
  }

  private onViolation(violation: Violation): void {
    const why = new ProtocolError(`the sidecar at ${this.path} broke the protocol: ${violation.message}`);
    // When the connection ends, the sidecar releases the holds: they end here before that.
    const holds = [...this.holds.values()];
    this.holds.clear();
    for (const hold of holds) hold.lose(hold.lost("protocol"));
    this.endSession(why);
  }

  // --- What the sidecar sends ---

  private onFrame(fields: Fields): void {
    if (fields.has("ev")) {
      this.onEvent(fields);
      return;
    }
    if (fields.has("err")) {
      const err = fields.map("err");
      const code = err.text("code");
      const msg = err.has("msg") ? err.text("msg") : "";
      if (fields.has("id")) this.onError(Number(fields.int("id", 1n)), code, msg);
      else this.onConnectionError(code, msg);
      return;
    }
    const id = Number(fields.int("id", 1n));
    if (this.phase === "greeting") {
      if (id === this.helloId) this.onHello(fields);
    } else if (id === this.bye?.id) {
      this.bye.done();
    } else if (id === this.lastClaim) {
      this.onClaimed();
    } else {
      this.onAnswer(id, fields);
    }
  }

  private onHello(answer: Fields): void {
    clearTimeout(this.helloTimer);
    const version = answer.int("v");
    if (version !== 1n) {
      this.endSession(new UnsupportedError(`the sidecar at ${this.path} speaks version ${version}, this client 1`));
      return;
    }
    const now = answer.int("now_ns");
    if (now > boottime() || now < this.helloSentAt - SECOND) {
      this.endSession(new UnsupportedError(`the clock of the sidecar at ${this.path} differs; run both in one time namespace`));
      return;
    }
    answer.int("session");
    answer.int("lease_ms");
    answer.text("version");
    const ticket = answer.has("ticket") ? answer.text("ticket", MAX_TICKET) : undefined;
    const isResumed = answer.has("resumed") && answer.flag("resumed");
    this.sidecar = answer.text("sidecar");
    this.ticket = ticket;
    this.outage = undefined;
    if (this.bye !== undefined) {
      if (isResumed) this.sendBye();
      else this.bye.done();
    } else if (isResumed) {
      this.sendClaims();
    } else {
      this.orphanHolds();
      this.onNewSession();
      this.serve();
    }
  }

  private sendClaims(): void {
    this.phase = "claiming";
    const holds = [...this.holds.values()];
    for (let page = 0; page === 0 || page < holds.length; page += MAX_CLAIMS) {
      const numbers = holds.slice(page, page + MAX_CLAIMS).flatMap((hold) => [hold.number, hold.entries]);
      this.lastClaim = ++this.lastId;
      const more = page + MAX_CLAIMS < holds.length ? true : undefined;
      this.write(frame({ op: "claim", id: this.lastClaim, holds: numbers, more }));
    }
  }

  private onClaimed(): void {
    this.lastClaim = 0;
    this.mayHaveState = this.holds.size > 0;
    this.serve();
  }

  /** Confirmations that wait need a proof that this sidecar knows of the release (SPEC.md §4.4). */
  private onNewSession(): void {
    for (const call of [...this.calls.values()]) {
      if (isAcquire(call)) continue;
      if (call.sidecar === this.sidecar) {
        call.op = "info";
      } else {
        this.calls.delete(call.id);
        call.reject(new UnavailableError("the sidecar was restarted, and its successor has no record of the release"));
      }
    }
  }

  /** Sends the releases that waited for the claims, then the unanswered calls, in their order and with new ids. */
  private serve(): void {
    this.phase = "serving";
    this.pause = FIRST_PAUSE;
    for (const release of this.afterClaims) this.write(release);
    this.afterClaims = [];
    const calls = [...this.calls.values()];
    this.calls.clear();
    for (const call of calls) {
      clearTimeout(call.patience);
      call.id = ++this.lastId;
      this.calls.set(call.id, call);
      this.sendCall(call);
    }
    this.opening?.resolve();
  }

  private onAnswer(id: number, answer: Fields): void {
    const call = this.calls.get(id);
    if (call === undefined) return; // a page of the claims
    if (isAcquire(call)) {
      for (const field of ["count", "token", "hold", "deadline_ns"]) answer.int(field);
      if (answer.has("end_ns")) answer.int("end_ns");
    }
    if (call.op === "acquire_permits") {
      for (const field of ["permits", "of"]) if (answer.has(field)) answer.int(field, 0n, MAX_PERMITS);
    }
    const heldThere = call.op === "info" && answer.has("lock") && mayHaveHold(answer.map("lock"), call.hold!.number);
    this.calls.delete(id);
    if (call.isAbandoned) {
      this.write(frame({ op: "release", hold: answer.int("hold") }));
    } else if (heldThere) {
      call.reject(new UnavailableError("the sidecar was restarted, and may not have read the release"));
    } else if (call.op === "info") {
      call.op = "confirm";
      call.id = ++this.lastId;
      this.calls.set(call.id, call);
      this.sendCall(call);
    } else {
      call.resolve(answer);
    }
  }

  private onError(id: number, code: string, msg: string): void {
    if (id === this.helloId && this.phase === "greeting") {
      this.onHelloRefused(code, msg);
      return;
    }
    if (id === this.bye?.id) {
      this.bye.done();
      return;
    }
    const call = this.calls.get(id);
    if (call !== undefined) {
      this.calls.delete(id);
      if (!call.isAbandoned) call.reject(errorOf(code, msg));
    } else if (this.phase === "claiming") {
      this.onViolation(new Violation(`it refused a claim: ${msg}`));
    }
  }

  private onHelloRefused(code: string, msg: string): void {
    // The sidecar is stopping, or has no room: a session can be resumed later.
    if (code === "unavailable" || (code === "limit" && this.ticket !== undefined)) this.onDisconnected();
    else this.endSession(errorOf(code, `the sidecar at ${this.path} refused the session: ${msg}`));
  }

  private onConnectionError(code: string, msg: string): void {
    if (this.phase === "greeting") this.onHelloRefused(code, msg);
    else if (code === "unavailable") this.onDisconnected();
    else this.endSession(new ProtocolError(`the sidecar at ${this.path} ended the connection: ${msg} (${code})`));
  }

  private onEvent(event: Fields): void {
    switch (event.text("ev")) {
      case "lost": {
        const reason = event.text("reason");
        const hold = this.holds.get(event.int("hold"));
        if (hold !== undefined) {
          this.holds.delete(hold.number);
          hold.lose(hold.lost(reason));
        }
        break;
      }
      case "lease": {
        const deadline = event.int("deadline_ns");
        for (const hold of this.holds.values()) if (!hold.fixed) hold.extend(deadline);
        break;
      }
    }
  }

  private sendBye(): void {
    this.bye!.id = ++this.lastId;
    this.phase = "serving";
    this.write(frame({ op: "bye", id: this.bye!.id }));
  }
}

function isAcquire(call: Call): boolean {
  return call.op === "acquire" || call.op === "acquire_permits";
}

/** Whether a row has the hold, or does not show all holds. */
function mayHaveHold(row: Fields, hold: bigint): boolean {
  row.text("name");
  const shown = [row, ...(row.has("holders") ? row.maps("holders") : [])];
  const hidden = row.has("held") && row.int("held") > shown.length - 1;
  return hidden || shown.some((holder) => holder.has("hold") && holder.int("hold") === hold);
}

function checkName(name: string): void {
  const bytes = Buffer.byteLength(name);
  if (bytes < 1 || bytes > 512 || /[\u0000-\u001f\u007f-\u009f]|\p{Surrogate}/u.test(name)) {
    throw new BadRequestError(`${JSON.stringify(name)} cannot be the name of a lock or semaphore: 1 to 512 bytes of UTF-8, no control characters`);
  }
}

function connectError(path: string, error?: NodeJS.ErrnoException): LocksidecarError {
  switch (error?.code) {
    case undefined:
      return new UnavailableError(`the sidecar at ${path} ended the connection; is it being restarted?`);
    case "ENOENT":
      return new UnavailableError(`no sidecar: there is no socket ${path}; start it (locksidecar serve), or set LOCKSIDECAR_SOCKET`);
    case "ECONNREFUSED":
      return new UnavailableError(`no sidecar: no process listens at ${path}; start it (locksidecar serve)`);
    case "EACCES":
      return new DeniedError(`no permission to connect to ${path}`);
  }
  return new UnavailableError(`cannot connect to the sidecar at ${path}: ${error!.message}`);
}
