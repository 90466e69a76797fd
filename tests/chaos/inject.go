package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/history"
)

// inject injects one fault and returns when it has ended. An error is one of the run, not a
// consequence of the fault.
func (c *conductor) inject(ctx context.Context, f fault) error {
	var did bool
	var err error
	switch f.kind {
	case workerKill, workerStop:
		did, err = c.disturbWorker(ctx, f)
	case failover:
		did, err = c.failOver(ctx, f)
	case exchange:
		did, err = c.exchangeRoles(ctx, f)
	case deleteLock:
		did = c.deleteLock(ctx, f)
	case forced:
		did = c.forceRelease(ctx, f)
	default:
		did, err = c.recordFault(f, "", func() (bool, error) { return c.breakAndRestore(ctx, f) })
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

// chooseLock returns one of the names that is a lock of the workers; "": none is.
func chooseLock(names []string, pick uint64) string {
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "hot:") && !strings.HasPrefix(name, "cool:")
	})
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return names[pick%uint64(len(names))]
}

// recordFault records a fault in the history while do runs; lock is the only lock that the fault
// affects, or "".
func (c *conductor) recordFault(f fault, lock string, do func() (bool, error)) (bool, error) {
	id := int(c.lastFault.Add(1))
	if len(effects[f.kind]) > 0 {
		c.activeFaults.Add(1)
		defer c.activeFaults.Add(-1)
	}
	now := protocol.Now()
	c.log.Write(history.Event{Kind: history.Fault, Before: now, At: now, ID: id, Fault: string(f.kind), Target: f.lane, Lock: lock, Effects: effects[f.kind]})
	did, err := do()
	c.log.Write(history.Event{Kind: history.Mended, At: protocol.Now(), ID: id})
	return did, err
}

// breakAndRestore injects a fault into a host, its link or Redis, and ends it; false: the fault
// could not be injected.
func (c *conductor) breakAndRestore(ctx context.Context, f fault) (bool, error) {
	h := c.hosts[f.host]
	master, _ := c.pair()
	switch f.kind {
	case daemonKill, daemonTerm:
		sig := syscall.SIGKILL
		if f.kind == daemonTerm {
			sig = syscall.SIGTERM
		}
		return true, c.restart(ctx, h, sig, f.duration)
	case daemonStop:
		h.signal(syscall.SIGSTOP)
		err := pause(ctx, f.duration)
		h.signal(syscall.SIGCONT)
		return true, err

	case redisStop:
		master.signal(syscall.SIGSTOP)
		err := pause(ctx, f.duration)
		master.signal(syscall.SIGCONT)
		return true, err
	case redisRestart:
		master.kill()
		if err := pause(ctx, f.duration); err != nil {
			return true, err
		}
		return true, master.start(ctx)
	case redisFull:
		if err := master.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			return false, nil
		}
		err := pause(ctx, f.duration)
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
		err := pause(ctx, f.duration)
		h.link.refuse(false)
		return true, err
	case linkStall:
		h.link.stall(true)
		err := pause(ctx, f.duration)
		h.link.stall(false)
		return true, err
	case linkHalfOpen:
		// A sidecar detects the silence and makes new connections.
		h.link.halfOpen(c.set.rules().Settle)
		return true, nil
	}
	return false, fmt.Errorf("unknown kind of fault: %s", f.kind)
}

// restart ends a daemon, starts it again after a while, and returns when it answers. It measures
// the time until a grant if there is no other fault at the same time.
func (c *conductor) restart(ctx context.Context, h *host, sig syscall.Signal, downtime time.Duration) error {
	alone, fault := c.activeFaults.Load() == 1, c.lastFault.Load()
	killed := protocol.Now()
	if err := h.stop(ctx, sig); err != nil {
		return err
	}
	if err := pause(ctx, downtime); err != nil {
		return err
	}
	started := protocol.Now()
	if err := h.start(); err != nil {
		return err
	}
	if alone && sig == syscall.SIGKILL {
		c.probes.Go(func() {
			at, err := h.awaitGrant(ctx)
			if err == nil && c.lastFault.Load() == fault {
				c.mu.Lock()
				c.recoveries = append(c.recoveries, recovery{fromKill: time.Duration(at - killed), fromStart: time.Duration(at - started)})
				c.mu.Unlock()
			}
		})
	}
	return h.awaitAnswer(ctx)
}

