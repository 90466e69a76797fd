//go:build linux

// Package locksidecartest has a sidecar for the tests of programs that use locks: the daemon
// itself, in the process of the test, with a Redis in the same process. It needs no program
// and no network but the loopback interface, and starts within milliseconds.
//
//	func TestReport(t *testing.T) {
//		s, err := locksidecartest.Start(locksidecartest.Config{})
//		if err != nil {
//			t.Fatal(err)
//		}
//		t.Cleanup(s.Close)
//		c, err := s.Dial(t.Context())
//		...
//
// A program that reads LOCKSIDECAR_SOCKET is given [Sidecar.Path].
//
// Time is that of the host: a test of what happens at the end of a lease takes a short one
// with [locksidecar.WithLease], and waits for [locksidecar.Lock.Done]. In a bubble of
// testing/synctest the sidecar does not work, because its sockets are real.
package locksidecartest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
)

// Config has the settings of a Sidecar. The zero value of a field means its default.
type Config struct {
	// Lease is the watchdog lease, 300 ms to 1 h. A loss by [Sidecar.Delete] and by
	// [Sidecar.Steal] is noticed at the next renewal, after a third of it at most. Default 1 s.
	Lease time.Duration
	// Log gets what the daemon logs. Default: nothing is logged.
	Log *slog.Logger
}

// Sidecar is a running sidecar. Its methods may be called by several goroutines, but for
// Restart, Stop and Close.
type Sidecar struct {
	cfg   Config
	dir   string
	redis *embedded.Redis
	data  *redis.Client

	stop   context.CancelFunc // nil: it does not run
	served chan error
}

// Start starts a sidecar. Close ends it.
func Start(cfg Config) (_ *Sidecar, err error) {
	if cfg.Lease == 0 {
		cfg.Lease = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sidecar{cfg: cfg}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "locksidecar"); err != nil {
		return nil, err
	}
	if s.redis, err = embedded.Start(context.Background(), cfg.Log, embedded.InProcess()); err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(s.redis.URL())
	if err != nil {
		return nil, err
	}
	s.data = redis.NewClient(options)
	if err := s.Restart(); err != nil {
		return nil, err
	}
	return s, nil
}

// Path returns the path of the socket: for [locksidecar.Dial], and for LOCKSIDECAR_SOCKET.
func (s *Sidecar) Path() string { return filepath.Join(s.dir, "sock") }

// Dial returns a new Client. The caller closes it, before it closes the Sidecar.
func (s *Sidecar) Dial(ctx context.Context, options ...locksidecar.DialOption) (*locksidecar.Client, error) {
	return locksidecar.Dial(ctx, s.Path(), options...)
}

// Restart stops the sidecar, if it runs, and starts its successor with its state: locks stay
// held with their tokens, and calls that wait continue.
func (s *Sidecar) Restart() error {
	if err := s.Stop(); err != nil {
		return err
	}
	server, err := sidecar.Listen(sidecar.Config{
		Socket: s.Path(),
		Redis:  s.redis.URL(),
		Lease:  s.cfg.Lease,
		Log:    s.cfg.Log,

		// On a machine that is busy the answer of Redis takes longer than the default. A test of
		// TryLock does not fail for that.
		TryWithin: time.Minute,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	s.stop, s.served = stop, served
	return nil
}

// Stop stops the sidecar until Restart. Locks stay held, until their deadlines at most.
func (s *Sidecar) Stop() error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.stop = nil
	return <-s.served
}

// Force ends the hold of a client on a lock, or all holds of a semaphore, as an operator does: they are
// lost at once, with [locksidecar.ReasonForced].
func (s *Sidecar) Force(ctx context.Context, name string) error {
	c, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.ForceRelease(ctx, name)
	return err
}

// Delete deletes a lock, or a semaphore, from Redis: each holder loses it with
// [locksidecar.ReasonDeleted].
func (s *Sidecar) Delete(ctx context.Context, name string) error {
	n, err := s.data.Del(ctx, name).Result()
	if err == nil && n == 0 {
		err = fmt.Errorf("locksidecartest: %q is not held", name)
	}
	return err
}

// Steal gives a lock to a program on another host, whether or not a client holds it: a holder
// loses it with [locksidecar.ReasonStolen]. The function that is returned releases it. To have another
// program take permits of a semaphore, use a second Client.
func (s *Sidecar) Steal(ctx context.Context, name string) (release func() error, err error) {
	const field = "another-host:1"
	_, err = s.data.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Del(ctx, name)
		tx.HSet(ctx, name, field, 1)
		tx.PExpire(ctx, name, time.Hour)
		return nil
	})
	return func() error {
		ctx := context.Background()
		if owned, err := s.data.HExists(ctx, name, field).Result(); err != nil || !owned {
			return err
		}
		_, err := s.data.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			tx.Del(ctx, name)
			tx.Publish(ctx, "redisson_lock__channel:{"+name+"}", "0") // as Redisson does
			return nil
		})
		return err
	}, err
}

// Close stops the sidecar and removes its files. Close the Clients first. Their locks are lost
// with the Redis.
func (s *Sidecar) Close() {
	err := s.Stop()
	if s.data != nil {
		err = errors.Join(err, s.data.Close())
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	if err != nil {
		s.cfg.Log.Error("the sidecar of the test did not end cleanly", "err", err)
	}
}
