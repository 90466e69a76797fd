package guarantees

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The jar of Redisson that programs use, in a process of its own (tests/redisson), and daemons,
// on one Redis.

const (
	tenMinutes = int64(10 * 60 * 1000) // in ms: longer than any test, so that such a lease neither ends nor is renewed
	week       = 7 * 24 * time.Hour
)

// counterOf returns the key of the token counter of a lock.
func counterOf(name string) string { return "redisson_lock_token:{" + name + "}" }

// begin sends a command that waits for a lock. It returns when the client has tried,
// subscribed, and tried again, so that only a message or a timer can wake it. It counts the
// calls of PTTL, of which each refused try makes one. So no other client may try to acquire
// any lock meanwhile.
func begin(t testing.TB, r *harness.Redis, w *harness.Worker, c harness.Command) <-chan harness.Answer {
	t.Helper()
	before := r.CommandCalls(t.Context())["pttl"]
	granted := w.Send(c)
	harness.Eventually(t, "the client waits for "+c.Name, func() bool {
		return r.CommandCalls(t.Context())["pttl"] >= before+2
	})
	return granted
}

// published runs f, and returns the channels of locks on which messages were published
// meanwhile, without their common prefix.
func published(t *testing.T, r *harness.Redis, f func()) []string {
	t.Helper()
	const prefix = "redisson_lock__channel:"
	ctx := t.Context()
	sub := r.PSubscribe(ctx, prefix+"*")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	f()
	const end = "the end"
	r.MustDo("PUBLISH", prefix+end, "")
	var channels []string
	for {
		msg, err := sub.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		channel := strings.TrimPrefix(msg.Channel, prefix)
		if channel == end {
			return channels
		}
		channels = append(channels, channel)
	}
}

// awaitFree waits until the key of a lock is deleted. A daemon answers a release before Redis
// has executed it.
func awaitFree(t *testing.T, r *harness.Redis, name string) {
	t.Helper()
	harness.Eventually(t, "the key of "+name+" is deleted", func() bool { return len(r.Fields(name)) == 0 })
}

// mustBeHeld checks that a worker that does not wait is refused the lock.
func mustBeHeld(t testing.TB, w *harness.Worker, c harness.Command) {
	t.Helper()
	c.Do, c.WaitMS = "lock", 0
	if a := w.Try(c); a.Err != "held" {
		t.Errorf("a request for %s %s that does not wait is answered %+v, not that it is held", c.Object, c.Name, a)
	}
}

// mustBeFree checks that a worker that does not wait is granted the lock, and releases it.
func mustBeFree(t testing.TB, w *harness.Worker, c harness.Command) {
	t.Helper()
	c.Do, c.WaitMS, c.As = "lock", 0, c.Name
	w.Must(c)
	c.Do = "unlock"
	w.Must(c)
}

// ---- exclusion ------------------------------------------------------------------

// Threads of two Redisson programs and processes of two sidecars, in Go and Python, increment
// one counter by reading it and writing the value plus one. No increment is lost, and tokens
// grow in the order of the holds, on both sides.
func TestRedissonProgramsAndSidecarsExcludeEachOther(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	const rounds = 25
	var fleet []*harness.Worker
	var commands []harness.Command
	for range 2 {
		host := harness.StartRedisson(t, r)
		for _, object := range []string{"fenced", "lock"} {
			fleet = append(fleet, host.OnThread(object))
			c := harness.Hammer(r, rounds)
			c.Object = object
			commands = append(commands, c)
		}
		d := harness.StartDaemon(t, r.TCPURL())
		for i := range 4 {
			fleet = append(fleet, harness.StartNthWorker(t, d, i))
			commands = append(commands, harness.Hammer(r, rounds))
		}
	}
	hammerAll(t, r, fleet, commands)
}

// hammerAll has all workers execute their hammer commands at the same time, and checks the
// counter.
func hammerAll(t *testing.T, r *harness.Redis, fleet []*harness.Worker, commands []harness.Command) {
	t.Helper()
	rounds, want := runHammers(t, fleet, commands)
	harness.CheckCounter(t, r, rounds, want)
}

// runHammers is hammerAll without the check. It returns all rounds, and how many there must be.
func runHammers(t *testing.T, fleet []*harness.Worker, commands []harness.Command) (all []harness.Round, want int) {
	t.Helper()
	start := time.Now()
	var answers []<-chan harness.Answer
	for i, w := range fleet {
		answers = append(answers, w.Send(commands[i]))
	}
	all = harness.AwaitRounds(t, fleet, answers)
	for _, c := range commands {
		want += c.Count
	}
	t.Logf("%d holds in %v", want, time.Since(start).Round(time.Millisecond))
	return all, want
}

// Each kind of lock of Redisson that has the layout of an RLock excludes clients of a sidecar,
// and they exclude it, whether or not the release of one side wakes the other.
func TestEveryLockOfRedissonExcludesSidecars(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedisson(t, r)
	for _, object := range host.Locks("lock", "nonreentrant", "fenced", "spin", "fair") {
		t.Run(object, func(t *testing.T) {
			w, host := w.In(t), host.In(t)
			c := harness.Command{Object: object, Name: "shared by " + object}
			w.Lock(c.Name)
			mustBeHeld(t, host, c)
			w.Unlock(c.Name)
			awaitFree(t, r, c.Name)

			c.Do = "lock"
			host.Must(c)
			mustBeHeld(t, w, c)
			c.Do = "unlock"
			host.Must(c)
			mustBeFree(t, w, c)
			awaitFree(t, r, c.Name)
			mustBeFree(t, host, c)
		})
	}
}

