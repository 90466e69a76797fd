package redisop

// LockKind says which holds of a lock admit which next one, and how many a lock may have. A lock has one
// kind while it is in use.
type LockKind uint8

const (
	// KindLock: each hold excludes all others, so a lock has one hold at most.
	KindLock LockKind = iota

	// KindReadWrite: its holds are one that excludes all others, or any number of shared ones.
	KindReadWrite

	// KindPermits: a semaphore. Its holds have so many permits together as its capacity, at most. Each
	// request names the capacity.
	KindPermits
)

// Mode is how a host has a read/write lock, or wants it.
type Mode uint8

const (
	NoMode Mode = iota
	SharedMode
	ExclusiveMode
)

// String is the kind as clients know it.
func (k LockKind) String() string { return [...]string{"lock", "rw", "permits"}[k] }

// Noun is the kind in a sentence.
func (k LockKind) Noun() string { return [...]string{"a lock", "a read/write lock", "a semaphore"}[k] }

// HasMany reports whether a lock of this kind may have more than one hold.
func (k LockKind) HasMany() bool { return k != KindLock }
