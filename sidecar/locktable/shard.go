package locktable

import "time"

// shard is one Redis: whether it can be asked, and whether it answers. A shard has some of the locks: a
// Redis that is no Cluster has all, and a master of a Cluster those of its slots. What is known of a
// lock is in the lock.
type shard struct {
	phase shardPhase
	cause string // of shardDown, for people
	slots int    // it has so many slots; without Clusters: all

	isListening bool // this sidecar has its own channel there: it may stand in queues, and locks may linger

	owed   int   // operations that have no Result yet
	silent int64 // since when it has owed a Result without giving any, while owed is not 0
	paused int64 // until when the caller last took no input; see Paused
}

func (s *shard) isUp() bool { return s.phase == shardUp }

// why says why the shard cannot be asked.
func (s *shard) why() string {
	if s.phase == shardNeverReached {
		return "Redis has not been reached yet"
	}
	return s.cause
}

// onUp notes that the shard can be asked.
func (s *shard) onUp(isListening bool) {
	s.phase, s.cause, s.isListening = shardUp, "", isListening
}

// onDown notes that the shard cannot be asked, and returns whether it could not before: then the
// reason is all that has changed.
func (s *shard) onDown(why string) (wasDown bool) {
	wasDown = s.phase == shardDown
	s.phase, s.cause = shardDown, why
	return wasDown
}

// onSent notes that an operation is being sent.
func (s *shard) onSent(now int64) {
	if s.owed == 0 {
		s.silent = now
	}
	s.owed++
}

// onResult notes that an operation has its result.
func (s *shard) onResult(now int64) {
	s.owed--
	s.silent = now
}

// silentSince is since when the shard has owed a Result without giving any, as far as the caller
// could have received it.
func (s *shard) silentSince() int64 { return max(s.silent, s.paused) }

// silence is how long it has owed Results without giving any.
func (s *shard) silence(now int64) time.Duration {
	if s.owed == 0 {
		return 0
	}
	return time.Duration(now - s.silentSince())
}