// The same holds under load. Leases are short, because not each release wakes the waiters.
func TestEveryLockOfRedissonExcludesSidecarsUnderLoad(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	const rounds = 20
	host := harness.StartRedissonWithWatchdog(t, r, 3000)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s")
	var fleet []*harness.Worker
	var commands []harness.Command
	add := func(w *harness.Worker, object string) {
		c := harness.Hammer(r, rounds)
		c.Object = object
		fleet, commands = append(fleet, w), append(commands, c)
	}
	for _, object := range host.Locks("lock", "nonreentrant", "fenced", "spin", "fair") {
		add(host.OnThread(object), object)
	}
	for i := range 2 {
		add(harness.StartNthWorker(t, d, i), "")
	}
	hammerAll(t, r, fleet, commands)
}

// ---- wake-ups -------------------------------------------------------------------

// The message of RLock.unlock wakes a waiter of a sidecar.
//
// Shows docs/queue.md: A holder that is a foreign client.
func TestUnlockOfRedissonWakesAWaiterOfASidecar(t *testing.T) {
	t.Parallel()
	const poll = 5 * time.Second // after this time without a message, a sidecar tries again
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	host := harness.StartRedisson(t, r)
	w := harness.StartNthWorker(t, d, 0)
	// A grant before the next try of the sidecar must be due to the message. On a busy machine
	// it may be late all the same, so there are as many rounds as Patience allows.
	for start, i := time.Now(), 0; ; i++ {
		name := fmt.Sprintf("theirs %d", i)
		host.Must(harness.Command{Do: "lock", Name: name, WaitMS: -1, Lease: tenMinutes})
		asked := time.Now()
		granted := begin(t, r, w, harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1})
		host.Must(harness.Command{Do: "unlock", Name: name})
		a := w.Await(granted)
		took := time.Since(asked)
		if a.Err != "" {
			t.Fatalf("the waiter got %+v", a)
		}
		if took < poll {
			t.Logf("granted %v after the request, in round %d", took, i)
			return
		}
		if time.Since(start) > harness.Patience {
			t.Fatalf("in %d rounds, no release by Redisson woke the waiter before the sidecar tried again, %v after the request", i+1, poll)
		}
	}
}

// The message of a release by a client of a sidecar wakes a thread that waits in Redisson.
// Without it, the thread would try again at the end of the lease, in ten minutes.
func TestReleaseByASidecarWakesAWaiterOfRedisson(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL(), "--lease=10m"), 1)
	host := harness.StartRedisson(t, r)
	for _, c := range []harness.Command{
		{Object: "lock", WaitMS: -1},
		{Object: "lock", WaitMS: tenMinutes},
		{Object: "nonreentrant", WaitMS: -1},
		{Object: "fenced", WaitMS: -1},
	} {
		if len(host.Locks(c.Object)) == 0 {
			continue
		}
		t.Run(fmt.Sprintf("%s, wait %d ms", c.Object, c.WaitMS), func(t *testing.T) {
			w, host := w.In(t), host.In(t)
			c.Do, c.Name = "lock", "ours"
			w.Lock(c.Name)
			granted := begin(t, r, host, c)
			w.Unlock(c.Name)
			if a := host.Await(granted); a.Err != "" {
				t.Errorf("the thread got %+v", a)
			}
			c.Do = "unlock"
			host.Must(c)
		})
	}
}

// ---- re-entry -------------------------------------------------------------------

// A thread that has locked an RLock twice holds it until it has unlocked it twice.
func TestReentryInRedissonIsRespected(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedisson(t, r)
	const name = "locked twice by Redisson"
	host.Lock(name)
	host.Lock(name)
	if a := host.Must(harness.Command{Do: "look", Name: name}); !a.Yes || !a.Mine || a.Entries != 2 {
		t.Errorf("the thread that locked it twice gets %+v", a)
	}
	host.Must(harness.Command{Do: "unlock", Name: name})
	mustBeHeld(t, w, harness.Command{Name: name})
	host.Must(harness.Command{Do: "unlock", Name: name})
	mustBeFree(t, w, harness.Command{Name: name})
}

