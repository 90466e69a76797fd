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
