package main

import (
	"context"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type sidecarClient struct{ *locksidecar.Client }

func connectSidecar(s *spec) (client, error) {
	c, err := locksidecar.Dial(context.Background(), s.Socket)
	return sidecarClient{c}, err
}

func (c sidecarClient) worker() (worker, error) { return &sidecarWorker{client: c.Client}, nil }

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