// An owner in a session that has acquired a lock twice holds it until it has released it
// twice. A Redisson program gets that the lock is held, for how long, and that none of its
// threads holds it.
func TestReentryInASidecarIsRespectedByRedisson(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	c := harness.Dial(t, harness.StartDaemon(t, r.UnixURL(), "--lease=10m"))
	host := harness.StartRedisson(t, r)
	const name = "acquired twice by an owner"
	ctx := locksidecar.NewOwner(t.Context())
	var entries []*locksidecar.Lock
	for range 2 {
		l, err := c.Lock(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, l)
	}
	for left := len(entries); left > 0; left-- {
		harness.Eventually(t, fmt.Sprintf("%d entries are in Redis", left), func() bool {
			fields := r.Fields(name)
			for _, count := range fields {
				return len(fields) == 1 && count == fmt.Sprint(left)
			}
			return false
		})
		a := host.Must(harness.Command{Do: "look", Name: name})
		if !a.Yes || a.Mine || a.Entries != 0 || a.TTLMS <= tenMinutes*9/10 || a.TTLMS > tenMinutes {
			t.Errorf("with %d entries, Redisson gets %+v", left, a)
		}
		mustBeHeld(t, host, harness.Command{Name: name})
		if a := host.Try(harness.Command{Do: "unlock", Name: name}); a.Err != "not_held" {
			t.Errorf("an unlock by a thread that does not hold the lock is answered %+v", a)
		}
		if err := entries[left-1].Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	awaitFree(t, r, name)
	if a := host.Must(harness.Command{Do: "look", Name: name}); a.Yes || a.TTLMS != -2 {
		t.Errorf("after the release, Redisson gets %+v", a)
	}
	mustBeFree(t, host, harness.Command{Name: name})
}

// ---- watchdogs ------------------------------------------------------------------

// A lock that a sidecar renews is held for several leases. RLock.tryLock, called each
// millisecond, never finds it free.
func TestLockThatASidecarRenewsIsNeverFreeForRedisson(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL(), "--lease=8s"), 1)
	neverFreeFor(t, r, w, harness.StartRedisson(t, r))
}

// The same holds for a lock that Redisson renews.
func TestLockThatRedissonRenewsIsNeverFreeForASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL()))
	neverFreeFor(t, r, harness.StartRedissonWithWatchdog(t, r, 8000), w)
}

func neverFreeFor(t *testing.T, r *harness.Redis, holder, poller *harness.Worker) {
	t.Helper()
	const name, renewals = "renewed", 7 // three in each lease
	holder.Lock(name)
	before := r.CommandCalls(t.Context())["pexpire"]
	polled := poller.Send(harness.Command{Do: "poll", Name: name, ForMS: (harness.Patience / 2).Milliseconds(), Count: 1})
	harness.Eventually(t, "the lock is renewed again and again", func() bool {
		return r.CommandCalls(t.Context())["pexpire"] >= before+renewals
	})
	poller.Must(harness.Command{Do: "stop"})
	if a := poller.Await(polled); a.Err != "" || a.Grants != 0 || a.Tries == 0 {
		t.Errorf("while the lock was held, %d of %d tries were granted (%s %s)", a.Grants, a.Tries, a.Err, a.Msg)
	}
	holder.Unlock(name)
	harness.Eventually(t, "the other side is granted the lock", func() bool {
		return poller.Try(harness.Command{Do: "lock", As: name, Name: name}).Err == ""
	})
}

// ---- tokens ---------------------------------------------------------------------

// Sidecars and fenced locks of Redisson draw from one counter. If the counter is lost, the
// next token of Redisson is 1, and that of a sidecar is larger than all before.
func TestTokensGrowOverSidecarsAndRedisson(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	host := harness.StartRedisson(t, r)
	here, there := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL())), harness.StartNthWorker(t, harness.StartDaemon(t, r.TCPURL()), 1)
	draw := func(t *testing.T, name string, w *harness.Worker) uint64 {
		t.Helper()
		w = w.In(t)
		token := w.Must(harness.Command{Do: "lock", As: name, Name: name, Object: "fenced", WaitMS: -1}).Token
		w.Must(harness.Command{Do: "unlock", As: name, Name: name, Object: "fenced"})
		awaitFree(t, r, name)
		return token
	}
	for what, order := range map[string][]*harness.Worker{
		"a sidecar first": {here, host, there, host, host, here, there, host},
		"Redisson first":  {host, here, host, there, there, host, here},
	} {
		t.Run(what, func(t *testing.T) {
			name, last := what, uint64(0)
			for i, w := range order {
				token := draw(t, name, w)
				if token <= last {
					t.Errorf("draw %d: the token is %d after %d", i, token, last)
				}
				last = token
			}
			host.In(t).Must(harness.Command{Do: "delete", Name: counterOf(name)})
			if token := draw(t, name, host); token != 1 {
				t.Errorf("after the counter was lost, Redisson's token is %d", token)
			}
			for i, w := range order {
				token := draw(t, name, w)
				if i == 0 && w == host {
					continue // the counter has its 1
				}
				if token <= last {
					t.Errorf("draw %d after the counter was lost: the token is %d after %d", i, token, last)
				}
				last = token
			}
		})
	}
}

// A counter that a sidecar has drawn from has no expiry, whichever side made it. Without the counter,
// the next token of Redisson would be 1.
func TestTokenCounterOfASidecarDoesNotExpire(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL()))
	const name = "fenced without end"
	check := func(when string) {
		t.Helper()
		w.Lock(name)
		if left := r.PTTL(t.Context(), counterOf(name)).Val(); left != -1 {
			t.Errorf("%s, the token counter expires in %v", when, left)
		}
		w.Unlock(name)
		awaitFree(t, r, name)
	}
	check("made by this daemon")
	// Counters of older daemons have this expiry.
	r.MustDo("PEXPIRE", counterOf(name), week.Milliseconds())
	check("made by an older daemon")
}

