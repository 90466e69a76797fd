export { Client, type ConnectOptions, type LockOptions, connect } from "./client.js";
export * from "./errors.js";
export type { Lock, Permits } from "./lock.js";
export type { AcquireOptions, Semaphore } from "./semaphore.js";
