package redisfaults

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// exchangeRoles makes the replica the master, and the master its replica, as an operator does who
// wants to lose nothing. Both keep their clients.
func exchangeRoles(t *testing.T, master, replica *harness.Redis) {
	t.Helper()
	master.MustDo("CLIENT", "PAUSE", "60000", "WRITE")
	offset := func(r *harness.Redis, field string) string {
		_, rest, _ := strings.Cut(r.Info(t.Context(), "replication").Val(), "\r\n"+field+":")
		n, _, _ := strings.Cut(rest, "\r\n")
		return n
	}
	harness.Eventually(t, "the replica has all data", func() bool {
		return offset(replica, "master_repl_offset") == offset(master, "master_repl_offset")
	})
	replica.MustDo("REPLICAOF", "NO", "ONE")
	master.MustDo("REPLICAOF", "127.0.0.1", replica.Port)
	master.MustDo("CLIENT", "UNPAUSE")
	harness.Eventually(t, "the former master follows the new one", func() bool {
		return offset(master, "master_link_status") == "up"
	})
}

func startPair(t *testing.T) (master, replica *harness.Redis) {
	t.Helper()
	master = harness.StartRedis(t, "--repl-diskless-sync-delay", "0")
	replica = harness.StartRedis(t, "--repl-diskless-sync-delay", "0")
	replica.MustDo("REPLICAOF", "127.0.0.1", master.Port)
	harness.Eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return master, replica
}

// The danger: a host waits at a former master that has kept its connection. The new master passes
// the lock to the host's ticket, counts no receiver, and gives it to the next host with the same
// tokens; but the former master receives the message over replication and passes it on.
//
// Clients on three hosts take one lock again and again, while roles are exchanged under them.
//
// Shows docs/guarantees.md: Exclusion.
// Shows docs/queue.md: Origins.
// Shows docs/queue.md: Faults.
// Shows docs/decisions/0041-origins.md: Measured.
func TestDemotedMasterTransfersNothing(t *testing.T) {
	t.Parallel()
	t.Run("one host follows the master, and each server has one that stays", func(t *testing.T) {
		t.Parallel()
		first, second := startPair(t)
		way := harness.StartProxy(t, first)
		exchangeRolesUnderLoad(t, first, second, way, []host{{url: way.URL()}, {url: first.TCPURL()}, {url: second.TCPURL()}})
	})
	t.Run("two older hosts follow the master, and one of this version stays", func(t *testing.T) {
		t.Parallel()
		first, second := startPair(t)
		way := harness.StartProxy(t, first)
		older := harness.ProgramOf(t, harness.Base010PreQueue)
		exchangeRolesUnderLoad(t, first, second, way, []host{{older, way.URL()}, {older, way.URL()}, {url: first.TCPURL()}})
	})
}

type host struct{ program, url string }

// exchangeRolesUnderLoad exchanges the roles of two servers six times while clients of the hosts take
// a lock. No two are granted it at the same time, and no token is granted twice.
func exchangeRolesUnderLoad(t *testing.T, first, second *harness.Redis, way *harness.Proxy, hosts []host) {
	var clients []*locksidecar.Client
	for _, h := range hosts {
		var d *harness.Daemon
		if h.url == second.TCPURL() {
			d = harness.LaunchDaemon(t, h.url, "--lease=1s") // it is a replica
			d.AwaitSocket()
		} else {
			d = harness.StartDaemonOf(t, h.program, h.url, "--lease=1s")
		}
		clients = append(clients, harness.Dial(t, d), harness.Dial(t, d))
	}
	ctx, stop := context.WithCancel(t.Context())
	var inside, grants atomic.Int64
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := c.Lock(ctx, "hot")
				if err != nil {
					continue
				}
				if n := inside.Add(1); n != 1 && l.Err() == nil {
					t.Errorf("%d holders, one of them with token %d", n, l.Token())
				}
				mu.Lock()
				if seen[l.Token()] {
					t.Errorf("token %d is granted twice", l.Token())
				}
				seen[l.Token()] = true
				mu.Unlock()
				grants.Add(1)
				inside.Add(-1)
				_ = l.Unlock()
			}
		})
	}
	master, replica := first, second
	for range 6 {
		before := grants.Load()
		harness.Eventually(t, "the lock passes between the hosts", func() bool { return grants.Load() > before+100 })
		exchangeRoles(t, master, replica)
		master, replica = replica, master
		way.ForwardTo(master)
		way.Reset()
	}
	before := grants.Load()
	harness.Eventually(t, "the lock passes between the hosts", func() bool { return grants.Load() > before+100 })
	stop()
	wg.Wait()
	t.Logf("%d grants", grants.Load())
}
