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

// keptLocks is how many locks a keeper has at every kill.
const keptLocks = 20

// killResult is what the focused mode measures besides what the history tells.
type killResult struct {
	kills    int
	fresh    []time.Duration // from the start of the new daemon to a new client's first grant
	waiters  []time.Duration // to the first grant of a client that waited when the old one was killed
	compared int             // tokens that were asked for again after a kill
	changed  int             // and were other ones
}

// A keeper is a client that holds locks over all kills of its host's daemon,
// while two more hand one lock to and fro. All of them write into the history.
type keeper struct {
	host    *host
	owner   context.Context
	holder  *goWorker
	kept    []*section
	holding *section // of the lock that is handed over
	pair    [2]*goWorker
	turn    int // which of the pair holds
	waiting sync.WaitGroup
}

func (c *conductor) newKeeper(ctx context.Context, h *host) (k *keeper, err error) {
	k = &keeper{host: h, owner: locksidecar.WithOwner(context.Background())}
	if k.holder, err = c.inside(ctx, h, "keeper"); err != nil {
		return k, err
	}
	for i := range k.pair {
		if k.pair[i], err = c.inside(ctx, h, fmt.Sprintf("pair%d", i)); err != nil {
			return k, err
		}
	}
	for i := range keptLocks {
		s := k.actor(k.holder).enter(k.owner, history.Event{Lock: fmt.Sprintf("kept:%s:%d", h.name, i), Owner: 1})
		if s == nil {
			return k, fmt.Errorf("%s: no lock to begin with; see the history of %s", h.name, k.holder.Client)
		}
		k.kept = append(k.kept, s)
	}
	k.holding = k.actor(k.pair[0]).enter(ctx, history.Event{Lock: "handed:" + h.name})
	if k.holding == nil {
		return k, fmt.Errorf("%s: no lock to hand over; see the history of %s", h.name, k.pair[0].Client)
	}
	return k, nil
}

// inside makes a client in this process that writes a log as workers do.
func (c *conductor) inside(ctx context.Context, h *host, what string) (*goWorker, error) {
	w := &goWorker{orders: orders{Client: h.name + "-" + what, Socket: h.socket, Register: c.registerSocket()}, over: make(chan struct{})}
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

func (k *keeper) actor(w *goWorker) *actor {
	return &actor{goWorker: w, dice: rand.New(rand.NewPCG(1, 1))}
}

// close releases everything.
func (k *keeper) close() {
	for _, s := range append(k.kept, k.holding) {
		if s != nil {
			s.check()
			s.leave()
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

// killDaemons kills daemons at random moments under load, n times, and starts
// each again well within the lease.
func (c *conductor) killDaemons(ctx context.Context, n int, progress func(done int)) (killResult, error) {
	var result killResult
	dice := rand.New(rand.NewPCG(c.set.seed, 0))
	var keepers []*keeper
	for _, h := range c.hosts {
		k, err := c.newKeeper(ctx, h)
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
		f := fault{lane: k.host.name, kind: daemonKill, last: time.Duration(dice.Float64() * float64(c.set.lease/4))}
		if err := c.killOnce(ctx, k, f, &result); err != nil {
			return result, fmt.Errorf("kill %d: %w", i+1, err)
		}
		progress(i + 1)
	}
	return result, nil
}

func (c *conductor) killOnce(ctx context.Context, k *keeper, f fault, result *killResult) error {
	// One of the pair waits for what the other one has.
	waiter := k.pair[1-k.turn]
	granted := make(chan *section, 1)
	k.waiting.Go(func() {
		granted <- k.actor(waiter).enter(context.Background(), history.Event{Lock: "handed:" + k.host.name})
	})
	if err := until(ctx, patience, "the waiter stands in the queue", func() bool {
		row, _, err := k.pair[k.turn].client.Info(ctx, "handed:"+k.host.name)
		return err == nil && row.Waiting > 0
	}); err != nil {
		return err
	}

	var started, fresh int64
	_, err := c.during(f, "", func() (bool, error) {
		if err := k.host.end(ctx, syscall.SIGKILL); err != nil {
			return true, err
		}
		k.holding.leave() // while nobody is there to hear it
		if err := pause(ctx, f.last); err != nil {
			return true, err
		}
		started = protocol.Now()
		if err := k.host.start(); err != nil {
			return true, err
		}
		var err error
		fresh, err = k.host.serves(ctx)
		return true, err
	})
	if err != nil {
		return err
	}
	result.kills++
	result.fresh = append(result.fresh, time.Duration(fresh-started))

	select {
	case k.holding = <-granted:
	case <-time.After(patience):
		return fmt.Errorf("%s was not granted what it waited for within %v of the restart", waiter.Client, patience)
	case <-ctx.Done():
		return errInterrupted
	}
	k.turn = 1 - k.turn
	if k.holding == nil { // an error; the history has it
		k.holding = k.actor(waiter).enter(ctx, history.Event{Lock: "handed:" + k.host.name})
		if k.holding == nil {
			return fmt.Errorf("%s was refused what it waited for; see its history", waiter.Client)
		}
	} else {
		result.waiters = append(result.waiters, time.Duration(k.holding.granted-started))
	}

	// What was held is held, with the token that it had.
	for i, s := range k.kept {
		s.check()
		again := k.actor(k.holder).enter(k.owner, history.Event{Lock: s.l.Name(), Owner: 1})
		if again == nil {
			continue // the history has it
		}
		result.compared++
		if again.l.Token() == s.l.Token() {
			again.leave()
			continue
		}
		result.changed++
		s.leave()
		k.kept[i] = again
	}
	return nil
}
