// Package sim simulates the lock table: several hosts with a real table and real Machines and Maps of
// the store, their clients, one Redis, and everything that fails between them, in virtual time.
// One seed decides what happens, so a run that fails can be replayed.
//
// Two plans run on the same engine (engine.go) and on the same model of the scripts
// (internal/sim/redis):
//
//   - The world breaks things (world.go): Run runs one seed. The plan of a seed (plan.go)
//     says which faults it has. A host (host.go) has clients (client.go) and one
//     connection (network.go), with its subscriptions (pubsub.go), to Redis (redis.go), which
//     Redisson clients use too (redisson.go). A pipeline.Machine makes the bytes of a connection,
//     and the model of a server (internal/sim/server) executes them. One world in four is a Cluster (cluster.go): each
//     lock is at one of two nodes; slots move with their data, or to a node that takes over from one that died; each
//     node learns of that at its own time, and answers by what it knows. What a host knows is in a cluster.Map of the
//     store (topology.go). Two nodes may name each other, answers come late, and servers get other addresses. In half
//     of these worlds the clocks of the nodes differ by up to an hour, and in half of them slots migrate key by key:
//     nodes answer ASK and TRYAGAIN (asking.go).
//     Faults (fault.go) break all of them; sidecars
//     are killed and started again from their journal (restart.go, journal.go), and clients
//     resume their sessions (resume.go). The checkers (check*.go) compare what clients know
//     with what Redis has, at every step. A failure names the invariant (package invariant,
//     docs/invariants.md).
//   - The fleet counts (fleet.go): what very many hosts cost one Redis, and how long their
//     clients wait. It is the scale study that docs/scaling.md quotes.
//
// A checker that never finds a violation proves nothing: each of the Mutants breaks one
// rule, which the checker must detect. A world in which little happens proves little: each
// Situation must be met.
//
//	go test ./internal/sim -run 'TestSimulation$'                                          the seeds of each commit
//	go test ./internal/sim -run 'TestSimulation$' -sim.seed=1000000 -sim.steps=200000000   search for a failure
//	go test ./internal/sim -run 'TestSimulation$' -sim.seed=4711 -sim.trace                print all events of one seed
//	go test ./internal/sim -run 'TestSimulation$' -sim.digest=2000 -v                      print one number for all effects and
//	                                                                                       commands of the seeds up to 2000: a
//	                                                                                       refactoring does not change it
package sim
