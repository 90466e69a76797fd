// Package sim simulates the lock table: several hosts with a real table each, their
// clients, one Redis, and everything that fails between them, in virtual time. One seed
// decides what happens, so a run that fails can be replayed.
//
//	go test ./internal/sim -run 'TestSimulation$' -sim.seed=1000000 -sim.steps=200000000   search for a failure
//	go test ./internal/sim -run 'TestSimulation$' -sim.seed=4711 -sim.trace                print all events of one seed
//	go test ./internal/sim -run 'TestSimulation$' -sim.digest=2000 -v                      print one number for all effects of
//	                                                                                       the seeds up to 2000: a refactoring
//	                                                                                       does not change it
package sim