// With the setting token_expiry, a counter expires that long after the last draw. That is for
// locks that no Redisson program uses.
func TestTokenCounterExpiresIfThatIsConfigured(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), "--token-expiry=168h"))
	const name = "fenced for a week"
	check := func(when string) {
		t.Helper()
		w.Lock(name)
		if left := r.PTTL(t.Context(), counterOf(name)).Val(); left <= week*9/10 || left > week {
			t.Errorf("%s, the token counter expires in %v, not in a week", when, left)
		}
		w.Unlock(name)
		awaitFree(t, r, name)
	}
	check("made by this daemon")
	r.MustDo("PEXPIRE", counterOf(name), (24 * time.Hour).Milliseconds())
	check("unused for six days")
}

// RFencedLock.getToken reads the counter. It returns the token of the holder or a later one,
// because a sidecar draws tokens in advance for its waiters.
func TestGetTokenIsNotBelowTheTokenOfTheHolder(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	host := harness.StartRedisson(t, r)
	const name = "fenced"
	for waiters := range 3 {
		holder := harness.StartGoWorker(t, d)
		token := holder.Lock(name).Token
		for range waiters {
			harness.StartGoWorker(t, d).Enqueue(d, name)
		}
		seen := host.Must(harness.Command{Do: "get_token", Name: name}).Token
		if seen < token {
			t.Errorf("with %d waiters, getToken is %d and the holder has %d", waiters, seen, token)
		}
		t.Logf("with %d waiters, getToken is %d above the holder's token", waiters, seen-token)
		r.MustDo("FLUSHALL") // the next round begins without a lock and without a counter
		holder.Kill()
	}
}

// ---- clients that poll ------------------------------------------------------------

// A client that polls is granted a lock that a sidecar hands over between local processes
// without a pause: several times, not once by chance. It pauses after each grant, so that it
// cannot be granted the lock twice while it is free once.
//
// Shows docs/guarantees.md: Fairness between hosts.
// Shows docs/queue.md: Free moments.
func TestPollersAreGrantedALockThatIsHandedOver(t *testing.T) {
	t.Parallel()
	const name, pauseMS = "wanted", 100
	grants := harness.Pick(4, 8)
	r := harness.StartRedis(t)
	end := harness.Contend(t, name, 8, harness.StartDaemon(t, r.UnixURL()))
	host := harness.StartRedisson(t, r)
	other := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL()))
	unsubscribed := harness.StartGoWorker(t, harness.StartDaemonWithoutSubscribe(t, r))
	for _, c := range []struct {
		what   string
		w      *harness.Worker
		object string
		waitMS int64
	}{
		{"RLock.tryLock", host, "lock", 0},
		{"RFencedLock.tryLockAndGetToken", host, "fenced", 0},
		{"RSpinLock.lock", host, "spin", -1},
		{"another sidecar, wait_ms 0", other, "", 0},
		{"a sidecar that may not subscribe, wait_ms 5000", unsubscribed, "", 5000},
	} {
		t.Run(c.what, func(t *testing.T) {
			a := c.w.In(t).Must(harness.Command{
				Do: "poll", Name: name, Object: c.object, WaitMS: c.waitMS, Count: grants, Pause: pauseMS,
				ForMS: (harness.Patience * 2 / 3).Milliseconds(),
			})
			t.Logf("%d tries, %d grants, longest wait %v", a.Tries, a.Grants, time.Duration(a.LongestNS).Round(time.Millisecond))
			if a.Grants < grants {
				t.Errorf("%d of %d tries were granted in %v", a.Grants, a.Tries, harness.Patience*2/3)
			}
		})
	}
	held, _ := end()
	t.Logf("the eight processes held the lock %d times", held)
}

// ---- locks that are taken away ------------------------------------------------------

// Redisson force-unlocks a lock for which clients of a sidecar wait. Its holder loses it, and
// the first waiter is granted it, before the next renewal.
//
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
func TestForceUnlockByRedissonIsNoticedWhileOthersWait(t *testing.T) {
	t.Parallel()
	for what, lease := range map[string]int64{"renewed": 0, "fixed lease": tenMinutes} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			d := harness.StartDaemon(t, r.UnixURL(), "--lease=10m")
			host := harness.StartRedisson(t, r)
			for i, w := range harness.StartWorkerPerSDK(t, d) {
				h := harness.Hold{Worker: w, Name: fmt.Sprint("forced ", i)}
				h.Token = w.Must(harness.Command{Do: "lock", As: h.Name, Name: h.Name, WaitMS: -1, Lease: lease}).Token
				next := harness.StartNthWorker(t, d, i)
				granted := next.Enqueue(d, h.Name)
				if a := host.Must(harness.Command{Do: "force_unlock", Name: h.Name}); !a.Yes {
					t.Errorf("forceUnlock returns that %s was not held", h.Name)
				}
				lost := w.Try(harness.Command{Do: "lost", As: h.Name})
				if lost.Reason != string(protocol.Deleted) && lost.Reason != string(protocol.Stolen) {
					t.Errorf("the SDK of the holder reports %+v", lost)
				}
				if a := next.Await(granted); a.Err != "" || a.Token <= h.Token {
					t.Errorf("the waiter got %+v; the token before was %d", a, h.Token)
				}
			}
		})
	}
}

