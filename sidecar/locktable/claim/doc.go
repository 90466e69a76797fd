// Package claim is what Redis has for this host under the name of one lock, as far as this host
// knows, and the operations on it that are in flight. It knows neither clients nor other hosts: the
// table says in a Want what Redis should have, and Step returns the next operation towards that.
//
// The fields of a claim change in its methods only. Each asserts its precondition: a sidecar that
// violates one stops, and its successor continues from the journal.
package claim
