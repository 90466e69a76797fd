package locktable

import "github.com/locksidecar/locksidecar/protocol"

// groupOf is the group in which a name counts.
func (t *Table) groupOf(name string) uint8 {
	for i, p := range t.cfg.NamePatterns {
		if p.Matches(name) {
			return uint8(i + 1)
		}
	}
	return 0
}

// groupStats is where the lock counts.
func (t *Table) groupStats(l *lock) *GroupStats { return &t.stats.Groups[l.group] }

// CountRefusal counts an acquire that the caller refused before the table received it.
func (t *Table) CountRefusal(name string, code protocol.Code) {
	t.stats.Groups[t.groupOf(name)].Acquires[resultOf(code)]++
}

// countGrant counts a grant of the lock. The counter of a lock has 16 bits, because there may be a
// hundred thousand locks; what is above is counted apart, for the few that need it.
func (t *Table) countGrant(l *lock) {
	if l.claim.CountGrant() {
		t.grantCarries[l.name]++
	}
}

func (t *Table) grantsOf(l *lock) uint32 {
	return t.grantCarries[l.name]<<16 | uint32(l.claim.Granted())
}
