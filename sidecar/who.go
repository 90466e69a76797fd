package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

const (
	// whoTimeout is how long a client waits for what Redis and the sidecar of the holder know of a
	// lock.
	whoTimeout = 800 * time.Millisecond

	// whoAttempts is how often the key is read, if the lock passes on before its holder is asked.
	whoAttempts = 2
)

// atLeastAskWithin returns a timeout, or the setting of it that is longer: for tests on a busy host.
func (s *Server) atLeastAskWithin(timeout time.Duration) time.Duration {
	return max(timeout, s.cfg.AskWithin)
}

// whoRequest is a who request with what is not the loop's.
type whoRequest struct {
	protocol.Who
	found   protocol.WhoRow
	isOurs  bool // the key has an owner field of this sidecar
	refusal *protocol.Err
}

// prepareWho reads what Redis has for a lock, and asks the sidecar of its holder. However many hosts there are, it reads one key and one queue, looks up the names of
// those that are in them, and asks one sidecar.
func (s *Server) prepareWho(ctx context.Context, c *conn, m *protocol.Who) *whoRequest {
	r := &whoRequest{Who: *m}
	if c.denial != nil {
		refusal := *c.denial
		r.refusal = &refusal
		return r
	}
	if refused := refuseHostsByPolicy(c, m); refused != nil {
		r.found.Redis = "not read: " + refused.Msg
		return r
	}
	if r.refusal = s.asker.begin(c.peer.UID); r.refusal != nil {
		return r
	}
	defer s.asker.end(c.peer.UID)
	ctx, cancel := context.WithTimeout(ctx, s.atLeastAskWithin(whoTimeout))
	defer cancel()
	for range whoAttempts {
		key, err := s.readKey(ctx, r.Name)
		if err != nil {
			r.found.Redis = err.Error()
			return r
		}
		if s.findHolder(ctx, r, &key); !hasPassedOn(r) {
			break
		}
	}
	if h := r.found.Holder; h != nil && c.rules != nil {
		c.rules.HostTerms().Redact(h)
	}
	return r
}

// hasPassedOn reports whether the sidecar of the owner answered that it does not have the lock.
func hasPassedOn(r *whoRequest) bool {
	h := r.found.Holder
	return h != nil && (h.State == protocol.StateFree || h.State == protocol.StateRemote)
}

