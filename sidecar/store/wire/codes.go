package wire

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// What the scripts, the encoder and the decoder agree on.

// RunMax is how many operations one run of a script carries out. Redis runs a script
// to its end before it serves another client: at 1 to 3 µs each, this is well below 1 ms.
const RunMax = redisop.RenewalGroupSize

// StatusCode says which status an array is. The files of the scripts say when they return it.
type StatusCode uint8

const (
	_ StatusCode = iota
	CodeTaken
	CodeMissing
	CodeDiffers
	CodeHeld
	CodeQueued
	CodeFree
	CodeFreeQueued
	CodeDropped
	CodePassed
	CodePaused
	CodeArrived
	CodeNotALock
	CodeRefused
	CodePermitted
	CodeWanted
	CodeLater
	CodeShares
	CodeAway
)

// wait is how an operation waits in the queue of its lock.
type wait uint8

const (
	waitNone    wait = iota // it gets no ticket
	waitQueued              // if another owner has the lock, a ticket is in the queue afterwards
	waitInOrder             // the same, and a free lock goes to the first ticket
	waitArrived             // the same, and the ticket stands where its request arrived
)
