package explore

import "slices"

// root is a state from which an exploration begins, by the steps from the initial state.
type root struct {
	name  string
	steps []action
}

var (
	a0 = actionOf(acquire, 0, 0)
	b0 = actionOf(acquire, 0, 1)
	a1 = actionOf(acquire, 1, 0)
	b1 = actionOf(acquire, 1, 1)
	x0 = actionOf(execute, 0, 0)
	x1 = actionOf(execute, 1, 0)
	d0 = actionOf(deliver, 0, 0)
	d1 = actionOf(deliver, 1, 0)
	r0 = actionOf(release, 0, 0)
)

// The steps to a root have no fault, and do not count against a budget.
var roots = []root{
	{"nothing", nil},
	// Client 0 of host 0 has the lock. A ticket of host 1 stands in the queue, and both hosts have
	// what Redis sent of that.
	{"queued", []action{a0, x0, d0, a1, x1, d0, d1}},
	// The same, and the lock passes to host 1: the message is on the way, and so is the result.
	{"transfer", []action{a0, x0, d0, a1, x1, d0, d1, r0, x0}},
	// As "queued", with a second client of each host.
	{"crowd", []action{a0, x0, d0, a1, x1, d0, d1, b0, b1, x0, d0}},
	// Host 0 has the lock, which lingers there.
	{"lingering", []action{a0, x0, d0, r0, x0, d0, a0, x0, d0, r0}},
}

// The roots of a semaphore.
var permitRoots = []root{
	{"nothing", nil},
	// A client of each host has one of both permits.
	{"taken", []action{a0, x0, d0, a1, x1, d1}},
	// The same, and the second client of host 0 waits for one: its host has a place.
	{"queued", []action{a0, x0, d0, a1, x1, d1, b0, x0, d0}},
}

// from returns the roots with these names.
func from(names ...string) []root { return named(roots, names...) }

func named(all []root, names ...string) []root {
	return slices.DeleteFunc(slices.Clone(all), func(r root) bool { return !slices.Contains(names, r.name) })
}

// rootsOf returns the roots that there are. A lock that all want in strict order does not linger.
func rootsOf(fair fairness) []root {
	if fair != allFair {
		return roots
	}
	return from("nothing", "queued", "transfer", "crowd")
}
