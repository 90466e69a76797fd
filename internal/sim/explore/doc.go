// Package explore runs the lock table through every order of events in a small world: two hosts
// with two clients each, one lock, the real [locktable.Table], and the model of Redis in
// internal/sim/redis. The simulation (internal/sim) runs large worlds in random orders; this
// package runs a small one in all orders, up to a budget.
//
// # What happens in this world
//
// One step is one of these:
//
//   - A client acquires the lock and waits, or tries (wait 0); cancels; releases; or dies, and
//     another client takes its place. Its sidecar receives that at once, and the client receives
//     the answer at once. In one kind of world no acquire wants strict order between hosts. In the
//     second all that wait do, because the setting fair names the lock. In the third a client
//     chooses with each acquire.
//   - Redis executes the next operation of a host, or the next Drop and the Take of the same
//     batch. Results and messages go into the one FIFO stream of each connection.
//   - A host receives the next result or message of its stream.
//   - Time passes until a table has a timer, or until the key expires. Timers fire on time.
//   - Redis's clock is set back by 19 s or forward by 18 s. Arrivals, scores and signs of life go by
//     it; the lease of the key does not.
//   - A fault: Redis closes a connection; a host gives one up that Redis still has, so that what was
//     sent on it is executed late or never, and Redis counts it as a receiver until it notices;
//     a sidecar is killed, at rest or within its next input, before or after it has sent
//     operations; a sidecar is suspended, and its timers fire late.
//   - What follows a fault: a host notices, connects again, continues; a successor restores the
//     journal, and each client claims its hold.
//   - In a Cluster (cluster.go): the slot of the lock moves from shard 1 to shard 2, once at most. It is
//     migrated, with its data; or the server of shard 1 dies, and shard 2 takes over without the last
//     write, or without all writes since the root. A host learns of that by itself, or when shard 1
//     answers MOVED. A transfer comes as a copy from the other shard, too.
//
// In worlds of a semaphore (permits.go) there are two permits, and a client acquires one or both. Redis's clock is that of the
// hosts there, because claims expire by it, and nothing sets it.
//
// A [Budget] limits the actions of clients, the faults, the passages of time, the jumps of the clock and
// the moves of the slot on one path. Then there are finitely many states, and the search ends when it has
// found all of them. It begins from several roots: the initial state, a ticket in the queue, a transfer of
// which no host knows yet, a crowd, a lock that lingers.
//
// States that differ only in their time, in the size of growing numbers, in which host or
// which client is which, are one state (digest.go). A test compares what follows states that
// were merged.
//
// The budgets of a commit are 4 actions of clients, 2 actions and one passage of time, and 2 actions
// and one fault; if a client chooses, 3 actions, 2 and one passage of time, and 1 and one fault. With
// one jump of Redis's clock they are 3 actions, or 2 if all or some want strict order. If all do, they are
// smaller from the crowd. So many states follow from the roots:
//
//	strict order    actions   and a passage   and a fault   and a jump
//	of no acquire    26,000          19,000        69,000       21,000
//	of all           64,000          50,000        83,000       17,000
//	of some          16,000          66,000        11,000        9,000
//
// In a Cluster they are 2 actions and a migration, an action and a failover, and a passage of time or a
// fault and either of them; and an action and a migration if all want strict order. From the transfer
// and the lock that lingers they are smaller. 195,000 states follow.
//
// Of a semaphore they are 4 actions, 2 and a passage of time, and 2 and a fault: 270,000 states.
//
// Without strict order that takes 5 s on one core, with it 13 s, in a Cluster 9 s, of a semaphore 10 s. A search runs in one
// goroutine, so that it finds the same path to a violation each time. The larger budgets (LOCKSIDECAR_LONG)
// end after a million states from each root: half of them have no more.
//
// # What is checked
//
//   - In every state: at most one client believes that it has the lock, and only while the
//     key is its host's and lives at least as long as the deadline that it was sent.
//   - Of a semaphore: clients believe in no more permits than there are, and the claim of each host has those of its clients for
//     as long. When nothing failed, no claim and no place is left at the end.
//   - In a Cluster: no operation but an Arrive is in flight while one is at the other shard. What a failover
//     has lost excuses a host until it knows the route, is connected there and not suspended, and no operation
//     of it is in flight: it has asked the new shard.
//   - Without a fault, a lease that ends and a failover that lost something, no hold is lost.
//   - At every grant: the token is larger than all before. If all acquires that wait want strict
//     order, no other one that waits arrived at Redis before; until a fault happens, a failover loses
//     something, Redis's clock is set back, a lease ends in Redis, or a ticket is removed because its host
//     has not asked for long; or a host that has the lock, and no client of which does, learns that the slot
//     has moved.
//   - The assertions of the table, which panic.
//   - From one state in 16 (64 of the larger budgets): when faults end, and each client releases what it is
//     granted, every request is answered within a refresh of the queue; within a tick, if no fault happened,
//     Redis's clock was not set, no failover lost anything, and nothing was late. A key that no client has or
//     waits for is deleted as soon as it has lingered.
//     Finally tables, journals and queue are empty. (A ticket or a key that was made by an
//     operation of a connection that was given up, or that a failover brought back, may stay. So may a ticket
//     of a process that died, because the journal does not have it, until the lock passes to it. If its
//     host reads no message of that, the key stays, too. The next host that wants the lock ends it.)
//
// Each of the [Mutants] breaks a rule, and must be detected.
//
// # What is not explored
//
// There is one clock for both hosts and the leases in Redis, which moves in ticks of 32 ms; what happens within a tick happens at
// one moment, except that a request comes after what was sent before it. So no drift of clocks
// is explored. The times of the tables have the order of the defaults, in few ticks; what is left
// to chance is always the least. All holds have the watchdog's lease, and no owner re-enters. A
// release after which the same host takes the lock again in one script is never published. A single
// Redis keeps its data. Redis refuses nothing but with MOVED, and replicas confirm nothing; no other program
// uses the lock. A slot moves at once, not key by key; of messages, only transfers have copies. A journal is
// never full or torn. A host carries out the effects of each input before it takes the
// next, and notices the end of its connection before the results of what was in flight. The
// simulation has all of that.
//
//	go test ./internal/sim/explore                                       the budgets of a commit
//	go test ./internal/sim/explore -v -timeout 6h -explore.long          longer ones
//	go test ./internal/sim/explore -run 'TestExplore$' -v -explore.budget=3,1,0
//	go test ./internal/sim/explore -run 'TestExploreStrictOrder$' -v -explore.budget=3,1,0,1
//	go test ./internal/sim/explore -run 'TestExploreCluster$' -v -explore.budget=2,0,0,0,0,1    a failover
package explore
