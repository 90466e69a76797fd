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

// fakeServer has the status that the test sets.
type fakeServer struct {
	mu     sync.Mutex // guards the rest
	isHung bool
	redis  string

	changed chan struct{}

	trouble string
	restart bool
}

func (f *fakeServer) set(hangs bool, redis string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isHung, f.redis = hangs, redis
}

func (f *fakeServer) RedisChanged() <-chan struct{} { return f.changed }

func (f *fakeServer) Ping(ctx context.Context) error {
	f.mu.Lock()
	hangs := f.isHung
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (f *fakeServer) Redis() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.redis
}

func (f *fakeServer) RedisServer() string { return "redis.example:6379/0, run id 5f3c" }

func (f *fakeServer) Trouble() (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trouble, f.restart
}

func (f *fakeServer) setTrouble(why string, restart bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble, f.restart = why, restart
}

func TestNotifierSendsReadyStatusWatchdogAndStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards sent
		var sent []string
		n := &notifier{
			log:      slog.New(slog.DiscardHandler),
			watchdog: 20 * time.Second,
			send: func(state string) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, state)
				return true, nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		s := &fakeServer{redis: "connection refused", changed: make(chan struct{})}
		done := make(chan struct{})
		go func() { n.run(ctx, s); close(done) }()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(sent, want) {
				t.Errorf("sent %q, want %q", sent, want)
			}
			sent = nil
		}

		expect("READY=1", "STATUS=Serving. Redis: connection refused")
		// Another reason is reported at once, and each text once.
		s.set(false, "wrong password")
		s.changed <- struct{}{}
		expect("STATUS=Serving. Redis: wrong password")
		s.changed <- struct{}{}
		expect()
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1")
		s.set(false, "ok")
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1", "STATUS=Serving. Redis: ok (redis.example:6379/0, run id 5f3c)")
		// A loop that does not answer: the service manager's timeout ends the daemon.
		s.set(true, "ok")
		time.Sleep(65 * time.Second)
		expect()
		s.set(false, "ok")
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1")
		// A restart would not help: the trouble is reported, and the watchdog goes on.
		s.setTrouble("the state is gone", false)
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1", "STATUS=In trouble: the state is gone. Redis: ok")
		// A restart would give the daemon the right socket: the watchdog message is left out.
		s.setTrouble("clients cannot connect", true)
		time.Sleep(30 * time.Second)
		expect("STATUS=In trouble: clients cannot connect. Redis: ok")
		s.setTrouble("", false)
		time.Sleep(10 * time.Second)
		expect("WATCHDOG=1", "STATUS=Serving. Redis: ok (redis.example:6379/0, run id 5f3c)")
		stop()
		<-done
		expect("STOPPING=1")
	})
}

func TestNotifierReturnsWithoutAServiceManager(t *testing.T) {
	for name, send := range map[string]func(string) (bool, error){
		"none":        func(string) (bool, error) { return false, nil },
		"unreachable": func(string) (bool, error) { return false, errors.New("no such socket") },
	} {
		t.Run(name, func(t *testing.T) {
			n := &notifier{log: slog.New(slog.DiscardHandler), send: send}
			n.run(t.Context(), &fakeServer{}) // returns
		})
	}
}
