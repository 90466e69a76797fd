package main

import (
	"fmt"
	"os"
	"time"
)

// A client is what a program has one of: a library's connection or pool.
type client interface {
	// worker returns what one goroutine locks with.
	worker() (worker, error)

	// hold takes a lock to be kept. renew is to be called thrice in a lease, if the
	// library leaves that to its user; nil: the library renews.
	hold(name string) (renew func() error, err error)
}

// A worker takes one lock and gives it back, again and again.
type worker interface {
	lock(name string) error // waits for as long as it takes
	unlock() error          // what was locked last
}

// contenders by their names in specs. "-1ms" asks again each millisecond, where
// the library by itself is more patient.
var contenders = map[string]func(*spec) (client, error){
	"locksidecar":   connectSidecar,
	"redsync":       connectRedsync,
	"redsync-1ms":   connectRedsync1ms,
	"redislock":     connectRedislock,
	"redislock-1ms": connectRedislock1ms,
	"rueidislock":   connectRueidislock,
	"etcd":          connectEtcd,
	"unix-echo":     connectEcho,
}

// limits by their names in specs: no locks, but what no lock can beat. They have
// mode pairs only, and no goroutine for each name.
var limits = map[string]func(*run) measurement{
	"raw-evalsha":      newRawEvalsha,
	"unix-echo-server": newEchoServer,
}

// warmups is how many pairs a worker does before it is measured.
const warmups = 20

// warm has w do its first pairs, on a name of its own.
func warm(w worker, i int) error {
	name := fmt.Sprintf("warm:%d:%d", os.Getpid(), i)
	for range warmups {
		if err := w.lock(name); err != nil {
			return err
		}
		if err := w.unlock(); err != nil {
			return err
		}
	}
	return nil
}

// connected returns a client and n workers of it, all warm.
func (r *run) connected(connect func(*spec) (client, error), n int) (client, []worker, error) {
	c, err := connect(&r.spec)
	if err != nil {
		return nil, nil, err
	}
	workers := make([]worker, n)
	warmed := make(chan error, n)
	for i := range workers {
		if workers[i], err = c.worker(); err != nil {
			return nil, nil, err
		}
	}
	for i, w := range workers {
		go func() { warmed <- warm(w, i) }()
	}
	for range workers {
		if err := <-warmed; err != nil {
			return nil, nil, err
		}
	}
	return c, workers, nil
}

// insist does what must be done, again after each error, until the stop.
func (r *run) insist(do func() error) bool {
	for !r.stopped.Load() {
		err := do()
		if err == nil {
			return true
		}
		r.add(err)
		time.Sleep(time.Millisecond)
	}
	return false
}
