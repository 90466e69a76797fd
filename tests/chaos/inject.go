package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/history"
)

// inject carries out one fault and returns when it is over. An error is one of
// the run, not of what was broken.
func (c *conductor) inject(ctx context.Context, f fault) error {
	var did bool
	var err error
	switch f.kind {
	case workerKill, workerStop:
		did, err = c.troubleWorker(ctx, f)
	case failover:
		did, err = c.failOver(ctx, f)
	case deleteLock:
		did = c.deleteLock(ctx, f)
	case forced:
		did = c.forceRelease(ctx, f)
	default:
		did, err = c.during(f, "", func() (bool, error) { return c.breakOne(ctx, f) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if did {
		c.done[f.kind]++
	} else {
		c.skipped[f.kind]++
	}
	return err
}

// choose returns one of some names of locks that workers want; "": there is none.
func choose(names []string, pick uint64) string {
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "hot:") && !strings.HasPrefix(name, "cool:")
	})
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return names[pick%uint64(len(names))]
}

// during writes into the history that something is broken while do runs; lock is
// the only one that is concerned, or "".
func (c *conductor) during(f fault, lock string, do func() (bool, error)) (bool, error) {
	id := int(c.lastFault.Add(1))
	if len(effects[f.kind]) > 0 {
		c.broken.Add(1)
		defer c.broken.Add(-1)
	}
	now := protocol.Now()
	c.log.Write(history.Event{Kind: history.Fault, Before: now, At: now, ID: id, Fault: string(f.kind), Target: f.lane, Lock: lock, Effects: effects[f.kind]})
	did, err := do()
	c.log.Write(history.Event{Kind: history.Mended, At: protocol.Now(), ID: id})
	return did, err
}

// breakOne breaks a host, its link or Redis, and mends it. The answer is whether
// there was anything to break.
func (c *conductor) breakOne(ctx context.Context, f fault) (bool, error) {
	h, master := c.hosts[f.host], c.servers[0]
	switch f.kind {
	case daemonKill, daemonTerm:
		sig := syscall.SIGKILL
		if f.kind == daemonTerm {
			sig = syscall.SIGTERM
		}
		return true, c.restart(ctx, h, sig, f.last)
	case daemonStop:
		h.signal(syscall.SIGSTOP)
		err := pause(ctx, f.last)
		h.signal(syscall.SIGCONT)
		return true, err

	case redisStop:
		master.signal(syscall.SIGSTOP)
		err := pause(ctx, f.last)
		master.signal(syscall.SIGCONT)
		return true, err
	case redisRestart:
		master.kill()
		if err := pause(ctx, f.last); err != nil {
			return true, err
		}
		return true, master.start(ctx)
	case redisFull:
		if err := master.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			return false, nil
		}
		err := pause(ctx, f.last)
		if mended := master.ConfigSet(ctx, "maxmemory", "0").Err(); mended != nil && err == nil {
			err = mended
		}
		return true, err
	case flushAll:
		return master.FlushAll(ctx).Err() == nil, nil
	case scriptFlush:
		return master.ScriptFlush(ctx).Err() == nil, nil

	case linkDrop:
		h.link.drop()
		return true, nil
	case linkRefuse:
		h.link.refuse(true)
		h.link.drop()
		err := pause(ctx, f.last)
		h.link.refuse(false)
		return true, err
	case linkStall:
		h.link.stall(true)
		err := pause(ctx, f.last)
		h.link.stall(false)
		return true, err
	case linkHalfOpen:
		// A sidecar finds out by the silence; then it makes new ones.
		h.link.halfOpen(c.set.rules().Settle)
		return true, nil
	}
	return false, fmt.Errorf("nobody knows how to do this: %s", f.kind)
}

// restart ends a daemon, starts it again after a while, and returns when it
// answers. How long it takes until it grants is measured if nothing else is
// broken meanwhile.
func (c *conductor) restart(ctx context.Context, h *host, sig syscall.Signal, last time.Duration) error {
	alone, fault := c.broken.Load() == 1, c.lastFault.Load()
	killed := protocol.Now()
	if err := h.end(ctx, sig); err != nil {
		return err
	}
	if err := pause(ctx, last); err != nil {
		return err
	}
	started := protocol.Now()
	if err := h.start(); err != nil {
		return err
	}
	if alone && sig == syscall.SIGKILL {
		c.probes.Go(func() {
			at, err := h.serves(ctx)
			if err == nil && c.lastFault.Load() == fault {
				c.mu.Lock()
				c.backs = append(c.backs, back{fromKill: time.Duration(at - killed), fromStart: time.Duration(at - started)})
				c.mu.Unlock()
			}
		})
	}
	return h.greets(ctx)
}

// deleteLock deletes a lock that somebody holds from Redis.
func (c *conductor) deleteLock(ctx context.Context, f fault) bool {
	names, err := c.servers[0].Keys(ctx, "*:*").Result()
	lock := choose(names, f.pick)
	if err != nil || lock == "" {
		return false
	}
	did, _ := c.during(f, lock, func() (bool, error) {
		return c.servers[0].Del(ctx, lock).Err() == nil, nil
	})
	return did
}

// forceRelease ends a hold of a host as an operator would.
func (c *conductor) forceRelease(ctx context.Context, f fault) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client, err := locksidecar.Dial(ctx, c.hosts[f.host].socket, locksidecar.WithPatience(0))
	if err != nil {
		return false
	}
	defer client.Close()
	rows, err := client.List(ctx)
	var held []string
	for _, row := range rows {
		if row.State == "held" {
			held = append(held, row.Name)
		}
	}
	lock := choose(held, f.pick)
	if err != nil || lock == "" {
		return false
	}
	did, _ := c.during(f, lock, func() (bool, error) {
		_, err := client.ForceRelease(ctx, lock)
		return err == nil, nil
	})
	return did
}

// troubleWorker kills or stops a worker.
func (c *conductor) troubleWorker(ctx context.Context, f fault) (bool, error) {
	w := c.fleet.pick(f.pick)
	if w == nil {
		return false, nil
	}
	if f.kind == workerKill {
		return true, c.fleet.kill(w)
	}
	return true, c.fleet.stop(ctx, w, f.last)
}

// failOver makes the replica the master when it lags: what the old master did
// since then is lost. For a while the hosts talk to a server that is a replica.
func (c *conductor) failOver(ctx context.Context, f fault) (bool, error) {
	old, next := c.servers[0], c.servers[1]
	if until(ctx, 5*time.Second, "the replica has caught up", func() bool { return next.caughtUp(ctx) && old.leads(ctx) }) != nil {
		return false, ctx.Err()
	}
	return c.during(f, "", func() (bool, error) {
		c.replica.refuse(true)
		c.replica.drop()
		if err := pause(ctx, f.last); err != nil { // it lags
			return true, err
		}
		if err := next.promote(ctx); err != nil {
			return true, err
		}
		c.replica.lead(next.socket())
		c.replica.refuse(false)
		if err := old.follow(ctx, c.replica); err != nil {
			return true, err
		}
		if err := pause(ctx, f.last/2); err != nil { // it refuses to write
			return true, err
		}
		for _, h := range c.hosts {
			h.link.lead(next.socket())
		}
		c.servers[0], c.servers[1] = next, old
		return true, nil
	})
}
