package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/history"
)

// longLocks is how many locks a longHolder has at every kill.
const longLocks = 20

// killResult has the measurements of a run with -kills, besides those of the history.
type killResult struct {
	kills      int
	newClients []time.Duration // from the start of the new daemon to a new client's first grant
	waiters    []time.Duration // to the first grant of a client that waited when the old one was killed
	compared   int             // tokens that were read again after a kill
	changed    int             // of them, those that differed
}

// A longHolder has a client that holds locks over all kills of its host's daemon, and two clients
// that hand one lock to each other. All of them write to the history.
type longHolder struct {
	host     *host
	owner    context.Context
	holder   *goWorker
	sections []*section
	holding  *section // of the lock that is handed over
	pair     [2]*goWorker
	turn     int // which of the pair holds
	waiting  sync.WaitGroup
}

func (c *conductor) newLongHolder(ctx context.Context, h *host) (k *longHolder, err error) {
	k = &longHolder{host: h, owner: locksidecar.NewOwner(context.Background())}
	if k.holder, err = c.newLocalClient(ctx, h, "keeper"); err != nil {
		return k, err
	}
	for i := range k.pair {
		if k.pair[i], err = c.newLocalClient(ctx, h, fmt.Sprintf("pair%d", i)); err != nil {
			return k, err
		}
	}
	for i := range longLocks {
		s := k.actor(k.holder).acquire(k.owner, history.Event{Lock: fmt.Sprintf("kept:%s:%d", h.name, i), Owner: 1})
		if s == nil {
			return k, fmt.Errorf("%s: no lock to begin with; see the history of %s", h.name, k.holder.Client)
		}
		k.sections = append(k.sections, s)
	}
	k.holding = k.actor(k.pair[0]).acquire(ctx, history.Event{Lock: "handed:" + h.name})
	if k.holding == nil {
		return k, fmt.Errorf("%s: no lock to hand over; see the history of %s", h.name, k.pair[0].Client)
	}
	return k, nil
}

// newLocalClient makes a client in this process that writes a log like a worker.
func (c *conductor) newLocalClient(ctx context.Context, h *host, what string) (*goWorker, error) {
	w := &goWorker{workerConfig: workerConfig{Client: h.name + "-" + what, Socket: h.socket, Register: c.registerSocket(), Of: c.set.of}, finishing: make(chan struct{})}
	var err error
	if w.log, err = history.Record(c.logs, w.Client); err != nil {
		return nil, err
	}
	if w.client, err = locksidecar.Dial(ctx, h.socket); err != nil {
		w.log.Close()
		return nil, err
	}
	c.log.Write(history.Event{Kind: history.Start, At: protocol.Now(), Client: w.Client, Host: h.name})
	return w, nil
}

func (k *longHolder) actor(w *goWorker) *actor {
	return &actor{goWorker: w, dice: rand.New(rand.NewPCG(1, 1))}
}

// close releases everything.
func (k *longHolder) close() {
	for _, s := range append(k.sections, k.holding) {
		if s != nil {
			s.check()
			s.release()
		}
	}
	clients := slices.DeleteFunc([]*goWorker{k.holder, k.pair[0], k.pair[1]}, func(w *goWorker) bool { return w == nil })
	for _, w := range clients {
		w.client.Close()
	}
	k.waiting.Wait()
	for _, w := range clients {
		w.log.Close()
	}
}

// killDaemons kills daemons under load at random times, n times, and starts each again well within
// the lease.
func (c *conductor) killDaemons(ctx context.Context, n int, progress func(done int)) (killResult, error) {
	var result killResult
	dice := rand.New(rand.NewPCG(c.set.seed, 0))
	var keepers []*longHolder
	for _, h := range c.hosts {
		k, err := c.newLongHolder(ctx, h)
		defer k.close()
		if err != nil {
			return result, err
		}
		keepers = append(keepers, k)
	}
	for i := range n {
		if err := pause(ctx, 20*time.Millisecond+time.Duration(dice.Float64()*float64(400*time.Millisecond))); err != nil {
			return result, err
		}
		k := keepers[dice.IntN(len(keepers))]
		f := fault{lane: k.host.name, kind: daemonKill, duration: time.Duration(dice.Float64() * float64(c.set.lease/4))}
		if err := c.killOnce(ctx, k, f, &result); err != nil {
			return result, fmt.Errorf("kill %d: %w", i+1, err)
		}
		progress(i + 1)
	}
	return result, nil
}

func (c *conductor) killOnce(ctx context.Context, k *longHolder, f fault, result *killResult) error {
	// One client of the pair waits for the lock of the other one.
	waiter := k.pair[1-k.turn]
	granted := make(chan *section, 1)
	k.waiting.Go(func() {
		granted <- k.actor(waiter).acquire(context.Background(), history.Event{Lock: "handed:" + k.host.name})
	})
	if err := waitUntil(ctx, eventTimeout, "the waiter is in the queue", func() bool {
		row, _, err := k.pair[k.turn].client.Info(ctx, "handed:"+k.host.name)
		return err == nil && row.Waiting > 0
	}); err != nil {
		return err
	}

	var started, fresh int64
	_, err := c.recordFault(f, "", func() (bool, error) {
		if err := k.host.stop(ctx, syscall.SIGKILL); err != nil {
			return true, err
		}
		k.holding.release() // while no daemon runs
		if err := pause(ctx, f.duration); err != nil {
			return true, err
		}
		started = protocol.Now()
		if err := k.host.start(); err != nil {
			return true, err
		}
		var err error
		fresh, err = k.host.awaitGrant(ctx)
		return true, err
	})
	if err != nil {
		return err
	}
	result.kills++
	result.newClients = append(result.newClients, time.Duration(fresh-started))

	select {
	case k.holding = <-granted:
	case <-time.After(eventTimeout):
		return fmt.Errorf("%s was not granted what it waited for within %v of the restart", waiter.Client, eventTimeout)
	case <-ctx.Done():
		return errInterrupted
	}
	k.turn = 1 - k.turn
	if k.holding == nil { // an error, which the history has
		k.holding = k.actor(waiter).acquire(ctx, history.Event{Lock: "handed:" + k.host.name})
		if k.holding == nil {
			return fmt.Errorf("%s was refused what it waited for; see its history", waiter.Client)
		}
	} else {
		result.waiters = append(result.waiters, time.Duration(k.holding.granted-started))
	}

	// The locks are still held, with the same tokens.
	for i, s := range k.sections {
		s.check()
		again := k.actor(k.holder).acquire(k.owner, history.Event{Lock: s.l.Name(), Owner: 1})
		if again == nil {
			continue // the history has it
		}
		result.compared++
		if again.l.Token() == s.l.Token() {
			again.release()
			continue
		}
		result.changed++
		s.release()
		k.sections[i] = again
	}
	return nil
}
