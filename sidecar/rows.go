package sidecar

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
)

// A page of a list ends after so many locks that the policy hides from the client.
const maxHidden = 256

// list fills one page. It is small: a client that asks for thousands of locks pays for
// each page with a turn. If the policy hides locks from the client, a page may be empty.
func (l *loop) list(now int64, cl *session, r *protocol.List) *protocol.ListOK {
	m := &l.page
	m.ID, m.Locks = r.ID, m.Locks[:0]
	size, hidden := 0, 0
	m.Next = l.table.List(now, r.After, func(row protocol.LockRow) bool {
		if cl != nil && cl.policy != nil && !l.redact(cl, &row) {
			hidden++
			return hidden < maxHidden
		}
		l.locate(now, &row)
		size += row.Size()
		if size > pageSize && len(m.Locks) > 0 {
			return false
		}
		m.Locks = append(m.Locks, row)
		return true
	})
	return m
}

// redact takes out of a row what a client may not know, and reports whether the row is in what it lists.
func (l *loop) redact(cl *session, row *protocol.LockRow) (isListed bool) {
	terms := cl.policy.Terms()
	hasHold := row.Held > len(row.Holders) && l.table.HasHold(row.Name, terms.UID)
	return terms.Redact(row, hasHold)
}

// info answers a request for one lock.
func (l *loop) info(now int64, cl *session, r *protocol.Info) {
	m := protocol.InfoOK{ID: r.ID}
	if row, ok := l.rowFor(now, cl, r.Name); ok {
		m.Lock = &row
	}
	l.queueReply(cl.conn, &m)
}

// who answers a who request.
func (l *loop) who(now int64, cl *session, r *otherhosts.WhoRequest) {
	if r.Refusal != nil {
		l.refuse(cl.conn, r.ID, r.Refusal.Code, r.Refusal.Msg)
		return
	}
	m := &protocol.WhoOK{ID: r.ID, WhoRow: r.Found}
	if row, ok := l.rowFor(now, cl, r.Name); ok {
		m.Lock = &row
		if r.IsOurs {
			m.Holder = &row
		}
		isOurs := func(o protocol.OwnerRow) bool { return o.Sidecar == l.uuid }
		if i := slices.IndexFunc(m.Owners, isOurs); i >= 0 && m.Key == protocol.KeyPermits {
			otherhosts.AddHolders(&m.WhoRow, &m.Owners[i], &row)
			ours := m.Owners[i]
			copy(m.Owners[1:i+1], m.Owners[:i])
			m.Owners[0] = ours // an answer has room for the first holders
		}
		m.Of = max(m.Of, row.Of)
	}
	if r.IsOurs && m.Holder == nil {
		m.Trouble = "this sidecar does not know the lock any more: it has just been released, or the daemon was restarted without its state"
	}
	l.queueReply(cl.conn, m)
}

// rowFor returns what this sidecar knows of a lock, as far as a client may know it; false: nothing.
func (l *loop) rowFor(now int64, cl *session, name string) (row protocol.LockRow, ok bool) {
	row, ok = l.table.Info(now, name)
	l.locate(now, &row)
	if ok && cl.policy != nil {
		l.redact(cl, &row)
	}
	return row, ok
}

// locate adds the address of the master that has the slot of a lock.
func (l *loop) locate(now int64, row *protocol.LockRow) {
	if cl := l.sessions[locktable.SessionID(row.Session)]; row.Absent && cl != nil {
		row.AbsentMS = (now - cl.since) / int64(time.Millisecond)
		if cl.phase.IsAway() {
			row.AbsentLeftMS = max(0, (cl.until-now)/int64(time.Millisecond))
		}
	}
	if !row.InCluster {
		return
	}
	if n := l.table.ShardOf(row.Name); n != noShard {
		row.Shard = l.store.ShardAddress(n)
	}
}
