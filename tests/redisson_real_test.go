package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// Redisson itself, not its layout: the jar that programs use, in a process of its own
// (tests/redisson), beside daemons, on one Redis.

const (
	tenMinutes = int64(10 * 60 * 1000) // in ms: no lease of this length ends, or comes near its renewal, while a test waits
	week       = 7 * 24 * time.Hour
)

// counterOf is the key of the lock's token counter.
func counterOf(name string) string { return "redisson_lock_token:{" + name + "}" }

// begin sends a command that waits for a lock, and returns once its client waits: it has
// tried, subscribed, and tried again, so that from here on only a message or a timer wakes
// it. No other client may be trying for any lock meanwhile: a try in vain is counted by
// the PTTL that it asks for.
func begin(r *redisServer, w *worker, c command) <-chan answer {
	w.t.Helper()
	before := r.calls(w.t.Context())["pttl"]
	granted := w.ask(c)
	eventually(w.t, "the client waits for "+c.Name, func() bool {
		return r.calls(w.t.Context())["pttl"] >= before+2
	})
	return granted
}

// published returns what was published on channels of locks, without their common prefix,
// while f ran.
func published(t *testing.T, r *redisServer, f func()) []string {
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
	r.do("PUBLISH", prefix+end, "")
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

// awaitFree waits until a lock's key is gone: a release here is answered before Redis has
// carried it out.
func awaitFree(t *testing.T, r *redisServer, name string) {
	t.Helper()
	eventually(t, "the key of "+name+" is gone", func() bool { return len(r.fields(name)) == 0 })
}

// mustBeHeld expects that a worker does not get a lock that it will not wait for.
func (w *worker) mustBeHeld(c command) {
	w.t.Helper()
	c.Do, c.WaitMS = "lock", 0
	if a := w.try(c); a.Err != "held" {
		w.t.Errorf("a try for %s %s is answered %+v, not that it is held", c.Object, c.Name, a)
	}
}

// mustBeFree expects that a worker gets a lock that it will not wait for, and releases it.
func (w *worker) mustBeFree(c command) {
	w.t.Helper()
	c.Do, c.WaitMS, c.As = "lock", 0, c.Name
	w.must(c)
	c.Do = "unlock"
	w.must(c)
}

// ---- exclusion ------------------------------------------------------------------

// Threads of two Redisson programs and processes of two sidecars, in Go and Python, add to
// one counter by reading it and writing what they read plus one. No addition is lost, and
// tokens grow in the order in which the lock was held, on either side.
func TestRedissonProgramsAndSidecarsExcludeEachOther(t *testing.T) {
	r := startRedis(t)
	const rounds = 25
	var fleet []*worker
	var commands []command
	for range 2 {
		host := startRedisson(t, r)
		for _, object := range []string{"fenced", "lock"} {
			fleet = append(fleet, host.onThread(object))
			c := hammer(r, rounds)
			c.Object = object
			commands = append(commands, c)
		}
		d := startDaemon(t, r.tcpURL())
		for i := range 4 {
			fleet = append(fleet, startAnyWorker(t, d, i))
			commands = append(commands, hammer(r, rounds))
		}
	}
	hammerAll(t, r, fleet, commands)
}

// hammerAll lets each worker carry out its hammer command, all at once, and checks the
// counter.
func hammerAll(t *testing.T, r *redisServer, fleet []*worker, commands []command) {
	t.Helper()
	rounds, want := hammered(t, fleet, commands)
	checkCounter(t, r, rounds, want)
}

// hammered is hammerAll without the check. It returns all rounds, and how many there must
// be.
func hammered(t *testing.T, fleet []*worker, commands []command) (all []round, want int) {
	t.Helper()
	start := time.Now()
	var answers []<-chan answer
	for i, w := range fleet {
		answers = append(answers, w.ask(commands[i]))
	}
	for i, w := range fleet {
		a := w.await(answers[i])
		if a.Err != "" {
			t.Fatalf("worker %d: %s: %s", i, a.Err, a.Msg)
		}
		all = append(all, a.Rounds...)
		want += commands[i].Count
	}
	t.Logf("%d holds in %v", want, time.Since(start).Round(time.Millisecond))
	return all, want
}

// Every lock of Redisson that has the layout of an RLock excludes a sidecar, and a sidecar
// excludes it, whether or not one's release wakes the other.
func TestEveryLockOfRedissonExcludesSidecars(t *testing.T) {
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL()), 0)
	host := startRedisson(t, r)
	for _, object := range []string{"lock", "nonreentrant", "fenced", "spin", "fair"} {
		t.Run(object, func(t *testing.T) {
			w, host := w.in(t), host.in(t)
			c := command{Object: object, Name: "shared by " + object}
			w.lock(c.Name)
			host.mustBeHeld(c)
			w.unlock(c.Name)
			awaitFree(t, r, c.Name)

			c.Do = "lock"
			host.must(c)
			w.mustBeHeld(c)
			c.Do = "unlock"
			host.must(c)
			w.mustBeFree(c)
			awaitFree(t, r, c.Name)
			host.mustBeFree(c)
		})
	}
}

