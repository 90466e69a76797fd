package otherhosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
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

// maxAskedOwners is how many sidecars that have permits of a semaphore are asked who has them.
const maxAskedOwners = 8

// Who reads what Redis has for a lock, and asks the sidecar of its holder. However many hosts there are, it reads one key and one queue, looks up the names of
// those that are in them, and asks one sidecar, or of a semaphore maxAskedOwners.
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
		if h.findHolders(ctx, r, &key); !hasPassedOn(r) {
			break
		}
	}
	if c.Rules != nil {
		redactFound(r, c.Rules.HostTerms())
	}
	return r
}

// hasPassedOn reports whether the sidecar of the owner answered that it does not have the lock.
func hasPassedOn(r *WhoRequest) bool {
	h := r.Found.Holder
	return h != nil && (h.State == protocol.StateFree || h.State == protocol.StateRemote)
}

// findHolders fills in what the key says, the names of the hosts in it, and what the sidecars of its
// owners know.
func (h *Hosts) findHolders(ctx context.Context, r *WhoRequest, key *lookup.Key) {
	r.IsOurs = false
	r.Found = protocol.WhoRow{
		Redis: "ok", Key: key.State, Msg: key.What, TTLMS: max(key.TTLMS, -1), Queued: key.Queued, Permits: key.Permits, Of: key.Of,
	}
	if key.State == protocol.KeyFree {
		r.Found.TTLMS = 0
	}
	isSemaphore := key.State == protocol.KeyPermits
	for _, o := range key.Owners {
		row := protocol.OwnerRow{Field: o.Field}
		if isSemaphore {
			row.Sidecar, row.Permits = lookup.UUIDOf(o.Field), int(min(o.Entries, math.MaxInt32))
		} else {
			row.Entries = o.Entries
		}
		r.Found.Owners = append(r.Found.Owners, row)
	}
	for _, t := range key.Tickets {
		r.Found.Queue = append(r.Found.Queue, protocol.OwnerRow{Field: t.Field, Sidecar: lookup.UUIDOf(t.Field), Permits: t.Permits, WaitedMS: t.WaitedMS})
	}
	switch {
	case isSemaphore:
		h.findHoldersOfPermits(ctx, r)
	case key.State == protocol.KeyLock && len(key.Owners) == 1:
		h.findHolder(ctx, r, lookup.UUIDOf(key.Owners[0].Field))
	default:
		h.findHolder(ctx, r, "")
	}
}

// findHolder fills in the names of the hosts, and what the sidecar of the owner knows, if there is one.
func (h *Hosts) findHolder(ctx context.Context, r *WhoRequest, owner string) {
	r.IsOurs = owner != "" && owner == h.cfg.UUID
	if h.cfg.Setting == None {
		if r.IsOurs || redisop.IsSidecar(owner) {
			r.Found.Owners[0].Sidecar = owner
		}
		if owner != "" && !r.IsOurs {
			r.Found.Trouble = asksNoHost
		}
		return
	}
	named := make(chan map[string]string, 1)
	h.lookUpNames(&r.Found, named)
	ok := new(protocol.HostInfoOK)
	var outcome error
	if owner != "" && !r.IsOurs {
		outcome = h.askSidecar(ctx, owner, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: r.Name} }, ok)
	}
	nameHosts(ctx, &r.Found, named)
	if owner == "" {
		return
	}
	o := &r.Found.Owners[0]
	if r.IsOurs || o.Host != "" || redisop.IsSidecar(owner) || !errors.Is(outcome, errNotReached) {
		o.Sidecar = owner
	}
	if r.IsOurs || o.Sidecar == "" {
		return
	}
	if r.Found.Trouble = h.troubleOf(o, outcome, ok.Lock); r.Found.Trouble == "" {
		r.Found.Holder = ok.Lock
	}
}

const asksNoHost = "this sidecar does not ask other hosts: its setting other_hosts is none"

