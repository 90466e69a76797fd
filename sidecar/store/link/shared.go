package link

import (
	"sync/atomic"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// Shared is what all links of a Store share.
type Shared struct {
	spare        resultPool    // slices for results that were given back
	conns        atomic.Uint32 // connections made so far: no two connections of a host have one number
	askingLogged atomic.Bool   // that ASKING is refused was logged
	redirects    redirectCounts
}

// NewShared returns what no link uses yet.
func NewShared() *Shared { return &Shared{spare: make(resultPool, 4)} }

// Recycle takes back results that were delivered.
func (s *Shared) Recycle(results []redisop.Result) { s.spare.put(results) }

// Redirected returns how many answers of nodes of a Cluster did not serve a command, since the start.
func (s *Shared) Redirected() pipeline.Redirects {
	c := &s.redirects
	return pipeline.Redirects{Moved: c.moved.Load(), Ask: c.ask.Load(), TryAgain: c.tryAgain.Load()}
}

// A resultPool has slices for results that were given back.
type resultPool chan []redisop.Result

// maxSpareResults bounds a slice that is kept: 480 KiB.
const maxSpareResults = 1 << 12

// get returns an empty slice.
func (p resultPool) get() []redisop.Result {
	select {
	case results := <-p:
		return results
	default:
		return nil
	}
}

func (p resultPool) put(results []redisop.Result) {
	if cap(results) == 0 || cap(results) > maxSpareResults {
		return
	}
	clear(results)
	select {
	case p <- results[:0]:
	default:
	}
}

// redirectCounts are counted since the start, of all connections together.
type redirectCounts struct{ moved, ask, tryAgain atomic.Uint64 }

// add adds what a link counted.
func (c *redirectCounts) add(n pipeline.Redirects) {
	if n == (pipeline.Redirects{}) {
		return
	}
	c.moved.Add(n.Moved)
	c.ask.Add(n.Ask)
	c.tryAgain.Add(n.TryAgain)
}