// The same under load. Not every release wakes every waiter, so leases are short.
func TestEveryLockOfRedissonExcludesSidecarsUnderLoad(t *testing.T) {
	r := startRedis(t)
	const rounds = 20
	host := startRedissonWithWatchdog(t, r, 3000)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	var fleet []*worker
	var commands []command
	add := func(w *worker, object string) {
		c := hammer(r, rounds)
		c.Object = object
		fleet, commands = append(fleet, w), append(commands, c)
	}
	for _, object := range []string{"lock", "nonreentrant", "fenced", "spin", "fair"} {
		add(host.onThread(object), object)
	}
	for i := range 2 {
		add(startAnyWorker(t, d, i), "")
	}
	hammerAll(t, r, fleet, commands)
}

// ---- wake-ups -------------------------------------------------------------------

// A release by RLock.unlock wakes a waiter here, by its message.
func TestUnlockOfRedissonWakesAWaiterHere(t *testing.T) {
	const poll = 5 * time.Second // a sidecar that waits and receives no message looks again after this
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	host := startRedisson(t, r)
	w := startAnyWorker(t, d, 0)
	// A grant before the poll is due can only come from the message. A later one may be
	// the machine's fault, so there are as many rounds as there is patience.
	for start, i := time.Now(), 0; ; i++ {
		name := fmt.Sprintf("theirs %d", i)
		host.must(command{Do: "lock", Name: name, WaitMS: -1, Lease: tenMinutes})
		asked := time.Now()
		granted := begin(r, w, command{Do: "lock", As: name, Name: name, WaitMS: -1})
		host.must(command{Do: "unlock", Name: name})
		a := w.await(granted)
		took := time.Since(asked)
		if a.Err != "" {
			t.Fatalf("the waiter is told %+v", a)
		}
		if took < poll {
			t.Logf("granted %v after it was asked for, in round %d", took, i)
			return
		}
		if time.Since(start) > patience {
			t.Fatalf("in %d rounds, no release by Redisson woke the waiter before it looked by itself, %v after it had asked", i+1, poll)
		}
	}
}

// A release here wakes a thread that waits in Redisson, by its message: the lease, after
// which it would look by itself, is ten minutes.
func TestReleaseHereWakesAWaiterOfRedisson(t *testing.T) {
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL(), "--lease=10m"), 1)
	host := startRedisson(t, r)
	for _, c := range []command{
		{Object: "lock", WaitMS: -1},
		{Object: "lock", WaitMS: tenMinutes},
		{Object: "nonreentrant", WaitMS: -1},
		{Object: "fenced", WaitMS: -1},
	} {
		t.Run(fmt.Sprintf("%s, wait %d ms", c.Object, c.WaitMS), func(t *testing.T) {
			w, host := w.in(t), host.in(t)
			c.Do, c.Name = "lock", "ours"
			w.lock(c.Name)
			granted := begin(r, host, c)
			w.unlock(c.Name)
			if a := host.await(granted); a.Err != "" {
				t.Errorf("the thread is told %+v", a)
			}
			c.Do = "unlock"
			host.must(c)
		})
	}
}

// ---- re-entry -------------------------------------------------------------------

// A thread that has entered an RLock twice has it until it left twice.
func TestReentryInRedissonIsRespected(t *testing.T) {
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL()), 0)
	host := startRedisson(t, r)
	const name = "entered twice there"
	host.lock(name)
	host.lock(name)
	if a := host.must(command{Do: "look", Name: name}); !a.Yes || !a.Mine || a.Entries != 2 {
		t.Errorf("the thread that locked it twice sees %+v", a)
	}
	host.must(command{Do: "unlock", Name: name})
	w.mustBeHeld(command{Name: name})
	host.must(command{Do: "unlock", Name: name})
	w.mustBeFree(command{Name: name})
}

