//go:build race

package brief

// raceEnabled: every call is announced. The race detector learns from the announced
// calls alone that what one client did before it gave a lock back happened before what
// another one of the same program does when it has the lock.
const raceEnabled = true
