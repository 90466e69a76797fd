package otherhosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A lock is orphaned if the daemon whose field Redis has is gone for good: its host died, or it
// started without the earlier state. Nothing renews such a lock, and nothing releases it before its
// lease or its keep ends in Redis. So are the permits of such a daemon.

// orphanTimeout is how long a client waits for the command that frees an orphaned lock. It is sent
// after what whoTimeout bounds.
const orphanTimeout = 500 * time.Millisecond

// releaseOrphaned frees an orphaned lock. It takes time. The caller has checked who asks.
//
// A daemon that is only cut off from Redis cannot be told from one that is gone. So each sign of life
// counts: a subscription to its channel, whether or not a daemon answers there, and what it published
// of its host, which lasts for minutes. The script that frees the lock looks for them again.
func (h *Hosts) releaseOrphaned(req *protocol.ForceReleaseOrphaned) (*protocol.ForceReleaseOrphanedOK, *protocol.Err) {
	if why := wire.Reserved(h.cfg.KeyPrefix, req.Name); why != "" {
		return nil, &protocol.Err{Code: protocol.Denied, Msg: why + "; no client can hold it"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.atLeastAskWithin(whoTimeout))
	defer cancel()
	key, err := h.readKey(ctx, req.Name)
	if err != nil {
		return nil, unchanged(err)
	}
	o, refusal := h.orphanOf(req, &key)
	if refusal != nil {
		return nil, refusal
	}
	if refusal := h.findLife(ctx, o); refusal != nil {
		return nil, refusal
	}
	type result struct {
		lookup.Dropped
		err error
	}
	dropped := make(chan result, 1)
	within := h.atLeastAskWithin(orphanTimeout)
	h.Store.DropOrphaned(*o, h.cfg.Lease, protocol.Now()+int64(within), func(d lookup.Dropped, err error) { dropped <- result{d, err} })
	wait := time.NewTimer(within)
	defer wait.Stop()
	var r result
	select {
	case r = <-dropped:
	case <-wait.C:
		r.err = silentRedis(within)
	}
	switch {
	case r.err != nil:
		return nil, &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("whether %s is free is not known: %v", describe(o), r.err)}
	case r.Outcome == lookup.OrphanDropped && o.Of == redisop.KindPermits:
		return &protocol.ForceReleaseOrphanedOK{Sidecar: o.Sidecar, Hold: r.Number, TTLMS: r.LeftMS, Permits: int(r.Permits)}, nil
	case r.Outcome == lookup.OrphanDropped:
		return &protocol.ForceReleaseOrphanedOK{Sidecar: o.Sidecar, Hold: o.Hold, TTLMS: max(key.TTLMS, -1), Passed: r.Passed}, nil
	case r.Outcome == lookup.OrphanChanged && o.Of == redisop.KindPermits:
		return nil, &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("sidecar %s has no permits of %q, and nothing was changed", o.Sidecar, o.Name)}
	case r.Outcome == lookup.OrphanChanged:
		return nil, &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("%s changed its owner in this moment: %s:%d does not have it any more, and nothing was changed", describe(o), o.Sidecar, o.Hold)}
	}
	return nil, &protocol.Err{Code: protocol.Denied, Msg: fmt.Sprintf("the daemon of sidecar %s has just connected to Redis: it continues with its locks, and nothing was changed; use force-release --host %s", o.Sidecar, o.Sidecar)}
}

// describe names what is to be freed.
func describe(o *lookup.Orphan) string {
	if o.Of == redisop.KindPermits {
		return fmt.Sprintf("what sidecar %s has of the semaphore %q", o.Sidecar, o.Name)
	}
	return fmt.Sprintf("the lock %q", o.Name)
}

// unchanged is the refusal if Redis could not be read.
func unchanged(err error) *protocol.Err {
	return &protocol.Err{Code: protocol.Unavailable, Msg: "nothing was changed: " + err.Error()}
}

