package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeServed answers as the test wants.
type fakeServed struct {
	mu    sync.Mutex // guards the rest
	hangs bool
	redis string

	trouble string
	restart bool
}

func (f *fakeServed) set(hangs bool, redis string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs, f.redis = hangs, redis
}

func (f *fakeServed) Ping(ctx context.Context) error {
	f.mu.Lock()
	hangs := f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (f *fakeServed) Redis() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.redis
}

func (f *fakeServed) RedisServer() string { return "redis.example:6379/0, run id 5f3c" }

func (f *fakeServed) Trouble() (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trouble, f.restart
}

func (f *fakeServed) inTrouble(why string, restart bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble, f.restart = why, restart
}

func TestTheServiceManagerHearsReadyStatusWatchdogAndStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards told
		var told []string
		n := &notifier{
			log:      slog.New(slog.DiscardHandler),
			watchdog: 20 * time.Second,
			send: func(state string) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, state)
				return true, nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		s := &fakeServed{redis: "connection refused"}
		done := make(chan struct{})
		go func() { n.run(ctx, s); close(done) }()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
			told = nil
		}

		expect("READY=1", "STATUS=Serving. Redis: connection refused")
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1")
		s.set(false, "ok")
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1", "STATUS=Serving. Redis: ok (redis.example:6379/0, run id 5f3c)")
		// A loop that does not answer is left to the service manager's timeout.
		s.set(true, "ok")
		time.Sleep(65 * time.Second)
		expect()
		s.set(false, "ok")
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1")
		// What a restart does not mend is only said.
		s.inTrouble("the state is gone", false)
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1", "STATUS=In trouble: the state is gone. Redis: ok")
		// A daemon that no client can reach is restarted if that gives it the right socket.
		s.inTrouble("clients cannot connect", true)
		time.Sleep(30 * time.Second)
		expect("STATUS=In trouble: clients cannot connect. Redis: ok")
		s.inTrouble("", false)
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1", "STATUS=Serving. Redis: ok (redis.example:6379/0, run id 5f3c)")
		stop()
		<-done
		expect("STOPPING=1")
	})
}

func TestWithoutAServiceManagerNothingTicks(t *testing.T) {
	for name, send := range map[string]func(string) (bool, error){
		"none":        func(string) (bool, error) { return false, nil },
		"unreachable": func(string) (bool, error) { return false, errors.New("no such socket") },
	} {
		t.Run(name, func(t *testing.T) {
			n := &notifier{log: slog.New(slog.DiscardHandler), send: send}
			n.run(t.Context(), &fakeServed{}) // returns
		})
	}
}
