package daemon

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A daemon is killed, or stopped with SIGTERM, and started again. Its successor is the same
// sidecar: each lock has the same holder, token and field in Redis, and waiters wait in the
// same order. Locks of processes that died meanwhile are free, and so are those that were
// released meanwhile.
//
// Shows docs/guarantees.md: Nothing is freed early.
// Shows docs/guarantees.md: On one host, first come, first served.
// Shows docs/guarantees.md: A process that dies frees its locks at once.
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
// Shows docs/guarantees.md: The client does not connect again, but its process lives.
func TestDaemonThatIsRestartedLosesNoLock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how string
		end func(*harness.Daemon)
	}{{"killed", (*harness.Daemon).Kill}, {"stopped", (*harness.Daemon).Terminate}} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			restartLosesNothing(t, c.end)
		})
	}
}

func restartLosesNothing(t *testing.T, end func(*harness.Daemon)) {
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	type side struct {
		lang                              string
		holder, still, quits, dies, queue *harness.Worker
		first, second                     <-chan harness.Answer
	}
	var sides []*side
	fields := make(map[string]map[string]string)
	tokens := make(map[string]uint64)
	for _, sdk := range harness.SDKs() {
		lang, start := sdk.Name, sdk.StartWorker
		s := &side{
			lang: lang, holder: start(t, here), still: start(t, here),
			quits: start(t, here), dies: start(t, here), queue: start(t, here),
		}
		for what, w := range map[string]*harness.Worker{"held": s.holder, "stopped": s.still, "released": s.quits, "orphaned": s.dies} {
			name := lang + " " + what
			tokens[name] = w.Lock(name).Token
			fields[name] = r.HGetAll(t.Context(), name).Val()
		}
		// One session has two requests for one lock, in this order.
		s.first = s.queue.Send(harness.Command{Do: "lock", As: "first", Name: lang + " held", WaitMS: -1})
		harness.Eventually(t, "the first request waits", func() bool { return harness.Waiters(t, here, lang+" held") == 1 })
		s.second = s.queue.Send(harness.Command{Do: "lock", As: "second", Name: lang + " held", WaitMS: -1})
		harness.Eventually(t, "the second request waits", func() bool { return harness.Waiters(t, here, lang+" held") == 2 })
		sides = append(sides, s)
	}

	for _, s := range sides {
		s.still.Signal(syscall.SIGSTOP)
	}
	end(here)
	for _, s := range sides {
		s.dies.Kill()
		s.quits.Unlock(s.lang + " released")
	}
	here.Start(harness.LongLease)
	here.AwaitSocket()
	here.AwaitRedis("ok")

	elsewhere := harness.Dial(t, there)
	for _, s := range sides {
		for _, what := range []string{"released", "orphaned"} {
			name := s.lang + " " + what
			l, err := elsewhere.Lock(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if l.Token() <= tokens[name] {
				t.Errorf("%s: token %d after %d", name, l.Token(), tokens[name])
			}
			l.Unlock()
		}
		name := s.lang + " held"
		if a := s.holder.Try(harness.Command{Do: "check", As: name}); a.Err != "" {
			t.Errorf("%s: after the restart, the SDK of the holder reports %+v", name, a)
		}
		s.still.Signal(syscall.SIGCONT)
		if a := s.still.Try(harness.Command{Do: "check", As: s.lang + " stopped"}); a.Err != "" {
			t.Errorf("the SDK of a process that was stopped during the restart reports %+v", a)
		}
		for _, what := range []string{"held", "stopped"} {
			name := s.lang + " " + what
			if _, err := elsewhere.TryLock(t.Context(), name); !errors.Is(err, locksidecar.ErrHeld) {
				t.Errorf("%s: on another host the error is %v, not that the lock is held", name, err)
			}
			if now := r.HGetAll(t.Context(), name).Val(); !maps.Equal(now, fields[name]) {
				t.Errorf("%s: Redis has %v, before the restart it had %v", name, now, fields[name])
			}
			if row := harness.Info(t, here, name); row.Token != tokens[name] || row.State != locksidecar.LockHeld {
				t.Errorf("%s: the daemon has %+v, before the restart its token was %d", name, row, tokens[name])
			}
		}
		harness.Eventually(t, "both requests wait again", func() bool { return harness.Waiters(t, here, name) == 2 })
		s.holder.Unlock(name)
		first := s.queue.Await(s.first)
		if first.Err != "" || first.Token <= tokens[name] {
			t.Fatalf("%s: the first request got %+v after token %d", name, first, tokens[name])
		}
		s.queue.Unlock("first")
		if second := s.queue.Await(s.second); second.Err != "" || second.Token <= first.Token {
			t.Errorf("%s: the second request got %+v after token %d", name, second, first.Token)
		}
	}
}

// Processes in both languages on two hosts increment one counter, while the daemon of one
// host is killed or stopped and restarted, again and again. No increment is lost, and no
// call of an SDK fails.
//
// Shows docs/guarantees.md: Exclusion.
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
func TestNoIncrementIsLostInRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	hosts := []*harness.Daemon{harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.TCPURL())}
	const workersPerHost = 4
	rounds, restarts := harness.Pick(60, 120), harness.Pick(6, 12)

	fleet := harness.StartFleet(t, workersPerHost, hosts...)
	for _, w := range fleet { // the first connection of an SDK is tried for 2 s only
		w.Lock("connected")
		w.Unlock("connected")
	}
	answers := harness.SendHammers(r, fleet, rounds)
	total := len(fleet) * rounds
	for i := range restarts {
		// The restarts are spread over the run, at random moments.
		harness.Eventually(t, "the counter rises", func() bool {
			for _, w := range fleet {
				if w.HasEnded() {
					t.Fatalf("worker %d ended:\n%s", w.PID(), w.Stderr.String())
				}
			}
			n, err := r.Get(t.Context(), "counter").Int()
			return (err == nil || errors.Is(err, redis.Nil)) && n >= total*i/(restarts+1)
		})
		d := hosts[0]
		if i%2 == 0 {
			d.Kill()
		} else {
			d.Terminate()
		}
		d.Start()
		d.AwaitSocket()
	}
	harness.CheckCounter(t, r, harness.AwaitRounds(t, fleet, answers), total)
}

