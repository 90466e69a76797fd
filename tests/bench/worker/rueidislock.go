package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type rueidislockClient struct{ rueidislock.Locker }

// connectRueidislock follows the example of the library's README, but for
// TryNextAfter. By default an attempt is given up after 20 ms, for the next of many
// keys to be tried. Here there is one key; a waiter whose attempt was given up, on a
// machine as busy as a benchmark makes it, was then never woken.
func connectRueidislock(s *spec) (client, error) {
	o, err := rueidis.ParseURL(s.Redis)
	if err != nil {
		return nil, err
	}
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   o,
		KeyMajority:    1, // there is one Redis
		KeyValidity:    s.lease(),
		NoLoopTracking: true,
		TryNextAfter:   s.lease(),
	})
	return rueidislockClient{l}, err
}

func (c rueidislockClient) worker() (worker, error) { return &rueidislockWorker{locker: c.Locker}, nil }

func (c rueidislockClient) hold(name string) (func() error, error) {
	_, _, err := c.WithContext(context.Background(), name)
	return nil, err
}

type rueidislockWorker struct {
	locker  rueidislock.Locker
	release context.CancelFunc
}

func (w *rueidislockWorker) lock(name string) (err error) {
	_, w.release, err = w.locker.WithContext(context.Background(), name)
	return err
}

// unlock returns when Redis has answered: release waits for that.
func (w *rueidislockWorker) unlock() error {
	w.release()
	return nil
}
