package tests

import (
	"errors"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A daemon that is killed, or stopped in order, and started again is still the same
// sidecar: who holds a lock holds it with the same token and the same field in Redis,
// who waits waits, who died meanwhile holds nothing, and what was released meanwhile
// is free.
func TestDaemonThatIsRestartedLosesNoLock(t *testing.T) {
	for _, c := range []struct {
		how string
		end func(*harness.Daemon)
	}{{"killed", (*harness.Daemon).Kill}, {"stopped", (*harness.Daemon).Terminate}} {
		t.Run(c.how, func(t *testing.T) { restartLosesNothing(t, c.end) })
	}
}

func restartLosesNothing(t *testing.T, end func(*harness.Daemon)) {
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease), harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	langs := map[string]func(testing.TB, *harness.Daemon) *harness.Worker{"go": harness.StartGoWorker}
	if harness.HasPython() {
		langs["python"] = harness.StartPythonWorker
	}
	type side struct {
		lang                              string
		holder, still, quits, dies, queue *harness.Worker
		first, second                     <-chan harness.Answer
	}
	var sides []*side
	fields := make(map[string]map[string]string)
	tokens := make(map[string]uint64)
	for _, lang := range slices.Sorted(maps.Keys(langs)) {
		start := langs[lang]
		s := &side{
			lang: lang, holder: start(t, here), still: start(t, here),
			quits: start(t, here), dies: start(t, here), queue: start(t, here),
		}
		for what, w := range map[string]*harness.Worker{"held": s.holder, "stopped": s.still, "released": s.quits, "orphaned": s.dies} {
			name := lang + " " + what
			tokens[name] = w.Lock(name).Token
			fields[name] = r.HGetAll(t.Context(), name).Val()
		}
		// One session waits twice for one lock, in this order.
		s.first = s.queue.Send(harness.Command{Do: "lock", As: "first", Name: lang + " held", WaitMS: -1})
		harness.Eventually(t, "the first waiter waits", func() bool { return harness.Waiters(t, here, lang+" held") == 1 })
		s.second = s.queue.Send(harness.Command{Do: "lock", As: "second", Name: lang + " held", WaitMS: -1})
		harness.Eventually(t, "the second waiter waits", func() bool { return harness.Waiters(t, here, lang+" held") == 2 })
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
			t.Errorf("%s: after the restart its holder is told %+v", name, a)
		}
		s.still.Signal(syscall.SIGCONT)
		if a := s.still.Try(harness.Command{Do: "check", As: s.lang + " stopped"}); a.Err != "" {
			t.Errorf("who stood still over the restart is told %+v", a)
		}
		for _, what := range []string{"held", "stopped"} {
			name := s.lang + " " + what
			if _, err := elsewhere.TryLock(t.Context(), name); !errors.Is(err, locksidecar.ErrHeld) {
				t.Errorf("%s: another host is told %v, not that it is held", name, err)
			}
			if now := r.HGetAll(t.Context(), name).Val(); !maps.Equal(now, fields[name]) {
				t.Errorf("%s: Redis has %v, before the restart it had %v", name, now, fields[name])
			}
			if row := harness.Info(t, here, name); row.Token != tokens[name] || row.State != protocol.StateHeld {
				t.Errorf("%s: the daemon has %+v, before the restart its token was %d", name, row, tokens[name])
			}
		}
		harness.Eventually(t, "the waiters wait again", func() bool { return harness.Waiters(t, here, name) == 2 })
		s.holder.Unlock(name)
		first := s.queue.Await(s.first)
		if first.Err != "" || first.Token <= tokens[name] {
			t.Fatalf("%s: the first waiter got %+v after token %d", name, first, tokens[name])
		}
		s.queue.Unlock("first")
		if second := s.queue.Await(s.second); second.Err != "" || second.Token <= first.Token {
			t.Errorf("%s: the second waiter got %+v after token %d", name, second, first.Token)
		}
	}
}

// While processes of both languages on two hosts add to one counter, one host's
// daemon is killed and restarted again and again, and stopped in order and restarted.
// No addition is lost, no user of an SDK sees an error.
func TestNobodyNoticesThatTheDaemonIsRestartedUnderLoad(t *testing.T) {
	r := harness.StartRedis(t)
	hosts := []*harness.Daemon{harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.TCPURL())}
	const workersPerHost, rounds, restarts = 4, 120, 12

	var fleet []*harness.Worker
	var answers []<-chan harness.Answer
	for _, d := range hosts {
		for i := range workersPerHost {
			fleet = append(fleet, harness.StartNthWorker(t, d, i))
		}
	}
	for _, w := range fleet { // whoever connects for the first time waits for 2 s only
		w.Lock("connected")
		w.Unlock("connected")
	}
	for _, w := range fleet {
		answers = append(answers, w.Send(harness.Hammer(r, rounds)))
	}
	total := len(fleet) * rounds
	for i := range restarts {
		// Spread over the run, at moments that nobody chose.
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
	var all []harness.Round
	for i, w := range fleet {
		a := w.Await(answers[i])
		if a.Err != "" {
			t.Errorf("worker %d: %s: %s", i, a.Err, a.Msg)
		}
		all = append(all, a.Rounds...)
	}
	if !t.Failed() {
		harness.CheckCounter(t, r, all, total)
	}
}
