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
)

// A daemon that is killed, or stopped in order, and started again is still the same
// sidecar: who holds a lock holds it with the same token and the same field in Redis,
// who waits waits, who died meanwhile holds nothing, and what was released meanwhile
// is free.
func TestDaemonThatIsRestartedLosesNoLock(t *testing.T) {
	for _, c := range []struct {
		how string
		end func(*daemon)
	}{{"killed", (*daemon).kill9}, {"stopped", (*daemon).terminate}} {
		t.Run(c.how, func(t *testing.T) { restartLosesNothing(t, c.end) })
	}
}

func restartLosesNothing(t *testing.T, end func(*daemon)) {
	r := startRedis(t)
	here, there := startDaemon(t, r.unixURL(), longLease), startDaemon(t, r.unixURL(), longLease)
	langs := map[string]func(testing.TB, *daemon) *worker{"go": startGoWorker}
	if havePython() {
		langs["python"] = startPythonWorker
	}
	type side struct {
		lang                              string
		holder, still, quits, dies, queue *worker
		first, second                     <-chan answer
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
		for what, w := range map[string]*worker{"held": s.holder, "stopped": s.still, "released": s.quits, "orphaned": s.dies} {
			name := lang + " " + what
			tokens[name] = w.lock(name).Token
			fields[name] = r.HGetAll(t.Context(), name).Val()
		}
		// One session waits twice for one lock, in this order.
		s.first = s.queue.ask(command{Do: "lock", As: "first", Name: lang + " held", WaitMS: -1})
		eventually(t, "the first waiter waits", func() bool { return waiting(t, here, lang+" held") == 1 })
		s.second = s.queue.ask(command{Do: "lock", As: "second", Name: lang + " held", WaitMS: -1})
		eventually(t, "the second waiter waits", func() bool { return waiting(t, here, lang+" held") == 2 })
		sides = append(sides, s)
	}

	for _, s := range sides {
		s.still.signal(syscall.SIGSTOP)
	}
	end(here)
	for _, s := range sides {
		s.dies.kill9()
		s.quits.unlock(s.lang + " released")
	}
	here.start(longLease)
	here.awaitAnswer()
	here.awaitRedis("ok")

	elsewhere := dial(t, there)
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
		if a := s.holder.try(command{Do: "check", As: name}); a.Err != "" {
			t.Errorf("%s: after the restart its holder is told %+v", name, a)
		}
		s.still.signal(syscall.SIGCONT)
		if a := s.still.try(command{Do: "check", As: s.lang + " stopped"}); a.Err != "" {
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
			if row := info(t, here, name); row.Token != tokens[name] || row.State != protocol.StateHeld {
				t.Errorf("%s: the daemon has %+v, before the restart its token was %d", name, row, tokens[name])
			}
		}
		eventually(t, "the waiters wait again", func() bool { return waiting(t, here, name) == 2 })
		s.holder.unlock(name)
		first := s.queue.await(s.first)
		if first.Err != "" || first.Token <= tokens[name] {
			t.Fatalf("%s: the first waiter got %+v after token %d", name, first, tokens[name])
		}
		s.queue.unlock("first")
		if second := s.queue.await(s.second); second.Err != "" || second.Token <= first.Token {
			t.Errorf("%s: the second waiter got %+v after token %d", name, second, first.Token)
		}
	}
}

// info is the daemon's row of a lock that it knows.
func info(t testing.TB, d *daemon, name string) locksidecar.LockInfo {
	t.Helper()
	row, ok, err := dial(t, d).Info(t.Context(), name)
	if err != nil || !ok {
		t.Fatalf("%s: known %v, %v", name, ok, err)
	}
	return row
}

// While processes of both languages on two hosts add to one counter, one host's
// daemon is killed and restarted again and again, and stopped in order and restarted.
// No addition is lost, no user of an SDK sees an error.
func TestNobodyNoticesThatTheDaemonIsRestartedUnderLoad(t *testing.T) {
	r := startRedis(t)
	hosts := []*daemon{startDaemon(t, r.unixURL()), startDaemon(t, r.tcpURL())}
	const workersPerHost, rounds, restarts = 4, 120, 12

	var fleet []*worker
	var answers []<-chan answer
	for _, d := range hosts {
		for i := range workersPerHost {
			fleet = append(fleet, startAnyWorker(t, d, i))
		}
	}
	for _, w := range fleet { // whoever connects for the first time waits for 2 s only
		w.lock("connected")
		w.unlock("connected")
	}
	for _, w := range fleet {
		answers = append(answers, w.ask(hammer(r, rounds)))
	}
	total := len(fleet) * rounds
	for i := range restarts {
		// Spread over the run, at moments that nobody chose.
		eventually(t, "the counter rises", func() bool {
			for _, w := range fleet {
				if w.ended() {
					t.Fatalf("worker %d ended:\n%s", w.pid(), w.stderr.String())
				}
			}
			n, err := r.Get(t.Context(), "counter").Int()
			return (err == nil || errors.Is(err, redis.Nil)) && n >= total*i/(restarts+1)
		})
		d := hosts[0]
		if i%2 == 0 {
			d.kill9()
		} else {
			d.terminate()
		}
		d.start()
		d.awaitAnswer()
	}
	var all []round
	for i, w := range fleet {
		a := w.await(answers[i])
		if a.Err != "" {
			t.Errorf("worker %d: %s: %s", i, a.Err, a.Msg)
		}
		all = append(all, a.Rounds...)
	}
	if !t.Failed() {
		checkCounter(t, r, all, total)
	}
}