// A daemon that is stopped removes its socket and frees no lock.
//
// Shows docs/guarantees.md: Nothing is freed early.
func TestStopOfTheDaemonFreesNothing(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	c := harness.Dial(t, d)
	l, err := c.Lock(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	d.Terminate()
	if code := d.ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
	if _, err := os.Stat(d.Socket); err == nil {
		t.Error("the stopped daemon left its socket")
	}
	if n := r.Exists(t.Context(), "kept").Val(); n != 1 {
		t.Error("the stopped daemon freed the lock")
	}
	if err := l.Err(); err != nil {
		t.Errorf("before the deadline, the SDK of the holder reports %v", err)
	}
	_, err = locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, d.Socket)

	// Close would wait for a daemon until the lock has ended.
	d.Start()
	harness.Eventually(t, "the client is back", func() bool { return d.Log.Contains("client is back") })
	c.Close()
}

// A daemon is killed or suspended. Its clients hold their locks until the deadlines, at which
// the SDKs report them as lost without the daemon. No other client is granted them before.
// A daemon that goes on after that does not disturb the new holders.
//
// Shows docs/guarantees.md: No holder relies on a lock for too long.
// Shows docs/guarantees.md: No daemon starts, or only after the deadlines.
func TestDaemonThatIsGoneFreesNothingBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		end  syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"stopped", syscall.SIGSTOP}} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=5s"), harness.StartDaemon(t, r.UnixURL())
			holders := harness.StartWorkerPerSDK(t, here)
			next := harness.StartGoWorker(t, there)
			type hold struct {
				w       *harness.Worker
				name    string
				token   uint64
				granted <-chan harness.Answer
			}
			var holds []hold
			for i, w := range holders {
				h := hold{w: w, name: fmt.Sprintf("orphan %d", i)}
				h.token = w.Lock(h.name).Token
				h.granted = next.Send(harness.Command{Do: "lock", As: h.name, Name: h.name, WaitMS: -1})
				holds = append(holds, h)
			}
			here.Signal(c.end)
			for _, h := range holds {
				check := h.w.Try(harness.Command{Do: "check", As: h.name})
				checked := protocol.Now()
				lost := h.w.Try(harness.Command{Do: "lost", As: h.name})
				if lost.Err != "lost" || lost.Reason != string(protocol.Expired) {
					t.Errorf("%s: at the deadline, the SDK of the holder reports %+v, not that the lock expired", h.name, lost)
				}
				if check.Err != "" && checked < lost.DeadlineNS {
					t.Errorf("%s: %v before the deadline, the SDK of the holder reports %+v", h.name, time.Duration(lost.DeadlineNS-checked), check)
				}
				a := next.Await(h.granted)
				if a.Err != "" || a.Token <= h.token {
					t.Fatalf("%s: the next holder got %+v after token %d", h.name, a, h.token)
				}
				if a.AtNS < lost.DeadlineNS {
					t.Errorf("%s: granted to another client %v before the deadline of the holder", h.name, time.Duration(lost.DeadlineNS-a.AtNS))
				}
			}
			if c.end != syscall.SIGSTOP {
				return
			}
			before := r.HGetAll(t.Context(), holds[0].name).Val()
			here.Signal(syscall.SIGCONT)
			here.AwaitRedis("ok")
			for _, h := range holds {
				if a := next.Try(harness.Command{Do: "check", As: h.name}); a.Err != "" {
					t.Errorf("%s: when the daemon went on, the SDK of the new holder reported %+v", h.name, a)
				}
			}
			if now := r.HGetAll(t.Context(), holds[0].name).Val(); !maps.Equal(now, before) {
				t.Errorf("when the daemon went on, Redis had %v instead of %v", now, before)
			}
		})
	}
}
