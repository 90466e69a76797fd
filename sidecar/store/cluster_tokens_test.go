package store

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// beforeUp has a function called when the next connection is made, before it is in use.
func beforeUp(f *atomic.Pointer[func()]) func(*Config) {
	return func(cfg *Config) {
		others := cfg.OnEvent
		cfg.on(Up, func(e Event) {
			if f := f.Swap(nil); f != nil {
				(*f)()
			}
			others(e)
		})
	}
}

// The danger: the counter of a lock has lost its last values on the way to another node, which draws them
// again.
func TestTokensOfTheNewOwnerAreAboveThoseOfTheOneBefore(t *testing.T) {
	for _, when := range []string{"the token comes before the move", "the token comes after the move", "the new owner is just being connected"} {
		t.Run(when, func(t *testing.T) {
			nodes := startFakeCluster(t, 2)
			name := nodes.names(0, 1)[0]
			slot := wire.SlotOf(name)
			last := time.Now().Add(time.Hour).UnixMicro() // as with a node whose clock is ahead
			var r *clusterRecorder
			move := func() { r.masters.moved(slot, nodes[1].address) }
			var onUp atomic.Pointer[func()]
			r = openCluster(t, nodes.url(), beforeUp(&onUp)).settled()
			nodes.know("") // the host learns of the move from MOVED alone
			nodes[0].set(func() {
				nodes[0].token = last
				nodes[0].onRun = func(*nodeRun) string {
					if when == "the token comes after the move" {
						move()
					}
					return ""
				}
			})
			take := func() { // at the first node
				if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done || res.Token != uint64(last)+1 {
					t.Fatalf("%+v", res)
				}
			}
			switch to := r.shardOf(nodes.names(1, 1)[0]); when {
			case "the token comes before the move":
				take()
				move()
			case "the token comes after the move":
				take()
			default:
				then := func() { take(); move() }
				onUp.Store(&then)
				r.mu.Lock()
				r.isUp[to] = false
				r.mu.Unlock()
				nodes[1].cut()
				r.await("connection", func() bool { return r.isUp[to] && onUp.Load() == nil })
			}
			for res := r.do(takeOp(name, 2))[0]; res.Outcome != redisop.Done; res = r.do(takeOp(name, 2))[0] {
				if res.Outcome != redisop.NotSent {
					t.Fatalf("%+v", res)
				}
			}
			runs := nodes[1].seen()
			if len(runs) == 0 {
				t.Fatal("the new owner has executed nothing")
			}
			floor, birth := runs[len(runs)-1].floors()
			if floor <= last || birth <= last {
				t.Errorf("tokens of the new owner are above %d, and those of new counters above %d, and there is one that is %d", floor, birth, last+1)
			}
		})
	}
}

// The danger: another host drew tokens at the former owner, which were lost in a failover of that. This
// host has not seen them, and has read the clock of the new owner long ago.
func TestTokensOfTheNewOwnerAreAboveItsClock(t *testing.T) {
	for _, when := range []string{"the new owner is connected", "the new owner is just being connected"} {
		t.Run(when, func(t *testing.T) {
			nodes := startFakeCluster(t, 2)
			moved, other := nodes.names(0, 1)[0], nodes.names(1, 1)[0]
			var onUp atomic.Pointer[func()]
			r := openCluster(t, nodes.url(), beforeUp(&onUp)).settled()
			slot, to := wire.SlotOf(moved), r.shardOf(other)
			nodes.know("")  // the host learns of the move from MOVED alone
			var clock int64 // of the new owner, when it has the slot
			move := func() {
				nodes[1].set(func() { nodes[1].ahead = time.Hour })
				clock = time.Now().Add(time.Hour).UnixMicro()
				r.masters.moved(slot, nodes[1].address)
			}
			if when == "the new owner is connected" {
				move()
			} else {
				onUp.Store(&move)
				r.mu.Lock()
				r.isUp[to] = false
				r.mu.Unlock()
				nodes[1].cut()
				r.await("connection", func() bool { return r.isUp[to] && onUp.Load() == nil })
			}
			for _, name := range []string{moved, other, moved} {
				if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done || res.Shard != to {
					t.Fatalf("%+v", res)
				}
			}
			runs := nodes[1].seen()
			for _, run := range runs {
				if floor, _ := run.floors(); floor < clock {
					t.Errorf("tokens are above %d, and the clock was at %d when the slot came", floor, clock)
				}
			}
			// Once the clock is known, counters are not lifted to it each time.
			if floor, birth := runs[len(runs)-1].floors(); floor > birth {
				t.Errorf("each counter is still lifted: %d", floor)
			}
		})
	}
}

// The danger: a slot left its master and came back, and this host learns no more than a larger config epoch.
func TestClockOfAMasterWithALargerEpochIsAskedFor(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	for i, n := range nodes {
		r.do(takeOp(nodes.names(i, 1)[0], 1)) // the clocks that were asked for at the start are known
		n.set(func() { n.clocks = 0 })
	}
	for id := range uint64(2) {
		r.masters.learned(nodes.topology(2, nil), nodes[0].address, protocol.Now())
		for i := range nodes { // the answer comes before the result
			r.do(takeOp(nodes.names(i, 1)[0], 2+id))
		}
	}
	for i, n := range nodes {
		if asked := n.asked(); asked != 1 {
			t.Errorf("the clock of node %d was asked for %d times, want once", i, asked)
		}
	}
}
