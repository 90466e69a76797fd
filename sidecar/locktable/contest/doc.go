// Package contest decides, for one lock, between this host and others: whether a local waiter gets
// a lock that Redis has for this host or the lock goes to another host, when this host asks Redis
// for the lock, and whether a lock that no local client wants lingers or is dropped.
//
// Shared.Decide is the one function that decides about a lock, also how Redis is asked and what a
// release leads to. It is pure: a View of the lock becomes a Verdict.
// What a contest remembers changes in methods that are called onX, when X has happened, or that
// say what the table does about a verdict.
//
// # Turns
//
// A turn begins when the lock comes to this host: by a Take, or by a transfer of another
// sidecar (see place.go). During its turn a host hands the lock over between its own clients
// without Redis. The turn is over when another sidecar waits and this host has had the lock
// for Config.Turn. Then the host releases the lock, which passes
// to the first in the queue, and queues after all others.
//
// # Foreign clients
//
// A foreign client is a program that waits for the lock with another client of the same layout in
// Redis: Redisson, for instance. It has no place in the queue. If it is subscribed to the lock's
// channel, a turn ends after HandoffTime, too. If it polls, nothing is known of it. So a lock that
// has passed from owner to owner without a free moment for QuietTime is released and left free for
// QuietPause; the time counts over all hosts (see View.BusySince). If a foreign client was found to
// have the lock within the last ForeignMemory, the time is PollerTime.
//
// A host that has no place in the queue, because Redis does not permit it one, waits as foreign
// clients do: it is subscribed, or polls.
package contest
