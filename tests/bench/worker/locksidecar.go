package main

import (
	"context"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type sidecarClient struct {
	*locksidecar.Client
	of int // permits of each semaphore; 0: there are locks
}

func connectSidecar(s *spec) (client, error) {
	c, err := locksidecar.Dial(context.Background(), s.Socket)
	return sidecarClient{c, s.Of}, err
}

func (c sidecarClient) worker() (worker, error) {
	if c.of > 0 {
		return &permitWorker{client: c}, nil
	}
	return &sidecarWorker{client: c.Client}, nil
}

func (c sidecarClient) hold(name string) (func() error, error) {
	_, err := c.Lock(context.Background(), name)
	return nil, err
}

type sidecarWorker struct {
	client *locksidecar.Client
	held   *locksidecar.Lock
}

func (w *sidecarWorker) lock(name string) (err error) {
	w.held, err = w.client.Lock(context.Background(), name)
	return err
}

func (w *sidecarWorker) unlock() error { return w.held.Unlock() }

// A permitWorker takes one permit, where others lock.
type permitWorker struct {
	client sidecarClient
	held   *locksidecar.Permit
}

func (w *permitWorker) lock(name string) (err error) {
	w.held, err = w.client.Semaphore(name, w.client.of).Acquire(context.Background(), 1)
	return err
}

func (w *permitWorker) unlock() error { return w.held.Release() }
