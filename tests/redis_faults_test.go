package tests

import (
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Whoever holds a lock that is deleted from Redis is told so.
func TestHoldersAreToldOfAFlush(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	holders := []*worker{startGoWorker(t, d)}
	if havePython() {
		holders = append(holders, startPythonWorker(t, d))
	}
	var tokens []uint64
	names := []string{"flushed 0", "flushed 1"}
	for i, w := range holders {
		tokens = append(tokens, w.lock(names[i]).Token)
	}
	if err := r.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for i, w := range holders {
		if a := w.try(command{Do: "lost", As: names[i]}); a.Err != "lost" || a.Reason != string(protocol.Deleted) {
			t.Errorf("the holder of %q is told %+v, not that its key was deleted", names[i], a)
		}
		// The counter of tokens was flushed too.
		if a := w.must(command{Do: "lock", As: "again", Name: names[i], WaitMS: -1}); a.Token <= tokens[i] {
			t.Errorf("after the flush the token is %d, before it was %d", a.Token, tokens[i])
		}
	}
}

// Whoever holds a lock that somebody else writes into Redis is told so, and
// does not free it.
func TestHolderIsToldOfATheft(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=3s")
	w := startGoWorker(t, d)
	w.lock("stolen")
	ctx := t.Context()
	pipe := r.TxPipeline()
	pipe.Del(ctx, "stolen")
	pipe.HSet(ctx, "stolen", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	if a := w.try(command{Do: "lost", As: "stolen"}); a.Err != "lost" || a.Reason != string(protocol.Stolen) {
		t.Errorf("the holder is told %+v, not that its lock was stolen", a)
	}
	if a := w.try(command{Do: "unlock", As: "stolen"}); a.Err == "" {
		t.Error("the holder released a lock that it had lost")
	}
	if n := r.HLen(ctx, "stolen").Val(); n != 1 {
		t.Errorf("the thief's key has %d fields now", n)
	}
}

// Redis's end of both connections is closed again and again under load. Nobody
// notices but by waiting.
func TestConnectionsKilledUnderLoad(t *testing.T) {
	r := startRedis(t)
	hosts := []*daemon{startDaemon(t, r.unixURL()), startDaemon(t, r.tcpURL())}
	const rounds = 150
	var fleet []*worker
	var answers []<-chan answer
	for i := range 6 {
		w := startAnyWorker(t, hosts[i%2], i/2)
		fleet = append(fleet, w)
		answers = append(answers, w.ask(hammer(r, rounds)))
	}
	ctx := t.Context()
	kills := 0
	for progress := 0; kills < 5; {
		// Some work between two kills, so that they hit all that is going on.
		eventually(t, "the fleet works on", func() bool {
			n, _ := r.Get(ctx, "counter").Int()
			if n < progress+40 {
				return n >= len(fleet)*rounds
			}
			progress = n
			return true
		})
		clients := r.lockClients()
		for _, c := range clients {
			r.Do(ctx, "CLIENT", "KILL", "ID", c.id) // it may be gone by itself
		}
		if len(clients) > 0 {
			kills++
		}
	}
	var all []round
	for i, w := range fleet {
		a := w.await(answers[i])
		if a.Err != "" {
			t.Fatalf("worker %d: %s: %s", i, a.Err, a.Msg)
		}
		all = append(all, a.Rounds...)
	}
	checkCounter(t, r, all, len(fleet)*rounds)
	for _, d := range hosts {
		d.awaitRedis("ok")
	}
}

// Redis restarts and is away for five seconds. A lock whose lease is longer is
// held all the time, whether Redis kept its data or not; who waits is served
// when it is back.
func TestLocksOutliveARestartOfRedis(t *testing.T) {
	for _, c := range []struct {
		what string
		args []string
	}{
		{"with its data", []string{"--appendonly", "yes", "--appendfsync", "always"}},
		{"without its data", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := startRedis(t, c.args...)
			d := startDaemon(t, r.unixURL(), "--lease=20s")
			w := startGoWorker(t, d)
			token := w.lock("kept").Token
			ctx := t.Context()
			field := r.HGetAll(ctx, "kept").Val()

			r.stop()
			stopped := time.Now()
			waiter := startGoWorker(t, d)
			waited := waiter.ask(command{Do: "lock", As: "free", Name: "free", WaitMS: -1})
			if a := waiter.try(command{Do: "lock", As: "no", Name: "no", WaitMS: 0}); a.Err != "unavailable" {
				t.Errorf("a try without Redis is told %+v", a)
			}
			eventually(t, "five seconds", func() bool {
				if a := w.try(command{Do: "check", As: "kept"}); a.Err != "" {
					t.Fatalf("while Redis was away the holder was told %+v", a)
				}
				return time.Since(stopped) > 5*time.Second
			})
			r.start()
			if a := waiter.await(waited); a.Err != "" {
				t.Errorf("the waiter is told %+v", a)
			}
			eventually(t, "the lock is in Redis as before", func() bool {
				now := r.HGetAll(ctx, "kept").Val()
				return len(field) == 1 && maps.Equal(now, field)
			})
			if a := w.try(command{Do: "check", As: "kept"}); a.Err != "" {
				t.Errorf("after the restart the holder is told %+v", a)
			}
			w.unlock("kept")
			if a := waiter.lock("kept"); a.Token <= token {
				t.Errorf("after the restart the token is %d, before it was %d", a.Token, token)
			}
		})
	}
}

// Redis is away for longer than a lease: the holder is told at its deadline,
// not when Redis is back.
func TestLockExpiresWhileRedisIsAway(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=1s")
	w := startGoWorker(t, d)
	token := w.lock("expiring").Token
	r.stop()
	if a := w.try(command{Do: "lost", As: "expiring"}); a.Err != "lost" || a.Reason != string(protocol.Expired) {
		t.Errorf("the holder is told %+v, not that its lock expired", a)
	}
	r.start()
	if a := w.lock("expiring"); a.Token <= token {
		t.Errorf("the token is %d, before it was %d, and Redis has forgotten it", a.Token, token)
	}
}

// While Redis stands still (it is there and does not answer) a lock is believed
// in until its deadline and no longer; a bounded wait ends in time.
func TestRedisThatHangs(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL(), "--lease=2s")
	w := startGoWorker(t, d)
	w.lock("hanging")
	r.signal(syscall.SIGSTOP)
	if a := w.try(command{Do: "lock", As: "x", Name: "x", WaitMS: 100}); a.Err == "" {
		t.Errorf("a lock was granted by a Redis that does not answer: %+v", a)
	}
	if a := w.try(command{Do: "lost", As: "hanging"}); a.Err != "lost" || a.Reason != string(protocol.Expired) {
		t.Errorf("the holder is told %+v, not that its lock expired", a)
	}
	r.signal(syscall.SIGCONT)
	d.awaitRedis("ok")
	w.lock("hanging")
}
