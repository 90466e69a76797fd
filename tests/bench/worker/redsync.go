package main

import (
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncClient struct {
	*redsync.Redsync
	options []redsync.Option
}

// connectRedsync leaves the delay between two attempts as it is by default, a
// random one from 50 to 250 ms. Only the attempts are not 32: it waits, as all
// the others do.
func connectRedsync(s *spec) (client, error) {
	return newRedsync(s)
}

func connectRedsync1ms(s *spec) (client, error) {
	return newRedsync(s, redsync.WithRetryDelay(time.Millisecond))
}

func newRedsync(s *spec, more ...redsync.Option) (client, error) {
	o, err := redis.ParseURL(s.Redis)
	if err != nil {
		return nil, err
	}
	return &redsyncClient{
		Redsync: redsync.New(goredis.NewPool(redis.NewClient(o))),
		options: append([]redsync.Option{redsync.WithExpiry(s.lease()), redsync.WithTries(math.MaxInt)}, more...),
	}, nil
}

func (c *redsyncClient) worker() (worker, error) { return &redsyncWorker{client: c}, nil }

func (c *redsyncClient) hold(name string) (func() error, error) {
	m := c.NewMutex(name, c.options...)
	if err := m.Lock(); err != nil {
		return nil, err
	}
	return func() error { return refused(m.Extend()) }, nil
}

type redsyncWorker struct {
	client *redsyncClient
	held   *redsync.Mutex
}

func (w *redsyncWorker) lock(name string) error {
	w.held = w.client.NewMutex(name, w.client.options...)
	return w.held.Lock()
}

func (w *redsyncWorker) unlock() error { return refused(w.held.Unlock()) }

// refused is the error of a call that may also fail without one.
func refused(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("redsync: the lock was not ours any more")
	}
	return err
}
