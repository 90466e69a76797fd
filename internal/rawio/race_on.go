//go:build race

package rawio

// raceEnabled: every call is announced. The race detector learns only from announced
// calls that what one client did before it released a lock happened before what another
// client of the same program does once it holds the lock.
const raceEnabled = true
