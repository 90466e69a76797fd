// The errors of the client. Each message says what happened and what to do about it.

/** The base class of all errors of this client. */
export class LocksidecarError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The wait ended before the lock was free. Nothing is held, and nothing waits any more. */
export class LockTimeoutError extends LocksidecarError {}

/** Waiting would never end: the owners on this host wait for each other. The message names each step. */
export class DeadlockError extends LocksidecarError {}

/** The sidecar cannot be reached, does not answer, or cannot reach its Redis. */
export class UnavailableError extends LocksidecarError {}

/** No permission: for the socket, or for the lock's key in Redis. */
export class DeniedError extends LocksidecarError {}

/** A limit of the sidecar is reached. The message says which, and how to raise it. */
export class LimitError extends LocksidecarError {}

/** The sidecar speaks another version of the protocol, does not know the request, or has another clock. */
export class UnsupportedError extends LocksidecarError {}

/** A name or a duration that the protocol does not allow. */
export class BadRequestError extends LocksidecarError {}

/** The handle was released before. */
export class NotHeldError extends LocksidecarError {}

/** The client was closed. */
export class ClosedError extends LocksidecarError {}

/** The sidecar violated the protocol. The session has ended, and with it its locks. */
export class ProtocolError extends LocksidecarError {}

/** The lock is released, but it is not known whether Redis has executed that. `cause` is the reason. */
export class UnconfirmedError extends LocksidecarError {}

/** The lock, or permits, were held, and ended without a release. Others may hold them. */
export class LockLostError extends LocksidecarError {
  /**
   * `lock` is the name of the lock or semaphore. `reason` is one of SPEC.md §5.1, or `protocol`: the connection was
   * closed because of a ProtocolError.
   */
  constructor(
    readonly lock: string,
    readonly reason: string,
    subject: string,
  ) {
    super(`${subject} was lost (${reason}): stop the work; others may hold it now`);
  }
}

const byCode: Record<string, new (message: string) => LocksidecarError> = {
  timeout: LockTimeoutError,
  deadlock: DeadlockError,
  unavailable: UnavailableError,
  denied: DeniedError,
  limit: LimitError,
  unsupported: UnsupportedError,
  bad_request: BadRequestError,
};

/** Converts an error answer of the sidecar. A code that is not known is a failure, too (SPEC.md §6.1). */
export function errorOf(code: string, msg: string): LocksidecarError {
  return new (byCode[code] ?? LocksidecarError)(msg || code);
}
