package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redislockClient struct {
	*redislock.Client
	wait    context.Context
	cancel  context.CancelFunc // of wait, never called: the process ends before
	lease   time.Duration
	options *redislock.Options
}

// connectRedislock asks again each 100 ms, as the library's example of waiting
// does: it has no default.
func connectRedislock(s *spec) (client, error) { return newRedislock(s, 100*time.Millisecond) }

func connectRedislock1ms(s *spec) (client, error) { return newRedislock(s, time.Millisecond) }

func newRedislock(s *spec, retry time.Duration) (client, error) {
	o, err := redis.ParseURL(s.Redis)
	if err != nil {
		return nil, err
	}
	// Without a deadline Obtain gives up after the lease.
	wait, cancel := context.WithTimeout(context.Background(), 365*24*time.Hour)
	return &redislockClient{
		Client:  redislock.New(redis.NewClient(o)),
		wait:    wait,
		cancel:  cancel,
		lease:   s.lease(),
		options: &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)},
	}, nil
}

func (c *redislockClient) worker() (worker, error) { return &redislockWorker{client: c}, nil }

func (c *redislockClient) hold(name string) (func() error, error) {
	l, err := c.Obtain(c.wait, name, c.lease, c.options)
	if err != nil {
		return nil, err
	}
	return func() error { return l.Refresh(context.Background(), c.lease, nil) }, nil
}

type redislockWorker struct {
	client *redislockClient
	held   *redislock.Lock
}

func (w *redislockWorker) lock(name string) (err error) {
	w.held, err = w.client.Obtain(w.client.wait, name, w.client.lease, w.client.options)
	return err
}

func (w *redislockWorker) unlock() error { return w.held.Release(context.Background()) }
