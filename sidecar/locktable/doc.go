// Package locktable is the state of one sidecar: which client holds which lock, which
// requests wait, and what Redis has for this host. It is a pure state machine: inputs come
// in with the time at which they happened, effects come out as values. It has no clock, no
// goroutine and no I/O, so that the same inputs give the same effects and a simulation can
// drive it through any interleaving.
//
// # The rooms
//
//		        inputs (now, value)                       effects (values)
//		               │                                        ▲
//		               ▼                                        │
//		acquire, release, result, message, connection, session, resume, restore
//		               │
//		               ▼
//		┌──────── reconcile: the only place that sees all rooms ────────┐
//		│                  │                       │                    │
//		│ View, Verdict    │ Want, operation       │ grants, ends       │ what changed
//		▼                  ▼                       ▼                    ▼
//		contest            claim                   clients              journal
//		this host or       what Redis has for      sessions, requests,  what a successor
//		others             this host               holds, users         finds
//
//	  - A lock (model.go) is one name, with what each room knows of it.
//	  - Package claim has the remote claim: what Redis has for this host under the name, and the
//	    operations in flight.
//	  - Package contest decides between this host and others: turns, strict order, lingering, foreign
//	    clients.
//	  - Requests (waiters.go, grant.go) are acquires that have no answer yet. A waiter is the place of a
//	    request in the queue of a lock.
//	  - Holds (hold.go) are granted requests, until they are released or lost.
//	  - Sessions (session.go) are the clients, each with its requests and holds. Lease events (lease.go)
//	    report to a client that its holds were renewed.
//	  - The journal (record.go, journal.go) is what a successor of this process finds.
//
// A file refers to declarations of the files below it only; a test has their order, and the reason of
// each exception (layout_test.go).
//
// # Reconciliation
//
// Every input ends with reconcile (reconcile.go) for the locks that it changed: it compares what
// Redis should have (claim.Want) with what it has (claim.Claim), and sends the operation that
// closes the difference (Claim.Step). At most one operation of a lock is in flight, or a Drop and
// the Take that is pipelined after it. When its result comes (result.go), the
// comparison is made again. However many times a lock is handed over between local owners
// during one round trip, Redis executes one operation.
//
// One such visit to a lock (visit.go) asks the contest once, and again if the lock has changed.
//
// Times are int64 nanoseconds of CLOCK_BOOTTIME.
package locktable