// An owner here that has entered twice has the lock until it left twice, and a Redisson
// program sees that the lock is held, for how long, and that none of its threads holds it.
func TestReentryHereIsRespectedByRedisson(t *testing.T) {
	r := startRedis(t)
	c := dial(t, startDaemon(t, r.unixURL(), "--lease=10m"))
	host := startRedisson(t, r)
	const name = "entered twice here"
	ctx := locksidecar.WithOwner(t.Context())
	var entries []*locksidecar.Lock
	for range 2 {
		l, err := c.Lock(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, l)
	}
	for left := len(entries); left > 0; left-- {
		eventually(t, fmt.Sprintf("%d entries are in Redis", left), func() bool {
			fields := r.fields(name)
			for _, count := range fields {
				return len(fields) == 1 && count == fmt.Sprint(left)
			}
			return false
		})
		a := host.must(command{Do: "look", Name: name})
		if !a.Yes || a.Mine || a.Entries != 0 || a.TTLMS <= tenMinutes*9/10 || a.TTLMS > tenMinutes {
			t.Errorf("with %d entries here, Redisson sees %+v", left, a)
		}
		host.mustBeHeld(command{Name: name})
		if a := host.try(command{Do: "unlock", Name: name}); a.Err != "not_held" {
			t.Errorf("a thread that does not hold the lock unlocks it: %+v", a)
		}
		if err := entries[left-1].Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	awaitFree(t, r, name)
	if a := host.must(command{Do: "look", Name: name}); a.Yes || a.TTLMS != -2 {
		t.Errorf("after the release, Redisson sees %+v", a)
	}
	host.mustBeFree(command{Name: name})
}

// ---- watchdogs ------------------------------------------------------------------

// A hold that a sidecar renews outlives its lease several times over, and Redisson's
// tryLock, once a millisecond, never finds the lock free.
func TestHoldThatIsRenewedHereIsNeverFreeForRedisson(t *testing.T) {
	t.Parallel() // it mostly waits
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL(), "--lease=2s"), 1)
	neverFreeFor(t, r, w, startRedisson(t, r))
}

// The same the other way round.
func TestHoldThatRedissonRenewsIsNeverFreeHere(t *testing.T) {
	t.Parallel() // it mostly waits
	r := startRedis(t)
	w := startGoWorker(t, startDaemon(t, r.unixURL()))
	neverFreeFor(t, r, startRedissonWithWatchdog(t, r, 2000), w)
}

func neverFreeFor(t *testing.T, r *redisServer, holder, poller *worker) {
	t.Helper()
	const name, renewals = "renewed", 7 // each a third of the lease after the one before
	holder.lock(name)
	before := r.calls(t.Context())["pexpire"]
	polled := poller.ask(command{Do: "poll", Name: name, ForMS: (patience / 2).Milliseconds(), Count: 1})
	eventually(t, "the lock is renewed again and again", func() bool {
		return r.calls(t.Context())["pexpire"] >= before+renewals
	})
	poller.must(command{Do: "stop"})
	if a := poller.await(polled); a.Err != "" || a.Grants != 0 || a.Tries == 0 {
		t.Errorf("while the lock was held, %d of %d tries were granted (%s %s)", a.Grants, a.Tries, a.Err, a.Msg)
	}
	holder.unlock(name)
	eventually(t, "the other side gets the lock", func() bool {
		return poller.try(command{Do: "lock", As: name, Name: name}).Err == ""
	})
}

// ---- tokens ---------------------------------------------------------------------

// Sidecars and Redisson's fenced locks draw from one counter. When it is lost, which an
// expiry does, Redisson begins again with 1; a sidecar goes on above all tokens before.
func TestTokensGrowOverSidecarsAndRedisson(t *testing.T) {
	r := startRedis(t)
	host := startRedisson(t, r)
	here, there := startGoWorker(t, startDaemon(t, r.unixURL())), startAnyWorker(t, startDaemon(t, r.tcpURL()), 1)
	draw := func(t *testing.T, name string, w *worker) uint64 {
		t.Helper()
		w = w.in(t)
		token := w.must(command{Do: "lock", As: name, Name: name, Object: "fenced", WaitMS: -1}).Token
		w.must(command{Do: "unlock", As: name, Name: name, Object: "fenced"})
		awaitFree(t, r, name)
		return token
	}
	for what, order := range map[string][]*worker{
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
			host.in(t).must(command{Do: "delete", Name: counterOf(name)})
			if token := draw(t, name, host); token != 1 {
				t.Errorf("after the counter was lost, Redisson's token is %d", token)
			}
			for i, w := range order {
				token := draw(t, name, w)
				if i == 0 && w == host {
					continue // it goes on from its 1
				}
				if token <= last {
					t.Errorf("draw %d after the counter was lost: the token is %d after %d", i, token, last)
				}
				last = token
			}
		})
	}
}

