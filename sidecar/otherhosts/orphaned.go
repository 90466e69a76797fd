package otherhosts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A lock is orphaned if the daemon whose field Redis has is gone for good: its host died, or it
// started without the earlier state. Nothing renews such a lock, and nothing releases it before its
// lease or its keep ends in Redis.

// orphanTimeout is how long a client waits for the command that frees an orphaned lock. It is sent
// after what whoTimeout bounds.
const orphanTimeout = 500 * time.Millisecond

// releaseOrphaned frees an orphaned lock. It takes time. The caller has checked who asks.
//
// A daemon that is only cut off from Redis cannot be told from one that is gone. So each sign of life
// counts: a subscription to its channel, whether or not a daemon answers there, and what it published
// of its host, which lasts for minutes. The script that frees the lock looks for them again.
func (h *Hosts) releaseOrphaned(name string) (*protocol.ForceReleaseOrphanedOK, *protocol.Err) {
	if why := wire.Reserved(h.cfg.KeyPrefix, name); why != "" {
		return nil, &protocol.Err{Code: protocol.Denied, Msg: why + "; no client can hold it"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.atLeastAskWithin(whoTimeout))
	defer cancel()
	key, err := h.readKey(ctx, name)
	if err != nil {
		return nil, unchanged(err)
	}
	field, refusal := h.orphanOf(name, &key)
	if refusal != nil {
		return nil, refusal
	}
	id, hold, _ := lookup.ParseOwner(field)
	if refusal := h.findLife(ctx, name, id); refusal != nil {
		return nil, refusal
	}
	type result struct {
		outcome lookup.OrphanOutcome
		passed  bool
		err     error
	}
	dropped := make(chan result, 1)
	within := h.atLeastAskWithin(orphanTimeout)
	h.Store.DropOrphaned(name, field, h.cfg.Lease, protocol.Now()+int64(within), func(outcome lookup.OrphanOutcome, passed bool, err error) {
		dropped <- result{outcome, passed, err}
	})
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
		return nil, &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("whether the lock %q is free is not known: %v", name, r.err)}
	case r.outcome == lookup.OrphanDropped:
		return &protocol.ForceReleaseOrphanedOK{Sidecar: id, Hold: hold, TTLMS: max(key.TTLMS, -1), Passed: r.passed}, nil
	case r.outcome == lookup.OrphanChanged:
		return nil, &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("the lock %q changed its owner in this moment: %s does not have it any more, and nothing was changed", name, field)}
	}
	return nil, &protocol.Err{Code: protocol.Denied, Msg: fmt.Sprintf("the daemon of sidecar %s has just connected to Redis: it continues with its locks, and nothing was changed; use force-release --host %s", id, id)}
}

// unchanged is the refusal if Redis could not be read.
func unchanged(err error) *protocol.Err {
	return &protocol.Err{Code: protocol.Unavailable, Msg: "nothing was changed: " + err.Error()}
}

// orphanOf returns the owner field of a lock that another sidecar has.
func (h *Hosts) orphanOf(name string, key *lookup.Key) (field string, refusal *protocol.Err) {
	denied := func(format string, args ...any) (string, *protocol.Err) {
		return "", &protocol.Err{Code: protocol.Denied, Msg: fmt.Sprintf(format, args...)}
	}
	switch {
	case key.State == protocol.KeyFree:
		return "", &protocol.Err{Code: protocol.NotHeld, Msg: fmt.Sprintf("the lock %q is free in Redis: nothing has to be released", name)}
	case key.State == protocol.KeyPermits:
		return denied("%q is a semaphore: the permits of a host that is gone are free when its lease ends, and not before; locksidecar who shows which hosts have them", name)
	case key.State == protocol.KeyReadWrite:
		return denied("%q is a read-write lock of a foreign client, in mode %s: find the program that uses it, and unlock it there", name, key.What)
	case key.State != protocol.KeyLock || len(key.Owners) != 1:
		return denied("%q is no lock in Redis, but %s: find out which program wrote it", name, key.What)
	}
	field = key.Owners[0].Field
	id, _, ok := lookup.ParseOwner(field)
	switch {
	case !ok:
		return denied("the lock %q has the field %s of a foreign client: the text before the colon is the id of a Redisson client, the number that of its thread; look for the id in the logs of the programs that lock with Redisson, or in CLIENT LIST of Redis for their hosts", name, field)
	case id == h.cfg.UUID:
		return denied("the daemon of this host has the lock %q, so it is not orphaned: use force-release without --orphaned", name)
	}
	return field, nil
}

// findLife returns the refusal if there is a sign of life of the daemon of a sidecar.
func (h *Hosts) findLife(ctx context.Context, name, id string) *protocol.Err {
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
	err := h.askSidecar(ctx, id, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: name} }, new(protocol.HostInfoOK))
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
