package otherhosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

const (
	// whoTimeout is how long a client waits for what Redis and the sidecar of the holder know of a
	// lock.
	whoTimeout = 800 * time.Millisecond

	// whoAttempts is how often the key is read, if the lock passes on before its holder is asked.
	whoAttempts = 2
)

// atLeastAskWithin returns a timeout, or the setting of it that is longer: for tests on a busy host.
func (h *Hosts) atLeastAskWithin(timeout time.Duration) time.Duration {
	return max(timeout, h.cfg.AskWithin)
}

// WhoRequest is a who request with what is not the loop's.
type WhoRequest struct {
	protocol.Who
	Found   protocol.WhoRow
	IsOurs  bool // the key has an owner field of this sidecar
	Refusal *protocol.Err
}

// Who reads what Redis has for a lock, and asks the sidecar of its holder. However many hosts there are, it reads one key and one queue, looks up the names of
// those that are in them, and asks one sidecar.
func (h *Hosts) Who(ctx context.Context, c *Client, m *protocol.Who) *WhoRequest {
	r := &WhoRequest{Who: *m}
	if c.Denial != nil {
		refusal := *c.Denial
		r.Refusal = &refusal
		return r
	}
	if refused := refuseByPolicy(c, m); refused != nil {
		r.Found.Redis = "not read: " + refused.Msg
		return r
	}
	if r.Refusal = h.asker.begin(c.UID); r.Refusal != nil {
		return r
	}
	defer h.asker.end(c.UID)
	ctx, cancel := context.WithTimeout(ctx, h.atLeastAskWithin(whoTimeout))
	defer cancel()
	for range whoAttempts {
		key, err := h.readKey(ctx, r.Name)
		if err != nil {
			r.Found.Redis = err.Error()
			return r
		}
		if h.findHolder(ctx, r, &key); !hasPassedOn(r) {
			break
		}
	}
	if h := r.Found.Holder; h != nil && c.Rules != nil {
		c.Rules.HostTerms().Redact(h)
	}
	return r
}

// hasPassedOn reports whether the sidecar of the owner answered that it does not have the lock.
func hasPassedOn(r *WhoRequest) bool {
	h := r.Found.Holder
	return h != nil && (h.State == protocol.StateFree || h.State == protocol.StateRemote)
}

// findHolder fills in what the key says, the names of the hosts in it, and what the sidecar of its
// owner knows.
func (h *Hosts) findHolder(ctx context.Context, r *WhoRequest, key *lookup.Key) {
	r.IsOurs = false
	r.Found = protocol.WhoRow{Redis: "ok", Key: key.State, Msg: key.What, TTLMS: max(key.TTLMS, -1), Queued: key.Queued}
	if key.State == protocol.KeyFree {
		r.Found.TTLMS = 0
	}
	for _, o := range key.Owners {
		r.Found.Owners = append(r.Found.Owners, protocol.OwnerRow{Field: o.Field, Entries: o.Entries})
	}
	for _, t := range key.Tickets {
		r.Found.Queue = append(r.Found.Queue, protocol.OwnerRow{Field: t.Field, Sidecar: lookup.UUIDOf(t.Field), WaitedMS: t.WaitedMS})
	}
	owner := ""
	if key.State == protocol.KeyLock && len(key.Owners) == 1 {
		owner = lookup.UUIDOf(key.Owners[0].Field)
	}
	r.IsOurs = owner == h.cfg.UUID
	if h.cfg.Setting == None {
		if r.IsOurs || redisop.IsSidecar(owner) {
			r.Found.Owners[0].Sidecar = owner
		}
		if owner != "" && !r.IsOurs {
			r.Found.Trouble = "this sidecar does not ask other hosts: its setting other_hosts is none"
		}
		return
	}
	named := make(chan map[string]string, 1)
	h.lookUpNames(&r.Found, owner, named)
	ok := new(protocol.HostInfoOK)
	var outcome error
	if owner != "" && !r.IsOurs {
		outcome = h.askSidecar(ctx, owner, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: r.Name} }, ok)
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
	for _, rows := range [][]protocol.OwnerRow{r.Found.Owners, r.Found.Queue} {
		for i := range rows {
			rows[i].Host = names[lookup.UUIDOf(rows[i].Field)]
		}
	}
	if owner == "" {
		return
	}
	o := &r.Found.Owners[0]
	isNotReached := errors.Is(outcome, errNotReached)
	if r.IsOurs || o.Host != "" || redisop.IsSidecar(owner) || !isNotReached {
		o.Sidecar = owner
	}
	if r.IsOurs || o.Sidecar == "" {
		return
	}
	host := "host " + o.Host
	if o.Host == "" {
		host = "sidecar " + owner
	}
	var refused refusedByHost
	switch {
	case isNotReached:
		r.Found.Trouble = fmt.Sprintf("the daemon of %s is not connected to Redis: it has ended, or it hangs", host)
	case errors.Is(outcome, errNoAnswer):
		r.Found.Trouble = fmt.Sprintf("the daemon of %s did not answer within %v: it hangs, its host is overloaded, or its setting other_hosts is none", host, h.atLeastAskWithin(whoTimeout))
	case errors.As(outcome, &refused):
		r.Found.Trouble = fmt.Sprintf("the daemon of %s did not say who holds it: %s", host, refused.Msg)
	case outcome != nil:
		r.Found.Trouble = fmt.Sprintf("the daemon of %s could not be asked: %v", host, outcome)
	case ok.Lock == nil:
		r.Found.Trouble = fmt.Sprintf("the daemon of %s does not know the lock: the lock passed on a moment ago, or the daemon was restarted without its state", host)
	case acceptRows(host, ok.Lock) != nil: // the decoder has bounded the row
		r.Found.Trouble = fmt.Sprintf("the daemon of %s returned an answer that is not valid; find out which program publishes on its channel", host)
	default:
		r.Found.Holder = ok.Lock
	}
}

// lookUpNames finds the names of the hosts that have the key or wait for it, and delivers them by
// the uuids of their sidecars.
func (h *Hosts) lookUpNames(row *protocol.WhoRow, owner string, named chan<- map[string]string) {
	ids := []string{}
	if owner != "" {
		ids = append(ids, owner)
	}
	for i := range row.Queue {
		if id := row.Queue[i].Sidecar; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	h.Store.HostsOf(ids, func(hosts []lookup.Host, _ error) {
		names := map[string]string{h.cfg.UUID: h.cfg.HostName}
		for i := range hosts {
			names[hosts[i].UUID] = hosts[i].Name
		}
		named <- names
	})
}

// silentRedis is the error of a Redis that has not answered for so long.
type silentRedis time.Duration

func (d silentRedis) Error() string {
	return fmt.Sprintf("Redis has not answered for %v", time.Duration(d))
}

// readKey returns what Redis has for a lock. The error is a sentence for people.
func (h *Hosts) readKey(ctx context.Context, name string) (lookup.Key, error) {
	type result struct {
		key lookup.Key
		err error
	}
	read := make(chan result, 1)
	h.Store.Key(name, func(key lookup.Key, err error) { read <- result{key, err} })
	select {
	case r := <-read:
		return r.key, r.err
	case <-ctx.Done():
		return lookup.Key{}, silentRedis(h.atLeastAskWithin(whoTimeout))
	}
}