// deleteLock deletes the key of a held lock from Redis.
func (c *conductor) deleteLock(ctx context.Context, f fault) bool {
	master, _ := c.pair()
	names, err := master.Keys(ctx, "*:*").Result()
	lock := chooseLock(names, f.pick)
	if err != nil || lock == "" {
		return false
	}
	did, _ := c.recordFault(f, lock, func() (bool, error) {
		return master.Del(ctx, lock).Err() == nil, nil
	})
	return did
}

// forceRelease forces the release of a lock that a client of a host holds.
func (c *conductor) forceRelease(ctx context.Context, f fault) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client, err := locksidecar.Dial(ctx, c.hosts[f.host].socket, locksidecar.WithDialPatience(0), locksidecar.WithReconnectPatience(0))
	if err != nil {
		return false
	}
	defer client.Close()
	rows, err := client.List(ctx)
	var held []string
	for _, row := range rows {
		if row.State == locksidecar.LockHeld {
			held = append(held, row.Name)
		}
	}
	lock := chooseLock(held, f.pick)
	if err != nil || lock == "" {
		return false
	}
	did, _ := c.recordFault(f, lock, func() (bool, error) {
		_, err := client.ForceRelease(ctx, lock)
		return err == nil, nil
	})
	return did
}

// disturbWorker kills or stops a worker.
func (c *conductor) disturbWorker(ctx context.Context, f fault) (bool, error) {
	w := c.fleet.pick(f.pick)
	if w == nil {
		return false, nil
	}
	if f.kind == workerKill {
		return true, c.fleet.kill(w)
	}
	return true, c.fleet.stop(ctx, w, f.duration)
}

// failOver promotes a replica that lags: the last writes of the old master are lost. For a while
// the hosts are connected to a server that is a replica.
func (c *conductor) failOver(ctx context.Context, f fault) (bool, error) {
	old, next := c.pair()
	if waitUntil(ctx, 5*time.Second, "the replica is in sync", func() bool { return next.isReplicaInSync(ctx) && old.isMaster(ctx) }) != nil {
		return false, ctx.Err()
	}
	return c.recordFault(f, "", func() (bool, error) {
		c.replica.refuse(true)
		c.replica.drop()
		if err := pause(ctx, f.duration); err != nil { // meanwhile the replica falls behind
			return true, err
		}
		if err := next.promote(ctx); err != nil {
			return true, err
		}
		c.replica.redirect(next.socket())
		c.replica.refuse(false)
		if err := old.replicate(ctx, c.replica); err != nil {
			return true, err
		}
		if err := pause(ctx, f.duration/2); err != nil { // meanwhile the old master refuses writes
			return true, err
		}
		for _, h := range c.hosts {
			h.link.redirect(next.socket())
		}
		c.swapServers()
		return true, nil
	})
}

// exchangeRoles makes the replica the master, and the master its replica, as an operator does who
// wants to lose nothing: writes are paused until the replica has all data. No connection of a
// daemon ends, except those of older daemons (see host.follows). The others stay at the former
// master until it refuses a write, and receive there by replication what the new master publishes.
func (c *conductor) exchangeRoles(ctx context.Context, f fault) (bool, error) {
	old, next := c.pair()
	if waitUntil(ctx, 5*time.Second, "the replica is in sync", func() bool { return next.isReplicaInSync(ctx) && old.isMaster(ctx) }) != nil {
		return false, ctx.Err()
	}
	return c.recordFault(f, "", func() (bool, error) {
		if err := old.pauseWrites(ctx); err != nil {
			return true, err
		}
		hasAll := func() bool {
			offset := old.offset(ctx)
			return offset >= 0 && next.offset(ctx) == offset
		}
		if waitUntil(ctx, eventTimeout, "the replica has all data", hasAll) != nil {
			return false, errors.Join(ctx.Err(), old.resumeWrites(ctx))
		}
		for _, h := range c.hosts {
			if h.follows {
				h.link.redirect(next.socket())
			} else {
				h.link.leadTo(next.socket())
			}
		}
		if err := next.promote(ctx); err != nil {
			return true, err
		}
		c.replica.redirect(next.socket())
		if err := old.replicate(ctx, c.replica); err != nil {
			return true, err
		}
		c.swapServers()
		return true, old.resumeWrites(ctx)
	})
}