// Redisson force-unlocks a lock for which no client of the sidecar waits. Its holder loses it
// at the next check. Checks are as frequent as renewals, also if the hold is not renewed.
//
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
func TestForceUnlockByRedissonIsNoticedAtTheNextCheck(t *testing.T) {
	t.Parallel()
	for what, lease := range map[string]int64{"renewed": 0, "fixed lease": tenMinutes} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			d := harness.StartDaemon(t, r.UnixURL(), "--lease=10s")
			host := harness.StartRedisson(t, r)
			var holds []harness.Hold
			for i, w := range harness.StartWorkerPerSDK(t, d) {
				h := harness.Hold{Worker: w, Name: fmt.Sprint("forced ", i)}
				w.Must(harness.Command{Do: "lock", As: h.Name, Name: h.Name, WaitMS: -1, Lease: lease})
				if a := host.Must(harness.Command{Do: "force_unlock", Name: h.Name}); !a.Yes {
					t.Errorf("forceUnlock returns that %s was not held", h.Name)
				}
				holds = append(holds, h)
			}
			for _, h := range holds {
				h.ExpectLost(protocol.Deleted)
			}
		})
	}
}

// Redisson force-unlocks a lock that lingers, and acquires it. For a moment the sidecar may grant it,
// too: with a token that was drawn before, so that the resource refuses that holder.
//
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
func TestGrantsAfterAForceUnlockOfALingeringLockHaveSmallerTokens(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), "--linger=20ms"))
	host := harness.StartRedisson(t, r)
	fenced := harness.Command{Do: "lock", Object: "fenced", Name: "forced while it lingers"}
	here := harness.Command{Do: "lock", As: "here", Name: fenced.Name, WaitMS: 0}
	last, twoOwners := uint64(0), 0
	for range 10 {
		for range 20 {
			l := w.Lock(fenced.Name)
			if l.Token <= last {
				t.Errorf("the token is %d after %d", l.Token, last)
			}
			last = l.Token
			w.Unlock(fenced.Name)
		}
		host.Must(harness.Command{Do: "force_unlock", Name: fenced.Name})
		theirs := host.Try(fenced)
		if theirs.Err != "" {
			continue // the sidecar has acquired it again
		}
		if theirs.Token <= last {
			t.Errorf("Redisson's token is %d after %d", theirs.Token, last)
		}
		if a := w.Try(here); a.Err == "" {
			twoOwners++
			if a.Token >= theirs.Token || a.Token <= last {
				t.Errorf("the sidecar's token is %d, after %d and beside that of Redisson, %d", a.Token, last, theirs.Token)
			}
			w.Try(harness.Command{Do: "unlock", As: here.As, Name: here.Name}) // it may be lost
		}
		last = theirs.Token
		host.Must(harness.Command{Do: "unlock", Object: "fenced", Name: fenced.Name})
		harness.Eventually(t, "the sidecar has noticed it", func() bool {
			a := w.Try(here)
			if a.Err != "" {
				return false
			}
			w.Try(harness.Command{Do: "unlock", As: here.As, Name: here.Name})
			return a.Token > last
		})
	}
	t.Logf("there were two owners %d times", twoOwners)
}

// A Redisson program overwrites the key of a lock with a value. The holder loses the lock at
// the next renewal, long before its deadline, and the log names the type of the value.
//
// Shows docs/guarantees.md: A key is overwritten by another type.
func TestValueWrittenOverALockIsNoticedAtTheNextCheck(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=6s")
	host := harness.StartRedisson(t, r)
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, d), "overwritten")
	for _, h := range holds {
		host.Must(harness.Command{Do: "set_bucket", Name: h.Name})
	}
	for _, h := range holds {
		h.ExpectLost(protocol.Stolen)
		if v := r.Get(t.Context(), h.Name).Val(); v != "a value" {
			t.Errorf("the value is %q now", v)
		}
		harness.Eventually(t, "a line of the log names "+h.Name+" and its type", func() bool {
			return slices.ContainsFunc(strings.Split(d.Log.String(), "\n"), func(line string) bool {
				return strings.Contains(line, h.Name) && strings.Contains(line, "string")
			})
		})
	}
}

// ---- what excludes and does not wake ----------------------------------------------

// The releases of these locks are published on other channels, or not at all. A waiter of a
// sidecar is granted the lock when the sidecar tries again, after five seconds at most.
//
// Shows docs/queue.md: A holder that is a foreign client.
func TestReleasesOfRedissonThatWakeNoWaiterOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 1)
	host := harness.StartRedisson(t, r)
	objects := []string{"spin", "fair", "read", "write"}
	var granted []<-chan harness.Answer
	for _, object := range objects {
		host.Must(harness.Command{Do: "lock", Object: object, Name: object, WaitMS: -1, Lease: tenMinutes})
		granted = append(granted, begin(t, r, w, harness.Command{Do: "lock", As: object, Name: object, WaitMS: -1}))
	}
	channels := published(t, r, func() {
		for _, object := range objects {
			host.Must(harness.Command{Do: "unlock", Object: object, Name: object})
		}
	})
	if len(channels) > 0 {
		t.Errorf("the releases are published on %q", channels)
	}
	for i, object := range objects {
		if a := w.Await(granted[i]); a.Err != "" {
			t.Errorf("the waiter for a %s lock got %+v", object, a)
		}
	}
}

