package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/history"
)

const (
	// permitLease is one that no run outlives: permits that are free before were released.
	permitLease = time.Hour
	// hostLease is short: the permits of a dead host are free when it ends.
	hostLease = 3 * time.Second
)

// usePermits has workers use permits alone, so that most of them hold some, or wait.
func (s *settings) usePermits(lease time.Duration) {
	s.hot, s.cool, s.of, s.think, s.lease = 0, 0, 10, 30, lease
	s.goWorkers, s.pyWorkers, s.plain = 3, 1, 0
}

// killsOfADaemon is how many workers are killed for each daemon that is.
const killsOfADaemon = 20

// killPermitHolders kills workers that use permits, also while their daemon is away: so many of them, and one daemon for
// each killsOfADaemon. No permit is lost: after each kill of a daemon a client takes all of them at one time, long before a
// lease ends.
func (c *conductor) killPermitHolders(ctx context.Context, n int, progress func(done int)) error {
	dice := rand.New(rand.NewPCG(c.set.seed, 0))
	for done := 0; done < n; {
		h := c.hosts[dice.IntN(len(c.hosts))]
		f := fault{lane: h.name, kind: daemonKill, duration: upTo(dice, 100*time.Millisecond)}
		soon := upTo(dice, 500*time.Millisecond)
		var failed error
		var restarted sync.WaitGroup
		restarted.Go(func() {
			if failed = pause(ctx, soon); failed != nil {
				return
			}
			_, failed = c.recordFault(f, "", func() (bool, error) { return true, c.restart(ctx, h, syscall.SIGKILL, f.duration) })
			c.count(daemonKill)
		})
		for range min(killsOfADaemon, n-done) {
			if err := c.killUser(ctx, c.hosts[dice.IntN(len(c.hosts))], dice); err != nil {
				restarted.Wait()
				return fmt.Errorf("kill %d: %w", done+1, err)
			}
			done++
		}
		restarted.Wait()
		if failed != nil {
			return failed
		}
		if err := c.takeAllPermits(ctx, c.hosts[dice.IntN(len(c.hosts))]); err != nil {
			return err
		}
		progress(done)
	}
	return nil
}

// killUser kills a worker of a host: in three of four cases one that holds permits, as its daemon says, and otherwise any
// one, which may wait for some.
func (c *conductor) killUser(ctx context.Context, h *host, dice *rand.Rand) error {
	if err := pause(ctx, upTo(dice, 40*time.Millisecond)); err != nil {
		return err
	}
	workers := c.fleet.of(h)
	victim := workers[dice.IntN(len(workers))]
	if dice.IntN(4) > 0 {
		if holders := c.holders(ctx, h, workers); len(holders) > 0 {
			victim = holders[dice.IntN(len(holders))]
		}
	}
	c.count(workerKill)
	return c.fleet.kill(victim)
}

// holders returns the workers of a host that hold permits; none if the daemon does not answer.
func (c *conductor) holders(ctx context.Context, h *host, workers []*worker) []*worker {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	client, err := h.dial(ctx)
	if err != nil {
		return nil
	}
	defer client.Close()
	row, _, err := client.Info(ctx, semaphore)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(workers), func(w *worker) bool {
		return !slices.ContainsFunc(row.Holders, func(held locksidecar.HolderInfo) bool {
			return held.PID == w.cmd.Process.Pid
		})
	})
}

// killHosts has one host after the other die: its daemon and all its workers are killed, and do not come back. Their permits
// are free when their leases end: a client of another host takes all then. A new host takes the place of the dead one.
func (c *conductor) killHosts(ctx context.Context, n int) error {
	dice := rand.New(rand.NewPCG(c.set.seed, 0))
	for done := range n {
		if err := pause(ctx, upTo(dice, 500*time.Millisecond)); err != nil {
			return err
		}
		live := c.liveHosts()
		h := live[dice.IntN(len(live))]
		workers := c.fleet.of(h)
		isHolding := func() bool { // stopped, it holds them until it is killed
			for _, w := range c.holders(ctx, h, workers) {
				_ = w.cmd.Process.Signal(syscall.SIGSTOP)
				if len(c.holders(ctx, h, []*worker{w})) > 0 {
					return true
				}
				_ = w.cmd.Process.Signal(syscall.SIGCONT)
			}
			return false
		}
		if err := waitUntil(ctx, eventTimeout, "a worker of the host holds permits", isHolding); err != nil {
			return err
		}
		_, err := c.recordFault(fault{lane: h.name, kind: hostDeath}, "", func() (bool, error) {
			h.shouldRun.Store(false)
			h.signal(syscall.SIGKILL) // first: it must not see that its workers end
			h.isDead = true
			var ended sync.WaitGroup
			for _, w := range workers {
				ended.Go(func() { c.fleet.end(w) })
			}
			ended.Wait()
			h.kill()
			live := c.liveHosts()
			if err := c.takeAllPermits(ctx, live[dice.IntN(len(live))]); err != nil {
				return true, err
			}
			next, err := c.addHost()
			if err != nil {
				return true, err
			}
			return true, c.populate(ctx, next)
		})
		if err != nil {
			return fmt.Errorf("death %d, of %s: %w", done+1, h.name, err)
		}
		c.count(hostDeath)
	}
	return nil
}

func (c *conductor) liveHosts() (live []*host) {
	for _, h := range c.hosts {
		if !h.isDead {
			live = append(live, h)
		}
	}
	return live
}

// takeAllPermits has a client of a host hold all permits at one time. It fails if that takes longer than eventTimeout:
// then some are lost.
func (c *conductor) takeAllPermits(ctx context.Context, h *host) error {
	c.takes++
	w, err := c.newLocalClient(ctx, h, fmt.Sprintf("taker%d", c.takes))
	if err != nil {
		return err
	}
	defer w.log.Close()
	defer w.client.Close()
	a := &actor{goWorker: w, dice: rand.New(rand.NewPCG(1, 1))}
	for end := protocol.Now() + int64(eventTimeout); ; {
		left := (end - protocol.Now()) / int64(time.Millisecond)
		switch {
		case ctx.Err() != nil:
			return errInterrupted
		case left <= 0:
			who, _ := exec.CommandContext(ctx, c.set.program, "who", "--socket", h.socket, semaphore).CombinedOutput()
			return fmt.Errorf("%s: no client could hold the %d permits at one time within %v: some are lost; locksidecar who %s:\n%s",
				h.name, c.set.of, eventTimeout, semaphore, who)
		}
		if all := a.acquirePermits(ctx, c.set.of, history.Event{WaitMS: left}); all != nil {
			all.check()
			all.release()
			return nil
		}
	}
}
