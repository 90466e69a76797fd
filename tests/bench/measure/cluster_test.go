package measure

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A master of a Cluster that stands still delays the locks of its slots and no others: how many pairs a
// second the locks of the other masters have before and meanwhile. Clients want locks of all masters.
func TestMeasureStoppedMaster(t *testing.T) {
	measured(t)
	const clients = 8 // of each master, and each has a process's share of the daemon: a connection
	c := harness.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	d := harness.StartDaemon(t, c.URL())
	var pairs [3]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for shard := range pairs {
		for _, name := range c.Names(shard, "pairs", clients) {
			client, err := locksidecar.Dial(t.Context(), d.Socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			wg.Go(func() {
				for ctx.Err() == nil {
					lock, err := client.Lock(ctx, name)
					if err != nil {
						continue
					}
					_ = lock.Unlock()
					pairs[shard].Add(1)
				}
			})
		}
	}
	window := window(5 * time.Second)
	rate := func() (perSecond [3]float64) {
		var before [3]int64
		for i := range pairs {
			before[i] = pairs[i].Load()
		}
		time.Sleep(window)
		for i := range pairs {
			perSecond[i] = float64(pairs[i].Load()-before[i]) / window.Seconds()
		}
		return perSecond
	}
	time.Sleep(window / 5)
	for range 3 {
		before := rate()
		first := c.ShardMaster(0)
		first.Pause()
		during := rate()
		first.Continue()
		time.Sleep(window / 5)
		fmt.Printf("pairs/s of the masters %.0f; while the first stands still %.0f; the others have %.2f and %.2f\n",
			before, during, during[1]/before[1], during[2]/before[2])
	}
	stop()
	wg.Wait()
}

// All slots of one master move to another one, key by key, while a client holds a hundred thousand
// locks in all slots: how long it takes, and what becomes of the locks.
func TestMeasureResharding(t *testing.T) {
	measured(t)
	locks := count(100_000)
	c := harness.StartCluster(t, 3, 0)
	d := harness.StartDaemon(t, c.URL(), "--lease=30s", "--max-locks=1000000")
	w := harness.StartGoWorker(t, d)
	w.Must(harness.Command{Do: "lock_many", Name: "held:", Count: locks, WaitMS: -1})
	masters := c.Masters()
	status := func() string { return d.Run("status").Stdout }
	before := status()
	start := time.Now()
	moved := 0
	for slot := range count(16384) {
		if c.Master(slot) == masters[0] {
			c.MoveSlot(slot, masters[1])
			moved++
		}
	}
	took := time.Since(start)
	time.Sleep(window(15 * time.Second)) // more than a renewal of each lock
	fmt.Printf("%d slots moved in %v while %d locks were held\n%s\nbefore:\n%s", moved, took, locks, status(), before)
}

// What the renewals of a hundred thousand locks of one host cost the masters of a Cluster: to compare with
// the model of internal/sim (TestScaleClusterOfOneHost).
func TestMeasureClusterRenewals(t *testing.T) {
	measured(t)
	locks := count(100_000)
	c := harness.StartCluster(t, 3, 0)
	spent := func() (seconds float64) {
		for _, n := range c.Masters() {
			for line := range strings.Lines(n.Info(t.Context(), "cpu").Val()) {
				var part float64
				if k, v, _ := strings.Cut(strings.TrimSpace(line), ":"); k == "used_cpu_sys_main_thread" || k == "used_cpu_user_main_thread" {
					fmt.Sscan(v, &part)
					seconds += part
				}
			}
		}
		return seconds
	}
	over := window(33 * time.Second) // three renewals of each lock
	share := func() float64 {
		before, begun := spent(), time.Now()
		time.Sleep(over)
		return (spent() - before) / time.Since(begun).Seconds() / 3
	}
	d := harness.StartDaemon(t, c.URL(), "--lease=30s", "--max-locks=1000000")
	w := harness.StartGoWorker(t, d)
	idle := share()
	const portions = 10
	for i := range portions {
		w.Must(harness.Command{Do: "lock_many", Name: fmt.Sprintf("held:%d:", i), Count: locks / portions, WaitMS: -1})
	}
	share() // the renewals spread
	runs := c.CommandCalls(t.Context())["evalsha"]
	held := share()
	runs = c.CommandCalls(t.Context())["evalsha"] - runs
	row("core of a master", "%.2f %% for renewals of %d locks at 3 masters, and %.2f %% idle; %.0f runs/s", 100*(held-idle), locks, 100*idle, float64(runs)/over.Seconds())
}