// A release by a client of a sidecar does not wake a thread in the queue of a fair lock, which
// has subscribed to another channel. The thread is granted the lock at the end of the lease
// that it has read. Until then a sidecar may grant the lock again: it ignores the queue.
func TestFairLockIsNotWokenByAReleaseOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedisson(t, r)
	wait := func(name string, leaseMS int64) <-chan harness.Answer {
		t.Helper()
		w.Must(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1, Lease: leaseMS})
		return begin(t, r, host.OnThread(name), harness.Command{Do: "lock", Object: "fair", Name: name, WaitMS: -1})
	}

	const short = "until a short lease ends"
	granted := wait(short, 10_000)
	w.Unlock(short)
	if a := host.Await(granted); a.Err != "" {
		t.Errorf("the thread got %+v", a)
	}

	const long = "until a long lease ends"
	granted = wait(long, tenMinutes)
	channels := published(t, r, func() { w.Unlock(long); awaitFree(t, r, long) })
	if !slices.Equal(channels, []string{"{" + long + "}"}) {
		t.Errorf("the release is published on %q", channels)
	}
	mustBeFree(t, w, harness.Command{Name: long}) // although the thread was first
	awaitFree(t, r, long)
	select {
	case a := <-granted:
		t.Errorf("the thread got %+v", a)
	default:
	}
}

// A spin lock of Redisson does not subscribe. It tries each 128 ms or more often, so that it is
// granted a lock that a client of a sidecar has released.
func TestSpinLockPollsALockOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL(), "--lease=10m"), 1)
	host := harness.StartRedisson(t, r)
	const name = "spun"
	w.Lock(name)
	granted := begin(t, r, host, harness.Command{Do: "lock", Object: "spin", Name: name, WaitMS: -1})
	if n := r.Subscribers(name); n != 0 {
		t.Errorf("%d clients have subscribed", n)
	}
	w.Unlock(name)
	if a := host.Await(granted); a.Err != "" {
		t.Errorf("the thread got %+v", a)
	}
}

// A multi-lock of RLocks is granted only if no client of a sidecar holds one of them. It
// releases those that it has acquired meanwhile.
func TestMultiLockOfRedissonRespectsALockOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL(), "--lease=10m"), 0)
	host := harness.StartRedisson(t, r)
	names := []string{"one of three", "two of three", "three of three"}
	all := harness.Command{Do: "lock", Object: "multi", Names: names}

	w.Lock(names[1])
	mustBeHeld(t, host, all)
	for _, name := range []string{names[0], names[2]} {
		mustBeFree(t, w, harness.Command{Name: name})
		awaitFree(t, r, name)
	}
	all.WaitMS = -1
	granted := host.Send(all)
	harness.Eventually(t, "the thread waits for the lock that is held", func() bool { return r.Subscribers(names[1]) == 1 })
	w.Unlock(names[1])
	if a := host.Await(granted); a.Err != "" {
		t.Fatalf("the thread got %+v", a)
	}
	for _, name := range names {
		mustBeHeld(t, w, harness.Command{Name: name})
	}
	all.Do = "unlock"
	host.Must(all)
	for _, name := range names {
		mustBeFree(t, w, harness.Command{Name: name})
	}
}

// ---- what does not exclude ----------------------------------------------------------

// A sidecar respects a read-write lock of Redisson with the name of a lock. The reverse is not
// true: Redisson grants both the read lock and the write lock while a client of a sidecar
// holds the lock. That client loses it at the next renewal that looks for fields of others.
//
// Shows docs/guarantees.md: A program builds another structure around the field of a held lock.
func TestReadWriteLockOfRedissonIgnoresALockOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=10s")
	host := harness.StartRedissonWithWatchdog(t, r, 10_000)
	for i, object := range []string{"read", "write"} {
		t.Run(object, func(t *testing.T) {
			t.Parallel()
			w, host := harness.StartNthWorker(t, d, i), host.In(t).OnThread(object)
			name := "a book to " + object
			lock, unlock := harness.Command{Do: "lock", Object: object, Name: name}, harness.Command{Do: "unlock", Object: object, Name: name}

			host.Must(lock)
			a := w.Try(harness.Command{Do: "lock", As: name, Name: name, WaitMS: 0})
			if a.Err != "held" {
				t.Errorf("a request of a client of the sidecar is answered %+v", a)
			}
			host.Must(unlock)

			w.Lock(name)
			host.Must(lock)
			h := harness.Hold{Worker: w, Name: name}
			h.ExpectLost(protocol.Stolen)
			mustBeHeld(t, w, harness.Command{Name: name})
			host.Must(unlock)
			if object == "write" {
				// The owner field of the sidecar stays, and Redisson takes it for a reader: no
				// client of a sidecar is granted the lock before the lease of Redisson ends.
				if fields := r.Fields(name); len(fields) != 2 || fields["mode"] != "read" {
					t.Errorf("after the unlock, the key is %v", fields)
				}
				mustBeHeld(t, w, harness.Command{Name: name})
			}
			awaitFree(t, r, name)
			mustBeFree(t, w, harness.Command{Name: name})
		})
	}
}

