package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// BenchmarkPairs takes and drops locks, so many of them at a time, each through
// its own take and drop one after the other, as the table would.
func BenchmarkPairs(b *testing.B) {
	for _, width := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint("inflight=", width), func(b *testing.B) {
			s := startRedis(b)
			runPairs(b, s.url(), 0, width, 0)
			reportRedisCPU(b, s)
		})
	}
}

// BenchmarkDurability is BenchmarkPairs at a master with a replica, which confirms or not. What the
// master's main thread needs for one pair includes replication in both.
func BenchmarkDurability(b *testing.B) {
	for _, width := range []int{1, 16, 64} {
		for _, replicas := range []int{0, 1} {
			b.Run(fmt.Sprintf("inflight=%d/replicas=%d", width, replicas), func(b *testing.B) {
				master, _ := startPair(b)
				measureRedis(b, master, func() { runPairs(b, master.url(), 0, width, replicas) })
				b.ReportMetric(b.Elapsed().Seconds()*1e3*float64(width)/float64(b.N), "ms/op")
			})
		}
	}
}

// BenchmarkCluster is BenchmarkPairs at a Redis that is one, or the only master of a Cluster. There each
// lock has a slot of its own, and so a script.
func BenchmarkCluster(b *testing.B) {
	for _, width := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("inflight=%d/one", width), func(b *testing.B) {
			s := startRedis(b)
			useBefore(s, width)
			measureRedis(b, s, func() { runPairs(b, s.url(), 0, width, 0) })
		})
		b.Run(fmt.Sprintf("inflight=%d/cluster", width), func(b *testing.B) {
			s := startOnlyMaster(b)
			useBefore(s, width)
			measureRedis(b, s, func() { runPairs(b, "redis+cluster://"+s.tcp(), 1, width, 0) })
		})
	}
}

// useBefore makes the token counters of the locks of runPairs, as if these had just been used. They are
// above the floor of a connection that is made soon, and not so far ahead of the clock that they raise it.
func useBefore(s *server, width int) {
	a := s.admin()
	for i := range width {
		a.Set(ctx, counterOf(fmt.Sprint("lock:", i)), time.Now().Add(800*time.Millisecond).UnixMicro(), 0)
	}
}

// startOnlyMaster starts the only master of a Cluster, which has all slots.
func startOnlyMaster(b *testing.B) *server {
	s := startRedis(b, "--cluster-enabled", "yes")
	a := s.admin()
	if err := a.Do(ctx, "cluster", "addslotsrange", 0, redisop.Slots-1).Err(); err != nil {
		b.Fatal(err)
	}
	for !strings.Contains(a.ClusterInfo(ctx).Val(), "cluster_state:ok") {
		time.Sleep(10 * time.Millisecond)
	}
	return s
}

// measureRedis reports what the main thread of a server needs for an operation of f.
func measureRedis(b *testing.B, s *server, f func()) {
	spent := func() (seconds float64) {
		info := wire.InfoFields(s.admin().Info(ctx, "cpu").Val())
		for _, part := range []string{"used_cpu_sys_main_thread", "used_cpu_user_main_thread"} {
			var n float64
			fmt.Sscan(info[part], &n)
			seconds += n
		}
		return seconds
	}
	runs := func() (n float64) {
		fmt.Sscanf(wire.InfoFields(s.admin().Info(ctx, "commandstats").Val())["cmdstat_evalsha"], "calls=%f", &n)
		return n
	}
	before, ran := spent(), runs()
	f()
	b.ReportMetric((spent()-before)*1e6/float64(b.N), "redis-µs/op")
	b.ReportMetric((runs()-ran)/float64(b.N), "runs/op")
}

// runPairs takes and drops locks of a shard, so many of them at a time.
func runPairs(b *testing.B, url string, shard redisop.Shard, width, replicas int) {
	left := b.N
	done := make(chan struct{})
	var store *Store
	names := make(map[string]uint64, width)
	ready := make(chan struct{})
	finished := 0
	onResults := func(results []redisop.Result) {
		var next []redisop.Op
		for i := range results {
			res := &results[i]
			if res.Outcome != redisop.Done {
				b.Errorf("%+v", *res)
			}
			if res.Kind == redisop.Take {
				drop := dropOp(res.Name, names[res.Name])
				drop.Set(redisop.CanWait, replicas > 0)
				next = append(next, drop)
				continue
			}
			if finished++; finished == b.N {
				close(done)
			}
			if left > 0 {
				left--
				names[res.Name]++
				next = append(next, takeOp(res.Name, names[res.Name]))
			}
		}
		for i := range next {
			next[i].Shard = shard
		}
		store.Do(next)
	}
	r := open(b, url, replicated(replicas), func(c *Config) {
		c.on(Results, func(e Event) { onResults(e.Results) })
		c.on(Up, func(Event) { close(ready) })
	})
	store = r.Store
	<-ready
	var first []redisop.Op
	for i := 0; i < width && left > 0; i++ {
		left--
		name := fmt.Sprint("lock:", i)
		names[name] = 1
		first = append(first, takeOp(name, 1))
		first[i].Shard = shard
	}
	b.ReportAllocs()
	b.ResetTimer()
	store.Do(first)
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// BenchmarkRenew renews 10,000 locks again and again; one op is one lock.
func BenchmarkRenew(b *testing.B) {
	s := startRedis(b)
	r := connected(b, s.url())
	ops := make([]redisop.Op, 10_000)
	for i := range ops {
		ops[i] = takeOp(fmt.Sprint("lock:", i), 1)
	}
	r.ask(ops...)
	for i := range ops {
		ops[i] = renewOp(ops[i].Name, 1)
	}
	s.admin().ConfigResetStat(ctx)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		batch := ops[:min(len(ops), b.N-n)]
		r.Do(batch)
		for got := 0; got < len(batch); {
			got += len(<-r.results)
		}
		n += len(batch)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
	reportRedisCPU(b, s)
}

// reportRedisCPU tells what one op of the benchmark cost inside Redis.
func reportRedisCPU(b *testing.B, s *server) {
	usec := 0.0
	for key, value := range wire.InfoFields(s.admin().Info(ctx, "commandstats").Val()) {
		if key == "cmdstat_evalsha" {
			var calls, total float64
			fmt.Sscanf(value, "calls=%f,usec=%f", &calls, &total)
			usec += total
		}
	}
	b.ReportMetric(usec*1000/float64(b.N), "redis-ns/op")
}