// A counter that a sidecar has drawn from has no expiry, on whichever side it was made: when it was
// gone, Redisson's next token would be 1.
func TestTokenCounterOfASidecarDoesNotExpire(t *testing.T) {
	r := startRedis(t)
	w := startGoWorker(t, startDaemon(t, r.unixURL()))
	const name = "fenced without end"
	check := func(when string) {
		t.Helper()
		w.lock(name)
		if left := r.PTTL(t.Context(), counterOf(name)).Val(); left != -1 {
			t.Errorf("%s, the token counter expires in %v", when, left)
		}
		w.unlock(name)
		awaitFree(t, r, name)
	}
	check("made by this daemon")
	// Older daemons made counters with this expiry.
	r.do("PEXPIRE", counterOf(name), week.Milliseconds())
	check("made by an older daemon")
}

// token_expiry lets counters expire, each so long after it was drawn from, where only
// sidecars draw.
func TestTokenCounterExpiresIfThatIsConfigured(t *testing.T) {
	r := startRedis(t)
	w := startGoWorker(t, startDaemon(t, r.unixURL(), "--token-expiry=168h"))
	const name = "fenced for a week"
	check := func(when string) {
		t.Helper()
		w.lock(name)
		if left := r.PTTL(t.Context(), counterOf(name)).Val(); left <= week*9/10 || left > week {
			t.Errorf("%s, the token counter expires in %v, not in a week", when, left)
		}
		w.unlock(name)
		awaitFree(t, r, name)
	}
	check("made by this daemon")
	r.do("PEXPIRE", counterOf(name), (24 * time.Hour).Milliseconds())
	check("unused for six days")
}

// RFencedLock.getToken reads the counter. It is the holder's token or a later one: a
// sidecar draws tokens in advance for those who wait.
func TestGetTokenIsNotBelowTheHoldersToken(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	host := startRedisson(t, r)
	const name = "fenced"
	for waiters := range 3 {
		holder := startGoWorker(t, d)
		token := holder.lock(name).Token
		for range waiters {
			waitFor(startGoWorker(t, d), d, name)
		}
		seen := host.must(command{Do: "get_token", Name: name}).Token
		if seen < token {
			t.Errorf("with %d waiters, getToken is %d and the holder has %d", waiters, seen, token)
		}
		t.Logf("with %d waiters, getToken is %d above the holder's token", waiters, seen-token)
		r.do("FLUSHALL") // the next round begins again
		holder.kill9()
	}
}

// ---- clients that poll ------------------------------------------------------------

// contend starts eight processes that pass a lock between them through one daemon, without
// a pause. The returned function ends that and returns how often they had it.
func contend(t testing.TB, d *daemon, name string) (end func() int) {
	t.Helper()
	var fleet []*worker
	var ended []<-chan answer
	for i := range 8 {
		w := startAnyWorker(t, d, i)
		fleet = append(fleet, w)
		ended = append(ended, w.ask(command{Do: "poll", Name: name, WaitMS: -1, ForMS: tenMinutes}))
	}
	eventually(t, "the processes want the lock", func() bool { return waiting(t, d, name) >= 4 })
	return func() int {
		t.Helper()
		grants := 0
		for i, w := range fleet {
			select {
			case a := <-ended[i]:
				t.Fatalf("process %d stopped before: %+v", i, a)
			default:
			}
			w.must(command{Do: "stop"})
			a := w.await(ended[i])
			if a.Err != "" {
				t.Errorf("process %d: %s: %s", i, a.Err, a.Msg)
			}
			grants += a.Grants
		}
		return grants
	}
}

