package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The time from the kill of a holder to the grant of the next waiter: of a lock, and of 3 of 10 permits, in turns.
func TestMeasureCrashRelease(t *testing.T) {
	measured(t)
	kills := count(100)
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL())
	for _, waiter := range []struct {
		where string
		on    *harness.Daemon
	}{{"same host", here}, {"other host", there}} {
		c := harness.Dial(t, waiter.on)
		var locks, permits []int64
		for i := range kills {
			name := fmt.Sprintf("crash %d", i)
			locks = append(locks, killHolder(t, here, waiter.on, name, func() bool {
				return waiter.on == here || r.Exists(t.Context(), "locksidecar_queue:{"+name+"}").Val() == 1
			}, func(ctx context.Context) (func() error, error) {
				l, err := c.Lock(ctx, name)
				return func() error { return l.Unlock() }, err
			}))
			name = fmt.Sprintf("crash of permits %d", i)
			permits = append(permits, killHolder(t, here, waiter.on, name, func() bool {
				return waiter.on == here || r.Exists(t.Context(), "locksidecar_wanted:{"+name+"}").Val() == 1
			}, func(ctx context.Context) (func() error, error) {
				p, err := c.Semaphore(name, 10).Acquire(ctx, 8) // seven are free
				return func() error { return p.Release() }, err
			}, "--permits=3", "--of=10"))
		}
		at := func(took []int64, percent int) int64 { return took[(kills-1)*percent/100] }
		for _, c := range []struct {
			kind string
			took []int64
		}{{"a lock", locks}, {"3 of 10 permits", permits}} {
			slices.Sort(c.took)
			row(fmt.Sprintf("kill -9 to grant: %s, %s", c.kind, waiter.where), "p50 %s  p99 %s  max %s of %d kills",
				ms(at(c.took, 50)), ms(at(c.took, 99)), ms(at(c.took, 100)), kills)
		}
		row("kill -9 to grant: permits / lock, "+waiter.where, "p50 %.2f  p99 %.2f",
			float64(at(permits, 50))/float64(at(locks, 50)), float64(at(permits, 99))/float64(at(locks, 99)))
	}
}

// killHolder returns the time from the kill of a process that holds name on a host, with flags, to the grant of a waiter. Of a
// waiter on another host, isQueued says whether Redis has it.
func killHolder(t *testing.T, host, waiter *harness.Daemon, name string, isQueued func() bool, acquire func(context.Context) (func() error, error), flags ...string) int64 {
	t.Helper()
	victim := harness.StartProcess(t, host, harness.Program(t), append(append([]string{"lock"}, flags...), name)...)
	victim.AwaitOutput("\n")
	granted := make(chan int64, 1)
	go func() {
		release, err := acquire(context.Background())
		granted <- protocol.Now()
		if err == nil {
			err = release()
		}
		if err != nil {
			t.Error(err)
		}
	}()
	harness.Eventually(t, "the waiter waits", func() bool { return harness.Waiters(t, waiter, name) == 1 && isQueued() })
	killed := protocol.Now()
	victim.Signal(syscall.SIGKILL)
	took := <-granted - killed
	victim.Wait()
	return took
}

// What 100,000 locks of one client cost.
func TestMeasureHundredThousandLocks(t *testing.T) {
	measured(t)
	const parallel = 64
	locks, what := count(100_000), "100,000 locks"
	if testing.Short() {
		what = fmt.Sprint(locks, " locks")
	}
	held := window(30 * time.Second) // three renewals of each lock
	r := harness.StartRedis(t)
	t.Setenv("GODEBUG", "gctrace=1") // logs how much of the memory is alive
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
	row(what+": taken by one client", "in %.1f s", time.Since(start).Seconds())
	row(what+": sidecar memory right after", "%d bytes of RSS a lock", (harness.ResidentMemory(t, d.PID())-before)/int64(locks))

	cpu, redisCPU, calls := cpuOf(t, d.PID()), cpuOf(t, r.PID()), r.CommandCalls(t.Context())
	time.Sleep(held)
	cpu, redisCPU = cpuOf(t, d.PID())-cpu, cpuOf(t, r.PID())-redisCPU
	now := r.CommandCalls(t.Context())
	per := func(name string) float64 { return float64(now[name]-calls[name]) / held.Seconds() }
	row(what+": sidecar memory when held for "+held.String(), "%d bytes of RSS a lock", (harness.ResidentMemory(t, d.PID())-before)/int64(locks))
	const ballast = 8 // MiB that the daemon allocates and never uses
	row(what+": of it alive", "%d bytes of heap a lock", int64(liveHeap(t, d)-ballast)<<20/int64(locks))
	row(what+": renewals", "%.0f a second, in %.1f scripts a second", per("pexpire")+per("pexpireat"), per("evalsha")+per("eval"))
	row(what+": CPU while held", "sidecar %.1f %%, Redis %.1f %% of a core",
		100*cpu.Seconds()/held.Seconds(), 100*redisCPU.Seconds()/held.Seconds())
	if n := r.DBSize(t.Context()).Val(); n < int64(2*locks) {
		t.Errorf("Redis has %d keys; %d locks and as many token counters were expected", n, locks)
	}
}

