package tests

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The numbers that the documentation quotes:
//
//	go test ./tests -run '^TestMeasure' -count 1 -v -measure
//
// They are printed and not judged: a test that depends on the machine's speed
// fails for reasons that are not the project's.
var measure = flag.Bool("measure", false, "run the measurements, about five minutes")

func measured(t *testing.T) {
	t.Helper()
	if !*measure {
		t.Skip("only with -measure")
	}
	if harness.RaceEnabled {
		t.Skip("the race detector would be measured")
	}
}

func row(what, format string, args ...any) {
	fmt.Printf("  %-48s %s\n", what, fmt.Sprintf(format, args...))
}

// From kill -9 of a holder to the grant of the next local waiter.
func TestMeasureCrashRelease(t *testing.T) {
	measured(t)
	const kills = 200
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	var took []int64
	for i := range kills {
		name := fmt.Sprintf("crash %d", i)
		victim := harness.StartGoWorker(t, d)
		victim.Lock(name)
		granted := make(chan int64, 1)
		go func() {
			l, err := c.Lock(context.Background(), name)
			if err != nil {
				t.Error(err)
				granted <- 0
				return
			}
			granted <- protocol.Now()
			l.Unlock()
		}()
		harness.Eventually(t, "the waiter waits", func() bool { return harness.Waiters(t, d, name) == 1 })
		killed := protocol.Now()
		victim.Signal(syscall.SIGKILL)
		took = append(took, <-granted-killed)
		victim.Kill()
	}
	slices.Sort(took)
	row(fmt.Sprintf("kill -9 to next grant, %d kills", kills), "p50 %s  p99 %s  max %s",
		ms(took[kills/2-1]), ms(took[kills*99/100-1]), ms(took[kills-1]))
}

func ms(ns int64) string { return fmt.Sprintf("%.2f ms", float64(ns)/1e6) }

// What 100,000 locks cost that one client holds.
func TestMeasureHundredThousandLocks(t *testing.T) {
	measured(t)
	const locks, parallel = 100_000, 64
	const window = 30 * time.Second // three renewals of each lock
	r := harness.StartRedis(t)
	t.Setenv("GODEBUG", "gctrace=1") // tells how much of the memory is alive
	d := harness.StartDaemon(t, r.UnixURL())
	c := harness.Dial(t, d)
	warm, err := c.Lock(t.Context(), "warm")
	if err != nil {
		t.Fatal(err)
	}
	if err := warm.Unlock(); err != nil {
		t.Fatal(err)
	}
	before := harness.ResidentMemory(t, d.PID())
	start := time.Now()
	var wg sync.WaitGroup
	for p := range parallel {
		wg.Go(func() {
			for i := p; i < locks; i += parallel {
				if _, err := c.Lock(t.Context(), fmt.Sprintf("held:%06d", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	row("100,000 locks: taken by one client", "in %.1f s", time.Since(start).Seconds())
	row("100,000 locks: sidecar memory right after", "%d bytes of RSS a lock", (harness.ResidentMemory(t, d.PID())-before)/locks)

	cpu, redisCPU, calls := cpuOf(t, d.PID()), cpuOf(t, r.PID()), r.CommandCalls(t.Context())
	time.Sleep(window)
	cpu, redisCPU = cpuOf(t, d.PID())-cpu, cpuOf(t, r.PID())-redisCPU
	now := r.CommandCalls(t.Context())
	per := func(name string) float64 { return float64(now[name]-calls[name]) / window.Seconds() }
	row("100,000 locks: sidecar memory when held for 30 s", "%d bytes of RSS a lock", (harness.ResidentMemory(t, d.PID())-before)/locks)
	const ballast = 8 // MiB that the daemon never touches
	row("100,000 locks: of it alive", "%d bytes of heap a lock", int64(liveHeap(t, d)-ballast)<<20/locks)
	row("100,000 locks: renewals", "%.0f a second, in %.1f scripts a second", per("pexpire"), per("evalsha")+per("eval"))
	row("100,000 locks: CPU while held", "sidecar %.1f %%, Redis %.1f %% of a core",
		100*cpu.Seconds()/window.Seconds(), 100*redisCPU.Seconds()/window.Seconds())
	if n := r.DBSize(t.Context()).Val(); n < 2*locks {
		t.Errorf("Redis has %d keys; %d locks and as many token counters were expected", n, locks)
	}
}

// liveHeap returns the MiB that the daemon's last garbage collection left.
func liveHeap(t *testing.T, d *harness.Daemon) int {
	t.Helper()
	// gc 9 @1.2s 0%: … ms clock, … ms cpu, 34->36->30 MB, …
	live := -1
	for _, m := range regexp.MustCompile(`(?m)^gc \d+ .* \d+->\d+->(\d+) MB`).FindAllStringSubmatch(d.Log.String(), -1) {
		live, _ = strconv.Atoi(m[1])
	}
	if live < 0 {
		t.Fatal("the daemon said nothing of its garbage collections")
	}
	return live
}

// cpuOf returns the CPU time that a process has used.
func cpuOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest)) // from the 3rd on
	utime, err1 := strconv.ParseInt(fields[11], 10, 64)
	stime, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("/proc/%d/stat: %s", pid, stat)
	}
	return time.Duration(utime+stime) * (time.Second / 100) // USER_HZ
}

// Many hosts that want one lock all the time, each for a process of its own.
func TestMeasureManyHosts(t *testing.T) {
	measured(t)
	const hosts, window = 40, 10 * time.Second
	r := harness.StartRedis(t)
	var clients []*locksidecar.Client
	for range hosts {
		clients = append(clients, harness.Dial(t, harness.StartDaemon(t, r.UnixURL())))
	}
	calls := r.CommandCalls(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	grants := make([]int, hosts)
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for {
				l, err := c.Lock(ctx, "wanted by all")
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				time.Sleep(10 * time.Millisecond) // the work
				l.Unlock()
				grants[i]++
			}
		})
	}
	wg.Wait()
	all := 0
	for _, n := range grants {
		all += n
	}
	slices.Sort(grants)
	now := r.CommandCalls(t.Context())
	row(fmt.Sprintf("%d hosts, one lock, 10 ms of work, %v", hosts, window), "%d grants, %d to %d a host, %.1f scripts a grant",
		all, grants[0], grants[hosts-1], float64(now["evalsha"]-calls["evalsha"])/float64(all))
}

