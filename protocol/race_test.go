//go:build race

package protocol

// With the race detector, a sync.Pool drops elements at random.
func init() { raceEnabled = true }