// orphanOf returns what another sidecar has of a lock or a semaphore: the one that the request names, or the only one.
func (h *Hosts) orphanOf(req *protocol.ForceReleaseOrphaned, key *lookup.Key) (o *lookup.Orphan, refusal *protocol.Err) {
	name := req.Name
	denied := func(format string, args ...any) (*lookup.Orphan, *protocol.Err) {
		return nil, &protocol.Err{Code: protocol.Denied, Msg: fmt.Sprintf(format, args...)}
	}
	switch {
	case req.Sidecar != "" && !redisop.IsSidecar(req.Sidecar):
		return nil, &protocol.Err{Code: protocol.BadRequest, Msg: fmt.Sprintf("field sidecar: %q is no uuid of a sidecar; locksidecar who %s and ls --all show them", req.Sidecar, name)}
	case key.State == protocol.KeyFree:
		return nil, &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("the lock %q is free in Redis: nothing has to be released", name)}
	case key.State == protocol.KeyPermits:
		return h.permitsOrphanOf(req, key)
	case key.State == protocol.KeyReadWrite:
		return denied("%q is a read-write lock of a foreign client, in mode %s: find the program that uses it, and unlock it there", name, key.What)
	case key.State != protocol.KeyLock || len(key.Owners) != 1:
		return denied("%q is no lock in Redis, but %s: find out which program wrote it", name, key.What)
	}
	field := key.Owners[0].Field
	id, hold, ok := lookup.ParseOwner(field)
	switch {
	case !ok:
		return denied("the lock %q has the field %s of a foreign client: the text before the colon is the id of a Redisson client, the number that of its thread; look for the id in the logs of the programs that lock with Redisson, or in CLIENT LIST of Redis for their hosts", name, field)
	case id == h.cfg.UUID:
		return denied("the daemon of this host has the lock %q, so it is not orphaned: use force-release without --orphaned", name)
	case req.Sidecar != "" && req.Sidecar != id:
		return nil, &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("sidecar %s does not have the lock %q: sidecar %s has it", req.Sidecar, name, id)}
	}
	return &lookup.Orphan{Name: name, Sidecar: id, Hold: hold}, nil
}

// permitsOrphanOf is orphanOf for a semaphore, of which many sidecars may have permits.
func (h *Hosts) permitsOrphanOf(req *protocol.ForceReleaseOrphaned, key *lookup.Key) (*lookup.Orphan, *protocol.Err) {
	o := &lookup.Orphan{Name: req.Name, Of: redisop.KindPermits, Sidecar: req.Sidecar}
	var others []string
	for _, owner := range key.Owners {
		if id := lookup.UUIDOf(owner.Field); id != h.cfg.UUID {
			o.Sidecar = cmp.Or(o.Sidecar, id)
			others = append(others, fmt.Sprintf("%s (%d)", id, owner.Entries))
		}
	}
	switch {
	case len(key.Owners) == 0 && key.Permits == 0:
		return nil, &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("no host has permits of %q: nothing has to be released", req.Name)}
	case o.Sidecar == h.cfg.UUID || o.Sidecar == "" && len(key.Owners) > 0:
		return nil, &protocol.Err{Code: protocol.Denied, Msg: fmt.Sprintf("the permits of %q that the daemon of this host has are not orphaned: use force-release without --orphaned", req.Name)}
	case req.Sidecar == "" && len(others) != 1:
		return nil, &protocol.Err{Code: protocol.BadRequest, Msg: fmt.Sprintf("field sidecar: several other hosts have permits of %q: name one, as with force-release --orphaned --sidecar UUID: %s; ls --all has the hosts that live", req.Name, listed(others))}
	}
	return o, nil
}

// listed names the first of those that have permits.
func listed(others []string) string {
	const most = 4
	switch n := len(others); {
	case n == 0:
		return "there are too many to list"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(others[:most], ", "), n-most)
	}
	return strings.Join(others, ", ")
}

// findLife returns the refusal if there is a sign of life of the daemon of a sidecar.
func (h *Hosts) findLife(ctx context.Context, o *lookup.Orphan) *protocol.Err {
	id := o.Sidecar
	type published struct {
		host lookup.Host
		left time.Duration
		err  error
	}
	read := make(chan published, 1)
	h.Store.Published(id, func(h lookup.Host, left time.Duration, err error) { read <- published{h, left, err} })
	var p published
	select {
	case p = <-read:
	case <-ctx.Done():
		p.err = silentRedis(h.atLeastAskWithin(whoTimeout))
	}
	if p.err != nil {
		return unchanged(p.err)
	}
	sidecar, target := "sidecar "+id, id
	if p.host.Name != "" {
		sidecar, target = fmt.Sprintf("sidecar %s on host %s", id, p.host.Name), p.host.Name
	}
	denied := func(format string, args ...any) *protocol.Err {
		return &protocol.Err{Code: protocol.Denied, Msg: fmt.Sprintf(format, args...)}
	}
	err := h.askSidecar(ctx, id, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: o.Name} }, new(protocol.HostInfoOK))
	var refused refusedByHost
	switch {
	case err == nil, errors.As(err, &refused):
		return denied("the daemon of %s runs, so the lock is not orphaned: use force-release --host %s, or end the hold on that host", sidecar, target)
	case errors.Is(err, errNoAnswer):
		return denied("the daemon of %s is connected to Redis and does not answer, so it may be alive: it hangs or is stopped, or its setting other_hosts is none; end it on its host first; if that host is dead, Redis finds out after its tcp-keepalive, 300 s by default", sidecar)
	case !errors.Is(err, errNotReached):
		return unchanged(err)
	case p.left > 0:
		return denied("the daemon of %s was connected to Redis less than %v ago, so it may be alive: its programs go on while it is restarted or cut off from Redis; if its host is dead, try again in %v", sidecar, lookup.HostExpiry, p.left.Round(time.Second)+time.Second)
	}
	return nil
}
