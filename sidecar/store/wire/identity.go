package wire

// Identity is what was connected to what: which data Redis had, by which
// connection it was used, and what time it was there. It stays good for as long
// as this host runs.
type Identity struct {
	RunID    string // of the server process; "": it does not tell. Of a Cluster: the smallest id of its nodes
	ReplID   string // of the replication history, "/", and the number of the database
	ClientID int64  // of the connection, to be ended before any operation is sent again; 0: the server does not tell
	Floor    int64  // µs: the server's time at FloorAt, or the largest token known then if that is larger
	FloorAt  int64  // CLOCK_BOOTTIME in ns
}

// Above is what tokens of new counters must be above at a time: the largest token known,
// plus the time since then on our own clock, whatever Redis's clock did meanwhile.
//
// A hundredth of the time is left out. Clocks may differ by that (see locktable), and
// with a clock of ours that is fast the floor would rise above Redis's clock: the tokens
// of this host would be larger than what another host draws after a counter is lost.
func (id *Identity) Above(now int64) int64 {
	elapsed := (now - id.FloorAt) / 1000
	return id.Floor + elapsed - elapsed/100
}

// Known reports whether there was a connection at all.
func (id *Identity) Known() bool { return id.FloorAt != 0 }

// SameData reports whether Redis has certainly forgotten nothing from one
// connection to the other.
func (id *Identity) SameData(other *Identity) bool {
	return id.SameServer(other) && id.ReplID == other.ReplID
}

// SameServer reports whether both connections led to one process, whose client ids
// mean the same in both.
func (id *Identity) SameServer(other *Identity) bool {
	return id.RunID != "" && id.RunID == other.RunID
}