// findHoldersOfPermits fills in the names of the hosts, and who has the permits, as far as the first of their sidecars say
// so in time.
func (h *Hosts) findHoldersOfPermits(ctx context.Context, r *WhoRequest) {
	found := &r.Found
	if h.cfg.Setting == None {
		if slices.ContainsFunc(found.Owners, func(o protocol.OwnerRow) bool { return o.Sidecar != h.cfg.UUID }) {
			found.Trouble = asksNoHost
		}
		return
	}
	named := make(chan map[string]string, 1)
	h.lookUpNames(found, named)
	outcomes, rows := make([]error, len(found.Owners)), make([]protocol.HostInfoOK, len(found.Owners))
	var asked sync.WaitGroup
	left := maxAskedOwners
	for i := range found.Owners {
		if o := &found.Owners[i]; o.Sidecar != h.cfg.UUID && o.Sidecar != "" && left > 0 {
			left--
			asked.Go(func() {
				outcomes[i] = h.askSidecar(ctx, o.Sidecar, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: r.Name} }, &rows[i])
			})
		} else {
			outcomes[i] = errNotAsked
		}
	}
	asked.Wait()
	nameHosts(ctx, found, named)
	troubles := 0
	for i := range found.Owners {
		o := &found.Owners[i]
		if outcomes[i] == errNotAsked {
			continue
		}
		if trouble := h.troubleOf(o, outcomes[i], rows[i].Lock); trouble != "" {
			found.Trouble = cmp.Or(found.Trouble, trouble)
			troubles++
			continue
		}
		AddHolders(found, o, rows[i].Lock)
	}
	if troubles > 1 {
		found.Trouble += fmt.Sprintf("; of %d more hosts it is not known either", troubles-1)
	}
}

var errNotAsked = errors.New("the sidecar was not asked")

// AddHolders adds what the sidecar of an owner of a semaphore knows of its holders.
func AddHolders(found *protocol.WhoRow, o *protocol.OwnerRow, row *protocol.LockRow) {
	found.Of = max(found.Of, row.Of)
	o.Held, o.Holders = row.Held, row.Holders[:min(len(row.Holders), protocol.MaxPerHost)]
}

// redactFound takes out of what other hosts know what a client may not know.
func redactFound(r *WhoRequest, terms *locktable.Terms) {
	if r.Found.Holder != nil {
		terms.Redact(r.Found.Holder, false)
	}
	for i := range r.Found.Owners {
		o := &r.Found.Owners[i]
		row := protocol.LockRow{Name: r.Name, Holders: o.Holders}
		terms.Redact(&row, false)
		o.Holders = row.Holders
	}
}

// nameHosts puts the names of the hosts into the rows, if they come in time.
func nameHosts(ctx context.Context, found *protocol.WhoRow, named <-chan map[string]string) {
	names := map[string]string{}
	select {
	case names = <-named: // also if the time is over, because an owner did not answer
	default:
		select {
		case names = <-named:
		case <-ctx.Done():
		}
	}
	for _, rows := range [][]protocol.OwnerRow{found.Owners, found.Queue} {
		for i := range rows {
			rows[i].Host = names[lookup.UUIDOf(rows[i].Field)]
		}
	}
}

// troubleOf says why the sidecar of an owner did not say who has the lock; "": it did, with a row.
func (h *Hosts) troubleOf(o *protocol.OwnerRow, outcome error, row *protocol.LockRow) string {
	host := "host " + o.Host
	if o.Host == "" {
		host = "sidecar " + o.Sidecar
	}
	var refused refusedByHost
	switch {
	case errors.Is(outcome, errNotReached):
		return fmt.Sprintf("the daemon of %s is not connected to Redis: it has ended, or it hangs", host)
	case errors.Is(outcome, errNoAnswer):
		return fmt.Sprintf("the daemon of %s did not answer within %v: it hangs, its host is overloaded, or its setting other_hosts is none", host, h.atLeastAskWithin(whoTimeout))
	case errors.As(outcome, &refused):
		return fmt.Sprintf("the daemon of %s did not say who holds it: %s", host, refused.Msg)
	case outcome != nil:
		return fmt.Sprintf("the daemon of %s could not be asked: %v", host, outcome)
	case row == nil:
		return fmt.Sprintf("the daemon of %s does not know the lock: the lock passed on a moment ago, or the daemon was restarted without its state", host)
	case acceptRows(host, row) != nil: // the decoder has bounded the row
		return fmt.Sprintf("the daemon of %s returned an answer that is not valid; find out which program publishes on its channel", host)
	}
	return ""
}

// lookUpNames finds the names of the hosts that have the key or wait for it, and delivers them by
// the uuids of their sidecars.
func (h *Hosts) lookUpNames(row *protocol.WhoRow, named chan<- map[string]string) {
	ids := []string{}
	for _, rows := range [][]protocol.OwnerRow{row.Owners, row.Queue} {
		if row.Key == protocol.KeyReadWrite {
			continue // a foreign client's
		}
		for i := range rows {
			if id := lookup.UUIDOf(rows[i].Field); id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
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
