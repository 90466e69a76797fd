package harness

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A NameAttack is an attack by a name: several clients of a local user acquire a lock whose key or
// channel is near to something of a sidecar or of another lock. One has it, the others wait or are
// canceled.
type NameAttack struct {
	Description string
	Name        string
	IsAllowed   bool // the daemon grants the name
}

// NameAttacks are the attacks on a lock that two hosts want. own is the uuid of the sidecar whose
// client attacks, other that of the other host, and dead that of a host which is gone.
func NameAttacks(lock, own, other, dead string) []NameAttack {
	return []NameAttack{
		{"channel of its own sidecar", "{locksidecar}:" + own, false},
		{"channel of the other sidecar", "{locksidecar}:" + other, false},
		{"channel of a dead sidecar", "{locksidecar}:" + dead, false},
		{"the lock in braces", "{" + lock + "}", true},
		{"key of the queue", "locksidecar_queue:{" + lock + "}", false},
		{"key of the signs of life", "locksidecar_signs:{" + lock + "}", false},
		{"key of the token counter", "redisson_lock_token:{" + lock + "}", false},
		{"key of a host", "locksidecar_host:{" + other + "}", false},
		{"index of the hosts", "locksidecar_hosts:{}", false},
	}
}

// StartNameAttack starts an attack by a name from four clients. counts returns how many of its
// requests were granted and refused so far.
func StartNameAttack(t testing.TB, d *Daemon, name string) (attacker *Worker, counts func() (granted, refused int64)) {
	t.Helper()
	attacker, _ = startAttack(t, d, Attack{Kind: "name", Size: 4}, attackName+"="+name)
	return attacker, func() (granted, refused int64) {
		n := attacker.Must(Command{Do: "counts"}).Waits
		return n[0], n[1]
	}
}

// attackByName has n clients acquire one lock again and again. Each holds it for 150 ms, and cancels
// each fourth request while it waits. A sidecar subscribes for a client that has waited for 100 ms, and
// so its subscriptions begin and end.
func attackByName(n int) error {
	name := os.Getenv(attackName)
	var granted, refused atomic.Int64
	err := overConnections(n, func(i int, a *attacker) {
		var d protocol.ReplyDecoder
		for k := i; ; k++ {
			id := a.next()
			if a.send(&protocol.Acquire{ID: id, Name: name, WaitMS: protocol.Forever}) != nil {
				return
			}
			if k%4 == 3 {
				_ = a.send(&protocol.Cancel{Target: id})
			}
			body, err := a.frames.Next()
			if err != nil {
				return
			}
			reply, err := d.Decode(body)
			if err != nil {
				return
			}
			switch r := reply.(type) {
			case *protocol.Err:
				if r.Code == protocol.Denied {
					refused.Add(1)
				}
			case *protocol.Answer:
				var g protocol.AcquireOK
				if r.Unpack(&g) == nil {
					granted.Add(1)
					<-time.After(150 * time.Millisecond)
					_ = a.send(&protocol.Release{Hold: g.Hold})
				}
			}
			<-time.After(time.Millisecond)
		}
	})
	if err != nil {
		return err
	}
	out, in := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
	for {
		var c Command
		if err := in.Decode(&c); err != nil {
			return err
		}
		_ = out.Encode(Answer{N: c.N, Waits: []int64{granted.Load(), refused.Load()}})
	}
}

// Users are clients of several hosts that acquire and release one lock without a pause.
type Users struct {
	t      testing.TB
	grants []atomic.Int64 // by host
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// StartUsers starts so many clients of each host, which use a lock until the test ends.
func StartUsers(t testing.TB, lock string, clientsPerHost int, hosts ...*Daemon) *Users {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	u := &Users{t: t, grants: make([]atomic.Int64, len(hosts)), stop: stop}
	for i, d := range hosts {
		for range clientsPerHost {
			c := Dial(t, d)
			u.wg.Go(func() {
				for ctx.Err() == nil {
					l, err := c.Lock(ctx, lock)
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("a client of host %d: %v", i, err)
						}
						return
					}
					u.grants[i].Add(1)
					_ = l.Unlock()
				}
			})
		}
	}
	t.Cleanup(u.Stop)
	return u
}

// Grants returns how often the clients of a host were granted the lock.
func (u *Users) Grants(host int) int64 { return u.grants[host].Load() }

// AwaitGrants waits until the clients of a host are granted the lock n times more.
func (u *Users) AwaitGrants(host int, n int64) {
	u.t.Helper()
	before := u.Grants(host)
	Eventually(u.t, "the clients of the host are granted the lock", func() bool { return u.Grants(host) >= before+n })
}

// Stop ends the clients.
func (u *Users) Stop() {
	u.stop()
	u.wg.Wait()
}

// UUIDOf returns the uuid of the sidecar of a host.
func UUIDOf(t testing.TB, r *Redis, d *Daemon) string {
	t.Helper()
	const name = "whose uuid"
	c := Dial(t, d)
	defer c.Close() // the daemon may end before the test
	l, err := c.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	uuid := r.Owner(name)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the lock is free", func() bool { return len(r.Fields(name)) == 0 })
	return uuid
}
