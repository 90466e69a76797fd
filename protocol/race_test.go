//go:build race

package protocol

// The race detector makes a sync.Pool forget at random.
func init() { raceEnabled = true }
