export { Client, type ConnectOptions, type LockOptions, connect } from "./client.js";
export * from "./errors.js";
export type { Lock } from "./lock.js";
