package main

import (
	"context"
	"math"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

type etcdClient struct {
	*clientv3.Client
	lease   time.Duration
	holding *concurrency.Session
}

func connectEtcd(s *spec) (client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Etcd}, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	e := &etcdClient{Client: c, lease: s.lease()}
	// One lease for any number of locks is how etcd holds many.
	e.holding, err = e.session()
	return e, err
}

func (c *etcdClient) session() (*concurrency.Session, error) {
	return concurrency.NewSession(c.Client, concurrency.WithTTL(int(math.Ceil(c.lease.Seconds()))))
}

// worker has a session of its own. The key of a waiter is the lock's name and its
// session's lease: two workers of one session would be one owner, who enters the
// lock that he holds.
func (c *etcdClient) worker() (worker, error) {
	s, err := c.session()
	return &etcdWorker{session: s}, err
}

func (c *etcdClient) hold(name string) (func() error, error) {
	return nil, concurrency.NewMutex(c.holding, name).Lock(context.Background())
}

type etcdWorker struct {
	session *concurrency.Session
	held    *concurrency.Mutex
}

func (w *etcdWorker) lock(name string) error {
	w.held = concurrency.NewMutex(w.session, name)
	return w.held.Lock(context.Background())
}

func (w *etcdWorker) unlock() error { return w.held.Unlock(context.Background()) }
