package locktable

// Kind says which holds of a lock admit which next one, and how many a lock may have. A lock has one
// kind while it is in use.
type Kind uint8

const (
	// KindLock: each hold excludes all others, so a lock has one hold at most.
	KindLock Kind = iota

	// KindReadWrite: its holds are one that excludes all others, or any number of shared ones.
	KindReadWrite
)

// hasMany reports whether a lock of this kind may have more than one hold. Then Table.many has them.
func (k Kind) hasMany() bool { return k != KindLock }

// Mode says which other holds of a lock a hold excludes. The journal has it, so another meaning of a
// number needs another format of the state file.
type Mode uint8

const (
	Exclusive Mode = iota // it excludes every other hold
	Shared                // it excludes those that are exclusive
)

// admits reports whether a hold admits one of another mode beside it.
func (m Mode) admits(next Mode) bool { return m != Exclusive && next != Exclusive }

// covers reports whether the owner of a hold may do all that one of another mode permits.
func (m Mode) covers(other Mode) bool { return m == Exclusive || m == other }