// The unlock of a read lock deletes the key of a lock that a client of a sidecar holds. That client
// loses it at the next renewal or check, before its deadline.
//
// Shows docs/guarantees.md: A program builds another structure around the field of a held lock.
func TestReadUnlockOfRedissonDeletesALockOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	host := harness.StartRedisson(t, r)
	for _, tt := range []struct {
		what    string
		daemon  string
		leaseMS int64
	}{
		{"a renewed lock", "--lease=10s", 0},
		{"a lease that is shorter than the daemon's", "--lease=10m", 10_000},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			host := host.In(t).OnThread(tt.what)
			w := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), tt.daemon))
			name := "read beside " + tt.what
			w.Must(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1, Lease: tt.leaseMS})
			host.Must(harness.Command{Do: "lock", Object: "read", Name: name})
			host.Must(harness.Command{Do: "unlock", Object: "read", Name: name})
			if fields := r.Fields(name); len(fields) != 0 {
				t.Errorf("after the unlock, the key is %v", fields)
			}
			h := harness.Hold{Worker: w, Name: name}
			h.ExpectLost(protocol.Deleted)
		})
	}
}

// A map and a rate limiter of Redisson are hashes, as a lock is. If one has the name of a lock, an
// acquire is refused with denied, and the hash stays as it is.
//
// Shows docs/guarantees.md: A key is overwritten by another type.
func TestHashOfRedissonIsNotALock(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedisson(t, r)
	for _, do := range []string{"put_map", "set_rate"} {
		t.Run(do, func(t *testing.T) {
			w, host := w.In(t), host.In(t)
			name := "not a lock by " + do
			host.Must(harness.Command{Do: do, Name: name, Count: 5})
			before := r.Fields(name)
			for _, wait := range []int64{0, -1} {
				a := w.Try(harness.Command{Do: "lock", As: name, Name: name, WaitMS: wait})
				if a.Err != "denied" {
					t.Errorf("a request with wait_ms %d is answered %+v", wait, a)
				}
				harness.CheckContains(t, a.Msg, "which is not a lock")
			}
			if now := r.Fields(name); fmt.Sprint(now) != fmt.Sprint(before) {
				t.Errorf("the hash is %v now, before it was %v", now, before)
			}
		})
	}
}

// A map or a rate limiter that is made while a client of a sidecar holds the lock of that name is
// written around its field. The client loses the lock at the next check. The hash has the expiry of
// the lock, so the name is refused until that, and usable after it.
//
// Shows docs/guarantees.md: A program builds another structure around the field of a held lock.
func TestHashOfRedissonAroundALockOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedisson(t, r)
	for _, do := range []string{"put_map", "set_rate"} {
		t.Run(do, func(t *testing.T) {
			t.Parallel()
			w, host := w.In(t), host.In(t).OnThread(do)
			h := harness.Hold{Worker: w, Name: "written around by " + do}
			w.Must(harness.Command{Do: "lock", As: h.Name, Name: h.Name, WaitMS: -1, Lease: 3000})
			if a := host.Must(harness.Command{Do: do, Name: h.Name, Count: 5}); !a.Yes {
				t.Errorf("%s had no effect", do)
			}
			h.ExpectLost(protocol.Stolen)
			if a := w.Try(harness.Command{Do: "lock", As: "again", Name: h.Name}); a.Err != "denied" {
				t.Errorf("an acquire after the loss is answered %+v", a)
			}
			awaitFree(t, r, h.Name)
			mustBeFree(t, w, harness.Command{Name: h.Name})
		})
	}
}

// A lock of a group of values is a hash with the name of the group. It is granted although a client
// of a sidecar holds the lock of that name. While a Redisson program holds it, the name is refused.
//
// Shows docs/guarantees.md: A program builds another structure around the field of a held lock.
func TestGroupLockOfRedissonIgnoresALockOfASidecar(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedissonWithWatchdog(t, r, 3000)
	lock := harness.Command{Do: "lock", Object: "group", Name: "a group", Names: []string{"one", "two"}}
	unlock := lock
	unlock.Do = "unlock"

	host.Must(lock)
	if a := w.Try(harness.Command{Do: "lock", As: lock.Name, Name: lock.Name, WaitMS: -1}); a.Err != "denied" {
		t.Errorf("an acquire while the group is locked is answered %+v", a)
	}
	host.Must(unlock)
	awaitFree(t, r, lock.Name)

	h := harness.Hold{Worker: w, Name: lock.Name}
	w.Must(harness.Command{Do: "lock", As: h.Name, Name: h.Name, WaitMS: -1, Lease: 3000})
	host.Must(lock)
	h.ExpectLost(protocol.Stolen)
	host.Must(unlock)
	awaitFree(t, r, h.Name)
	mustBeFree(t, w, harness.Command{Name: h.Name})
}

// Redis refuses a semaphore with the name of a lock that is held, and a lock with the name of
// a semaphore.
func TestSemaphoreOfRedissonUnderTheNameOfALock(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	w := harness.StartNthWorker(t, harness.StartDaemon(t, r.UnixURL()), 0)
	host := harness.StartRedisson(t, r)

	const lock = "a lock"
	w.Lock(lock)
	before := r.Fields(lock)
	for _, do := range []string{"set_permits", "lock", "unlock"} {
		a := host.Try(harness.Command{Do: do, Object: "semaphore", Name: lock, Count: 3})
		if a.Err != "other" {
			t.Errorf("%s is answered %+v", do, a)
		}
		harness.CheckContains(t, a.Msg, "WRONGTYPE")
	}
	if now := r.Fields(lock); len(now) != 1 || fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the lock is %v now, before it was %v", now, before)
	}
	w.Unlock(lock)

	const semaphore = "a semaphore"
	if a := host.Must(harness.Command{Do: "set_permits", Name: semaphore, Count: 3}); !a.Yes {
		t.Error("trySetPermits did not succeed")
	}
	a := w.Try(harness.Command{Do: "lock", As: semaphore, Name: semaphore, WaitMS: 0})
	if a.Err != "denied" {
		t.Errorf("a request for the lock is answered %+v", a)
	}
	harness.CheckContains(t, a.Msg, semaphore)
	host.Must(harness.Command{Do: "lock", Object: "semaphore", Name: semaphore})
	if n := r.Get(t.Context(), semaphore).Val(); n != "2" {
		t.Errorf("the semaphore has %s permits", n)
	}
}

