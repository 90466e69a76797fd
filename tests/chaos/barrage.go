package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// barrage kills the daemon of each host again and again while it also kills and stops workers,
// until the length of the run has passed. The mean time from the start of a daemon to its death
// is set.killEvery. Half of the daemons are killed at a random time after their start, perhaps
// before they serve; the others after they have answered a client.
func (c *conductor) barrage(ctx context.Context) error {
	f := fault{lane: "all hosts", kind: daemonBarrage}
	_, err := c.recordFault(f, "", func() (bool, error) {
		end := time.Now().Add(c.set.length)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var all sync.WaitGroup
		repeat := func(stream uint64, once func(dice *rand.Rand) error) {
			dice := rand.New(rand.NewPCG(c.set.seed, stream))
			all.Go(func() {
				for time.Now().Before(end) && ctx.Err() == nil {
					if err := once(dice); err != nil {
						cancel(err)
					}
				}
			})
		}
		for i, h := range c.hosts {
			repeat(uint64(i), func(dice *rand.Rand) error { return c.killSoon(ctx, h, dice) })
			repeat(uint64(100+i), func(dice *rand.Rand) error { return c.stopSome(ctx, dice) })
		}
		repeat(200, func(dice *rand.Rand) error {
			if err := pause(ctx, upTo(dice, 800*time.Millisecond)); err != nil {
				return err
			}
			w := c.fleet.pick(dice.Uint64())
			if w == nil {
				return nil
			}
			c.count(workerKill)
			return c.fleet.kill(w)
		})
		all.Wait()
		return true, context.Cause(ctx)
	})
	return err
}

// killSoon kills the daemon of a host after a random time, and starts the next one.
func (c *conductor) killSoon(ctx context.Context, h *host, dice *rand.Rand) error {
	if dice.IntN(2) == 0 {
		if err := h.awaitAnswer(ctx); err != nil {
			return err
		}
	}
	if err := pause(ctx, upTo(dice, 2*c.set.killEvery)); err != nil {
		return err
	}
	if err := h.stop(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	c.count(daemonKill)
	return h.start()
}

// stopSome stops a worker for a while, in one of three cases beyond its deadlines.
func (c *conductor) stopSome(ctx context.Context, dice *rand.Rand) error {
	if err := pause(ctx, upTo(dice, 600*time.Millisecond)); err != nil {
		return err
	}
	w := c.fleet.pick(dice.Uint64())
	if w == nil {
		return nil
	}
	c.count(workerStop)
	duration := upTo(dice, c.set.lease/4)
	if dice.IntN(3) == 0 {
		duration = c.set.lease + upTo(dice, c.set.lease/2)
	}
	return c.fleet.stop(ctx, w, duration)
}

func (c *conductor) count(kind faultKind) {
	c.mu.Lock()
	c.done[kind]++
	c.mu.Unlock()
}

func upTo(dice *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(dice.Float64() * float64(d))
}