// findHolder fills in what the key says, the names of the hosts in it, and what the sidecar of its
// owner knows.
func (s *Server) findHolder(ctx context.Context, r *whoRequest, key *store.Key) {
	r.isOurs = false
	r.found = protocol.WhoRow{Redis: "ok", Key: key.State, Msg: key.What, TTLMS: max(key.TTLMS, -1), Queued: key.Queued}
	if key.State == protocol.KeyFree {
		r.found.TTLMS = 0
	}
	for _, o := range key.Owners {
		r.found.Owners = append(r.found.Owners, protocol.OwnerRow{Field: o.Field, Entries: o.Entries})
	}
	for _, t := range key.Tickets {
		r.found.Queue = append(r.found.Queue, protocol.OwnerRow{Field: t.Field, Sidecar: store.UUIDOf(t.Field), WaitedMS: t.WaitedMS})
	}
	owner := ""
	if key.State == protocol.KeyLock && len(key.Owners) == 1 {
		owner = store.UUIDOf(key.Owners[0].Field)
	}
	r.isOurs = owner == s.uuid
	if s.cfg.OtherHosts == OtherHostsNone {
		if r.isOurs || store.IsSidecar(owner) {
			r.found.Owners[0].Sidecar = owner
		}
		if owner != "" && !r.isOurs {
			r.found.Trouble = "this sidecar does not ask other hosts: its setting other_hosts is none"
		}
		return
	}
	named := make(chan map[string]string, 1)
	s.lookUpNames(&r.found, owner, named)
	ok := new(protocol.HostInfoOK)
	var outcome error
	if owner != "" && !r.isOurs {
		outcome = s.askSidecar(ctx, owner, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: r.Name} }, ok)
	}
	names := map[string]string{}
	select {
	case names = <-named: // also if the time is over, because the owner did not answer
	default:
		select {
		case names = <-named:
		case <-ctx.Done():
		}
	}
	for _, rows := range [][]protocol.OwnerRow{r.found.Owners, r.found.Queue} {
		for i := range rows {
			rows[i].Host = names[store.UUIDOf(rows[i].Field)]
		}
	}
	if owner == "" {
		return
	}
	o := &r.found.Owners[0]
	isNotReached := errors.Is(outcome, errNotReached)
	if r.isOurs || o.Host != "" || store.IsSidecar(owner) || !isNotReached {
		o.Sidecar = owner
	}
	if r.isOurs || o.Sidecar == "" {
		return
	}
	host := "host " + o.Host
	if o.Host == "" {
		host = "sidecar " + owner
	}
	var refused refusedByHost
	switch {
	case isNotReached:
		r.found.Trouble = fmt.Sprintf("the daemon of %s is not connected to Redis: it has ended, or it hangs", host)
	case errors.Is(outcome, errNoAnswer):
		r.found.Trouble = fmt.Sprintf("the daemon of %s did not answer within %v: it hangs, its host is overloaded, or its setting other_hosts is none", host, s.atLeastAskWithin(whoTimeout))
	case errors.As(outcome, &refused):
		r.found.Trouble = fmt.Sprintf("the daemon of %s did not say who holds it: %s", host, refused.Msg)
	case outcome != nil:
		r.found.Trouble = fmt.Sprintf("the daemon of %s could not be asked: %v", host, outcome)
	case ok.Lock == nil:
		r.found.Trouble = fmt.Sprintf("the daemon of %s does not know the lock: the lock passed on a moment ago, or the daemon was restarted without its state", host)
	case acceptRows(host, ok.Lock) != nil: // the decoder has bounded the row
		r.found.Trouble = fmt.Sprintf("the daemon of %s returned an answer that is not valid; find out which program publishes on its channel", host)
	default:
		r.found.Holder = ok.Lock
	}
}

// lookUpNames finds the names of the hosts that have the key or wait for it, and delivers them by
// the uuids of their sidecars.
func (s *Server) lookUpNames(row *protocol.WhoRow, owner string, named chan<- map[string]string) {
	ids := []string{}
	if owner != "" {
		ids = append(ids, owner)
	}
	for i := range row.Queue {
		if id := row.Queue[i].Sidecar; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	s.store.HostsOf(ids, func(hosts []store.Host, _ error) {
		names := map[string]string{s.uuid: s.cfg.HostName}
		for i := range hosts {
			names[hosts[i].UUID] = hosts[i].Name
		}
		named <- names
	})
}

// readKey returns what Redis has for a lock. The error is a sentence for people.
func (s *Server) readKey(ctx context.Context, name string) (store.Key, error) {
	type result struct {
		key store.Key
		err error
	}
	read := make(chan result, 1)
	s.store.Key(name, func(key store.Key, err error) { read <- result{key, err} })
	select {
	case r := <-read:
		return r.key, r.err
	case <-ctx.Done():
		return store.Key{}, fmt.Errorf("Redis has not answered for %v", s.atLeastAskWithin(whoTimeout))
	}
}

// who answers a who request.
func (l *loop) who(now int64, cl *session, r *whoRequest) {
	if r.refusal != nil {
		l.refuse(cl.conn, r.ID, r.refusal.Code, r.refusal.Msg)
		return
	}
	m := &protocol.WhoOK{ID: r.ID, WhoRow: r.found}
	if row, ok := l.rowFor(now, cl, r.Name); ok {
		m.Lock = &row
		if r.isOurs {
			m.Holder = &row
		}
	}
	if r.isOurs && m.Holder == nil {
		m.Trouble = "this sidecar does not know the lock any more: it has just been released, or the daemon was restarted without its state"
	}
	l.queueReply(cl.conn, m)
}