// Objects of Redisson with the name of a semaphore take no permits of it, and it waits for a lock of Redisson.
//
// Shows docs/kinds.md: Permits.
func TestObjectsOfRedissonWithTheNameOfASemaphore(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	host := harness.StartRedisson(t, r)
	c := harness.Dial(t, d)
	ctx := t.Context()
	const name = "partner-api"
	semaphore := c.Semaphore(name, 3)
	p, err := semaphore.Acquire(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, do := range []string{"set_permits", "lock"} {
		a := host.Try(harness.Command{Do: do, Object: "semaphore", Name: name, Count: 3})
		if a.Err != "other" {
			t.Errorf("%s of an RSemaphore is answered %+v", do, a)
		}
		harness.CheckContains(t, a.Msg, "WRONGTYPE")
	}
	for _, object := range []string{"lock", "read", "write"} {
		if a := host.Try(harness.Command{Do: "lock", Object: object, As: object, Name: name, WaitMS: 0}); a.Err != "held" && a.Err != "timeout" {
			t.Errorf("%s is answered %+v", object, a)
		}
	}
	if p.Err() != nil {
		t.Errorf("the permits are lost: %v", p.Err())
	}
	if err := p.Release(locksidecar.Confirmed(ctx)); err != nil {
		t.Fatal(err)
	}
	host.Must(harness.Command{Do: "lock", Name: name, WaitMS: 0})
	if _, err := semaphore.TryAcquire(ctx, 1); !errors.Is(err, locksidecar.ErrHeld) {
		t.Errorf("while Redisson has the lock: %v", err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := semaphore.Acquire(ctx, 1)
		granted <- err
	}()
	harness.Eventually(t, "the request is queued", func() bool { return harness.Waiters(t, d, name) == 1 })
	host.Must(harness.Command{Do: "unlock", Name: name})
	if err := <-granted; err != nil {
		t.Errorf("after its unlock: %v", err)
	}
	const foreign = "a semaphore of Redisson"
	host.Must(harness.Command{Do: "set_permits", Name: foreign, Count: 3})
	if _, err := c.Semaphore(foreign, 3).TryAcquire(ctx, 1); !errors.Is(err, locksidecar.ErrDenied) {
		t.Errorf("of the name of an RSemaphore: %v", err)
	}
}

// A program that deletes a semaphore, or writes into it, takes no permit from those that have others, for longer than
// until a renewal.
//
// Shows docs/kinds.md: Permits.
func TestSemaphoreThatAnotherProgramChanges(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	host := harness.StartRedisson(t, r)
	c := harness.Dial(t, harness.StartDaemon(t, r.UnixURL(), "--lease=1500ms"))
	ctx := t.Context()
	for name, change := range map[string]func(name string){
		"deleted":  func(name string) { r.Del(ctx, name) },
		"unlocked": func(name string) { host.Must(harness.Command{Do: "force_unlock", Name: name}) },
		"replaced": func(name string) { r.Set(ctx, name, "x", 0) },
	} {
		p, err := c.Semaphore(name, 2).Acquire(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		if change(name); name == "unlocked" && r.Exists(ctx, name).Val() != 0 {
			t.Errorf("force_unlock deletes nothing: %v", r.HGetAll(ctx, name).Val())
		}
		<-p.Done()
		var lost *locksidecar.LostError
		if !errors.As(p.Err(), &lost) || lost.Permits != 2 {
			t.Errorf("%s: %v", name, p.Err())
		}
		r.Del(ctx, name)
		if p, err := c.Semaphore(name, 2).Acquire(ctx, 2); err != nil || p.Permits() != 2 {
			t.Errorf("%s, acquired again: %v", name, err)
		}
	}
	p, err := c.Semaphore("edited", 3).Acquire(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	uuid := ""
	for field := range r.HGetAll(ctx, "edited").Val() {
		if field != "mode" {
			uuid = field
		}
	}
	for field, value := range map[string]string{"a host": "7 60000 9999999999999", "text": "x", "b9c3d0aa-0000-8000-8000-000000000000": "-1 2 3", "": ""} {
		r.HSet(ctx, "edited", field, value)
	}
	for range 3 { // whatever the numbers say, this host's own are renewed, and the others expire
		if q, err := c.Semaphore("edited", 3).TryAcquire(ctx, 1); err == nil {
			if err := q.Release(locksidecar.Confirmed(ctx)); err != nil {
				t.Error(err)
			}
		}
	}
	if p.Err() != nil || r.HGet(ctx, "edited", uuid).Val() == "" {
		t.Errorf("%v; Redis has %v", p.Err(), r.HGetAll(ctx, "edited").Val())
	}
}