// A daemon without locks: what wakes it.
func TestMeasureIdle(t *testing.T) {
	measured(t)
	const window = 10 * time.Second
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	time.Sleep(2 * time.Second) // the start's own work
	switches, cpu := voluntarySwitches(t, d.PID()), cpuOf(t, d.PID())
	time.Sleep(window)
	row("idle daemon: voluntary context switches", "%.1f a second, all threads; CPU time %v in %v",
		float64(voluntarySwitches(t, d.PID())-switches)/window.Seconds(), cpuOf(t, d.PID())-cpu, window)

	strace, err := exec.LookPath("strace")
	if err != nil {
		return
	}
	var out bytes.Buffer
	cmd := exec.Command(strace, "-c", "-f", "-p", strconv.Itoa(d.PID()))
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(window)
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if !strings.Contains(out.String(), "% time") {
		return // ptrace is not permitted here
	}
	fmt.Printf("  idle daemon: system calls in %v\n", window)
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) >= 5 && f[0] != "%" && !strings.HasPrefix(f[0], "-") && f[0] != "strace:" {
			fmt.Printf("    %8s %s\n", f[3], f[len(f)-1])
		}
	}
}

func voluntarySwitches(t testing.TB, pid int) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no tasks of process %d (%v)", pid, err)
	}
	n := 0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				k, _ := strconv.Atoi(strings.TrimSpace(v))
				n += k
			}
		}
	}
	return n
}

