package locktable

// A kind of lock says which holds of a lock admit which next one, how many fields it has in Redis, and
// what a record of it has. Today there is one kind. Its holds are exclusive, so its waiters are admitted
// one by one, and Redis has one field for all of them: that of the last hold.

// Mode says which other holds of a lock a hold excludes. The journal has it, so another meaning of a
// number needs another format of the state file.
type Mode uint8

// Exclusive: it excludes every other hold.
const Exclusive Mode = iota

// admits reports whether a hold admits one of another mode beside it.
func (m Mode) admits(next Mode) bool { return m != Exclusive && next != Exclusive }