// liveHeap returns how many MiB the last garbage collection of the daemon left.
func liveHeap(t *testing.T, d *harness.Daemon) int {
	t.Helper()
	// gc 9 @1.2s 0%: … ms clock, … ms cpu, 34->36->30 MB, …
	live := -1
	for _, m := range regexp.MustCompile(`(?m)^gc \d+ .* \d+->\d+->(\d+) MB`).FindAllStringSubmatch(d.Log.String(), -1) {
		live, _ = strconv.Atoi(m[1])
	}
	if live < 0 && !testing.Short() {
		t.Fatal("the log has no garbage collection")
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

// Many hosts, on each of which a client requests one lock all the time.
func TestMeasureManyHosts(t *testing.T) {
	measured(t)
	hosts, duration := count(40), window(10*time.Second)
	r := harness.StartRedis(t)
	var clients []*locksidecar.Client
	for range hosts {
		clients = append(clients, harness.Dial(t, harness.StartDaemon(t, r.UnixURL())))
	}
	calls := r.CommandCalls(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	grants := make([]int, hosts)
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for {
				l, err := c.Lock(ctx, "shared by all")
				if err != nil {
					// The daemon may report the end of the time before ctx does.
					if ctx.Err() == nil && !errors.Is(err, locksidecar.ErrTimeout) && !errors.Is(err, locksidecar.ErrHeld) {
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
	row(fmt.Sprintf("%d hosts, one lock, 10 ms of work, %v", hosts, duration), "%d grants, %d to %d a host, %.1f scripts a grant",
		all, grants[0], grants[hosts-1], float64(now["evalsha"]-calls["evalsha"])/float64(all))
}

// How often a daemon without locks wakes up, and why.
func TestMeasureIdle(t *testing.T) {
	measured(t)
	duration := window(10 * time.Second)
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	time.Sleep(window(2 * time.Second)) // what the daemon does after its start
	switches, cpu := voluntarySwitches(t, d.PID()), cpuOf(t, d.PID())
	time.Sleep(duration)
	row("idle daemon: voluntary context switches", "%.1f a second, all threads; CPU time %v in %v",
		float64(voluntarySwitches(t, d.PID())-switches)/duration.Seconds(), cpuOf(t, d.PID())-cpu, duration)

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
	time.Sleep(duration)
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if !strings.Contains(out.String(), "% time") {
		return // ptrace is not permitted here
	}
	fmt.Printf("  idle daemon: system calls in %v\n", duration)
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) >= 5 {
			if _, err := strconv.Atoi(f[3]); err == nil {
				fmt.Printf("    %8s %s\n", f[3], f[len(f)-1])
			}
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

// Pairs of acquire and release: how many in a second, how long they take, and what CPU time
// they cost the sidecar and Redis.
func TestMeasurePairs(t *testing.T) {
	measured(t)
	duration := window(5 * time.Second)
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
				Do: "pairs", Name: name, Count: c.workers, WaitMS: duration.Milliseconds(), Shared: c.shared, Many: c.many,
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
			float64(pairs)/duration.Seconds(), ms(waits[pairs/2]), ms(waits[pairs*99/100]),
			float64(cpu.Microseconds())/float64(pairs), float64(redisCPU.Microseconds())/float64(pairs),
			float64(now["evalsha"]-calls["evalsha"])/float64(pairs))
		for _, w := range fleet {
			w.Kill()
		}
		d.Kill()
	}
}