// startDeafDaemon starts a daemon whose Redis user may publish and not subscribe.
func startDeafDaemon(t *testing.T, r *redisServer) *daemon {
	t.Helper()
	acl(t, r, "deaf", ">pw", "~*", "&*", "+@all", "-subscribe", "-psubscribe")
	return startDaemon(t, fmt.Sprintf("redis://deaf:pw@127.0.0.1:%d", r.port))
}

// A client that cannot be woken and polls gets a lock that passes from process to process
// on one host: again and again, not once by luck. It stays away after each grant, so that
// it does not have two of them from one moment in which the lock is free.
func TestPollersGetALockThatIsPassedOnHere(t *testing.T) {
	const name, grants, away = "wanted", 8, 100
	r := startRedis(t)
	end := contend(t, startDaemon(t, r.unixURL()), name)
	host := startRedisson(t, r)
	other := startGoWorker(t, startDaemon(t, r.unixURL()))
	deaf := startGoWorker(t, startDeafDaemon(t, r))
	for _, c := range []struct {
		what   string
		w      *worker
		object string
		waitMS int64
	}{
		{"RLock.tryLock", host, "lock", 0},
		{"RFencedLock.tryLockAndGetToken", host, "fenced", 0},
		{"RSpinLock.lock", host, "spin", -1},
		{"another sidecar, wait_ms 0", other, "", 0},
		{"a sidecar that may not subscribe, wait_ms 5000", deaf, "", 5000},
	} {
		t.Run(c.what, func(t *testing.T) {
			a := c.w.in(t).must(command{
				Do: "poll", Name: name, Object: c.object, WaitMS: c.waitMS, Count: grants, Pause: away,
				ForMS: (patience * 2 / 3).Milliseconds(),
			})
			t.Logf("%d tries, %d grants, longest wait %v", a.Tries, a.Grants, time.Duration(a.LongestNS).Round(time.Millisecond))
			if a.Grants < grants {
				t.Errorf("%d of %d tries were granted in %v", a.Grants, a.Tries, patience*2/3)
			}
		})
	}
	t.Logf("the eight processes had the lock %d times", end())
}

// ---- locks that are taken away ------------------------------------------------------

// forceUnlock of a lock that is held here while others here wait: the holder is told, and
// the first of them has the lock, without waiting for a renewal.
func TestForceUnlockByRedissonIsNoticedWhileOthersWait(t *testing.T) {
	for what, lease := range map[string]int64{"renewed": 0, "fixed lease": tenMinutes} {
		t.Run(what, func(t *testing.T) {
			r := startRedis(t)
			d := startDaemon(t, r.unixURL(), "--lease=10m")
			host := startRedisson(t, r)
			for i, w := range oneOfEach(t, d) {
				h := held{worker: w, name: fmt.Sprint("forced ", i)}
				h.token = w.must(command{Do: "lock", As: h.name, Name: h.name, WaitMS: -1, Lease: lease}).Token
				next := startAnyWorker(t, d, i)
				granted := waitFor(next, d, h.name)
				if a := host.must(command{Do: "force_unlock", Name: h.name}); !a.Yes {
					t.Errorf("forceUnlock says that %s was not held", h.name)
				}
				lost := w.try(command{Do: "lost", As: h.name})
				if lost.Reason != string(protocol.Deleted) && lost.Reason != string(protocol.Stolen) {
					t.Errorf("the holder is told %+v", lost)
				}
				if a := next.await(granted); a.Err != "" || a.Token <= h.token {
					t.Errorf("the waiter is told %+v; the token before was %d", a, h.token)
				}
			}
		})
	}
}

// forceUnlock of a lock that no other process here wants: the holder is told at the next check,
// which comes as often as a renewal, whether or not the hold is renewed.
func TestForceUnlockByRedissonIsNoticedAtTheNextCheck(t *testing.T) {
	t.Parallel() // it mostly waits
	for what, lease := range map[string]int64{"renewed": 0, "fixed lease": tenMinutes} {
		t.Run(what, func(t *testing.T) {
			r := startRedis(t)
			d := startDaemon(t, r.unixURL(), "--lease=3s")
			host := startRedisson(t, r)
			var holds []held
			for i, w := range oneOfEach(t, d) {
				h := held{worker: w, name: fmt.Sprint("forced ", i)}
				w.must(command{Do: "lock", As: h.name, Name: h.name, WaitMS: -1, Lease: lease})
				if a := host.must(command{Do: "force_unlock", Name: h.name}); !a.Yes {
					t.Errorf("forceUnlock says that %s was not held", h.name)
				}
				holds = append(holds, h)
			}
			for _, h := range holds {
				h.lost(protocol.Deleted)
			}
		})
	}
}