// Pairs of acquire and release, each worker on a lock of its own, and what
// Redis pays for one.
func TestMeasurePairs(t *testing.T) {
	measured(t)
	const window = 5 * time.Second
	for _, c := range []struct {
		what               string
		processes, workers int
		shared, many       bool
	}{
		{"1 process × 1 worker, a lock of its own", 1, 1, false, false},
		{"8 processes × 8 workers, distinct locks", 8, 8, false, false},
		{"the same, a hundred locks in turn", 8, 8, false, true},
		{"64 processes × 1 worker, distinct locks", 64, 1, false, false},
		{"8 processes × 8 workers, one lock", 8, 8, true, false},
	} {
		r := harness.StartRedis(t)
		d := harness.StartDaemon(t, r.UnixURL())
		var fleet []*harness.Worker
		for range c.processes {
			w := harness.StartGoWorker(t, d)
			w.Lock("warm")
			w.Unlock("warm")
			fleet = append(fleet, w)
		}
		cpu, redisCPU, calls := cpuOf(t, d.PID()), cpuOf(t, r.PID()), r.CommandCalls(t.Context())
		var answers []<-chan harness.Answer
		for i, w := range fleet {
			name := fmt.Sprintf("pair:%d", i)
			if c.shared {
				name = "shared"
			}
			answers = append(answers, w.Send(harness.Command{
				Do: "pairs", Name: name, Count: c.workers, WaitMS: window.Milliseconds(), Shared: c.shared, Many: c.many,
			}))
		}
		var waits []int64
		for i, w := range fleet {
			a := w.Await(answers[i])
			if a.Err != "" {
				t.Fatalf("%s: %s", a.Err, a.Msg)
			}
			waits = append(waits, a.Waits...)
		}
		pairs := len(waits)
		slices.Sort(waits)
		cpu, redisCPU = cpuOf(t, d.PID())-cpu, cpuOf(t, r.PID())-redisCPU
		now := r.CommandCalls(t.Context())
		row(c.what, "%6.0f pairs/s; acquire p50 %s p99 %s; CPU a pair: sidecar %.1f µs, Redis %.1f µs; %.2f scripts a pair",
			float64(pairs)/window.Seconds(), ms(waits[pairs/2]), ms(waits[pairs*99/100]),
			float64(cpu.Microseconds())/float64(pairs), float64(redisCPU.Microseconds())/float64(pairs),
			float64(now["evalsha"]-calls["evalsha"])/float64(pairs))
		for _, w := range fleet {
			w.Kill()
		}
		d.Kill()
	}
}

// shortestTTL samples how long a lock still lives in Redis, until stopped.
func shortestTTL(t testing.TB, r *harness.Redis, name string) (stop func() time.Duration) {
	var end atomic.Bool
	var wg sync.WaitGroup
	shortest := time.Hour
	wg.Go(func() {
		every := time.NewTicker(5 * time.Millisecond)
		defer every.Stop()
		for !end.Load() {
			if ttl := r.PTTL(t.Context(), name).Val(); ttl < shortest {
				shortest = ttl
			}
			<-every.C
		}
	})
	return func() time.Duration {
		end.Store(true)
		wg.Wait()
		return shortest
	}
}

// What a hostile process costs its neighbours: time of a pair, lateness of a renewal,
// memory of the daemon.
func TestMeasureAttacks(t *testing.T) {
	measured(t)
	const lease = 3 * time.Second
	for _, a := range harness.Attacks {
		t.Run(a.Description, func(t *testing.T) {
			r := harness.StartRedis(t)
			d := harness.StartDaemonForAllUsers(t, r, "--lease="+lease.String())
			c := harness.Dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			quiet := harness.TimePairs(t, c, 3*time.Second)
			attack, _ := harness.StartAttack(t, d, a)
			stop := shortestTTL(t, r, "held")
			if a.Kind == "hold" {
				attack.Signal(syscall.SIGKILL)
			}
			under := harness.TimePairs(t, c, 6*time.Second)
			late := lease - lease/3 - stop()
			memory := harness.ResidentMemory(t, d.PID())
			killed := time.Now()
			attack.Kill()
			harness.TimePairs(t, c, time.Nanosecond)
			after := time.Since(killed)
			p := func(took []int64, q int) int64 { return took[len(took)*q/1000] }
			if err := held.Err(); err != nil {
				t.Errorf("the lock is lost: %v", err)
			}
			row(a.Description, "quiet p50 %s p99 %s  under p50 %s (%.1f×) p99 %s (%.1f×) max %s; renewal at %.0f %% of the lease late; %d MiB; next pair after it %s",
				ms(p(quiet, 500)), ms(p(quiet, 990)), ms(p(under, 500)), float64(p(under, 500))/float64(p(quiet, 500)),
				ms(p(under, 990)), float64(p(under, 990))/float64(p(quiet, 990)), ms(under[len(under)-1]),
				100*late.Seconds()/lease.Seconds(), memory>>20, ms(int64(after)))
		})
	}
}