// A key that a Redisson program overwrites with a value is stolen: the holder is told so at
// the next renewal, long before its deadline, and the log says what is there instead.
func TestValueWrittenOverALockIsNoticedAtTheNextCheck(t *testing.T) {
	t.Parallel() // it mostly waits
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=6s")
	host := startRedisson(t, r)
	holds := holdOne(r, oneOfEach(t, d), "overwritten")
	for _, h := range holds {
		host.must(command{Do: "set_bucket", Name: h.name})
	}
	for _, h := range holds {
		h.lost(protocol.Stolen)
		if v := r.Get(t.Context(), h.name).Val(); v != "a value" {
			t.Errorf("the value is %q now", v)
		}
		named := slices.ContainsFunc(strings.Split(d.log.String(), "\n"), func(line string) bool {
			return strings.Contains(line, h.name) && strings.Contains(line, "string")
		})
		if !named {
			t.Errorf("no line of the log says that %s is a string now", h.name)
		}
	}
}

// ---- what excludes and does not wake ----------------------------------------------

// The releases of these are published on channels of their own or nowhere: who waits here
// finds the lock free when its sidecar looks again, after at most five seconds.
func TestReleasesOfRedissonThatWakeNobodyHere(t *testing.T) {
	t.Parallel() // it mostly waits
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL()), 1)
	host := startRedisson(t, r)
	objects := []string{"spin", "fair", "read", "write"}
	var granted []<-chan answer
	for _, object := range objects {
		host.must(command{Do: "lock", Object: object, Name: object, WaitMS: -1, Lease: tenMinutes})
		granted = append(granted, begin(r, w, command{Do: "lock", As: object, Name: object, WaitMS: -1}))
	}
	said := published(t, r, func() {
		for _, object := range objects {
			host.must(command{Do: "unlock", Object: object, Name: object})
		}
	})
	if len(said) > 0 {
		t.Errorf("the releases are published on %q", said)
	}
	for i, object := range objects {
		if a := w.await(granted[i]); a.Err != "" {
			t.Errorf("who waits for a %s lock is told %+v", object, a)
		}
	}
}

// A thread that waits in a fair lock's queue is not woken by a release here: it listens to
// a channel of its own. It has the lock when the lease ends that it saw; until then a
// sidecar may take the lock again, and does not stand behind the queue.
func TestFairLockIsNotWokenByAReleaseHere(t *testing.T) {
	t.Parallel() // it mostly waits
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL()), 0)
	host := startRedisson(t, r)
	wait := func(name string, leaseMS int64) <-chan answer {
		t.Helper()
		w.must(command{Do: "lock", As: name, Name: name, WaitMS: -1, Lease: leaseMS})
		return begin(r, host.onThread(name), command{Do: "lock", Object: "fair", Name: name, WaitMS: -1})
	}

	const short = "until a short lease ends"
	granted := wait(short, 2000)
	w.unlock(short)
	if a := host.await(granted); a.Err != "" {
		t.Errorf("the thread is told %+v", a)
	}

	const long = "until a long lease ends"
	granted = wait(long, tenMinutes)
	said := published(t, r, func() { w.unlock(long); awaitFree(t, r, long) })
	if !slices.Equal(said, []string{"{" + long + "}"}) {
		t.Errorf("the release is published on %q", said)
	}
	w.mustBeFree(command{Name: long}) // though the thread was first
	awaitFree(t, r, long)
	select {
	case a := <-granted:
		t.Errorf("the thread is told %+v", a)
	default:
	}
}

// A spin lock of Redisson listens to nothing, and looks by itself every 128 ms or sooner:
// it has a lock that is released here and not wanted by others.
func TestSpinLockLooksByItself(t *testing.T) {
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL(), "--lease=10m"), 1)
	host := startRedisson(t, r)
	const name = "spun"
	w.lock(name)
	granted := begin(r, host, command{Do: "lock", Object: "spin", Name: name, WaitMS: -1})
	if n := r.listeners(name); n != 0 {
		t.Errorf("%d clients listen", n)
	}
	w.unlock(name)
	if a := host.await(granted); a.Err != "" {
		t.Errorf("the thread is told %+v", a)
	}
}

// A multi-lock of RLocks is had only if none of them is held here; what it took meanwhile
// it gives back.
func TestMultiLockOfRedissonRespectsALockHeldHere(t *testing.T) {
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL(), "--lease=10m"), 0)
	host := startRedisson(t, r)
	names := []string{"one of three", "two of three", "three of three"}
	all := command{Do: "lock", Object: "multi", Names: names}

	w.lock(names[1])
	host.mustBeHeld(all)
	for _, name := range []string{names[0], names[2]} {
		w.mustBeFree(command{Name: name})
		awaitFree(t, r, name)
	}
	all.WaitMS = -1
	granted := host.ask(all)
	eventually(t, "the thread waits for the one that is held here", func() bool { return r.listeners(names[1]) == 1 })
	w.unlock(names[1])
	if a := host.await(granted); a.Err != "" {
		t.Fatalf("the thread is told %+v", a)
	}
	for _, name := range names {
		w.mustBeHeld(command{Name: name})
	}
	all.Do = "unlock"
	host.must(all)
	for _, name := range names {
		w.mustBeFree(command{Name: name})
	}
}

// ---- what does not exclude ----------------------------------------------------------

// A sidecar respects a read-write lock of Redisson under its name. The reverse does not
// hold: both halves of a read-write lock are granted over a lock that is held here, to two
// owners who know nothing of each other. The holder here is told at the next renewal.
func TestReadWriteLockOfRedissonIgnoresALockHeldHere(t *testing.T) {
	t.Parallel() // it mostly waits
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	host := startRedissonWithWatchdog(t, r, 3000)
	for i, object := range []string{"read", "write"} {
		t.Run(object, func(t *testing.T) {
			w, host := startAnyWorker(t, d, i), host.in(t)
			name := "a book to " + object
			lock, unlock := command{Do: "lock", Object: object, Name: name}, command{Do: "unlock", Object: object, Name: name}

			host.must(lock)
			a := w.try(command{Do: "lock", As: name, Name: name, WaitMS: 0})
			if a.Err != "held" {
				t.Errorf("a try here is answered %+v", a)
			}
			host.must(unlock)

			w.lock(name)
			host.must(lock)
			h := held{worker: w, name: name}
			h.lost(protocol.Stolen)
			w.mustBeHeld(command{Name: name})
			host.must(unlock)
			if object == "write" {
				// The owner field of the holder here is left, and taken for a reader: no owner
				// here has the lock before Redisson's lease ends.
				if fields := r.fields(name); len(fields) != 2 || fields["mode"] != "read" {
					t.Errorf("after the unlock, the key is %v", fields)
				}
				w.mustBeHeld(command{Name: name})
			}
			awaitFree(t, r, name)
			w.mustBeFree(command{Name: name})
		})
	}
}

// A semaphore under the name of a lock that is held here is refused by Redis, and so is a
// lock under the name of a semaphore.
func TestSemaphoreOfRedissonUnderTheNameOfALock(t *testing.T) {
	r := startRedis(t)
	w := startAnyWorker(t, startDaemon(t, r.unixURL()), 0)
	host := startRedisson(t, r)

	const lock = "a lock"
	w.lock(lock)
	before := r.fields(lock)
	for _, do := range []string{"set_permits", "lock", "unlock"} {
		a := host.try(command{Do: do, Object: "semaphore", Name: lock, Count: 3})
		if a.Err != "other" {
			t.Errorf("%s is answered %+v", do, a)
		}
		says(t, a.Msg, "WRONGTYPE")
	}
	if now := r.fields(lock); len(now) != 1 || fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the lock is %v now, before it was %v", now, before)
	}
	w.unlock(lock)

	const semaphore = "a semaphore"
	if a := host.must(command{Do: "set_permits", Name: semaphore, Count: 3}); !a.Yes {
		t.Error("trySetPermits did not succeed")
	}
	a := w.try(command{Do: "lock", As: semaphore, Name: semaphore, WaitMS: 0})
	if a.Err != "denied" {
		t.Errorf("a try for a semaphore is answered %+v", a)
	}
	says(t, a.Msg, semaphore)
	host.must(command{Do: "lock", Object: "semaphore", Name: semaphore})
	if n := r.Get(t.Context(), semaphore).Val(); n != "2" {
		t.Errorf("the semaphore has %s permits", n)
	}
}
