package intake

import (
	"sync"
	"time"
)

// A Pace is the backpressure of a limit of requests per second. Connections that share that limit
// are read at twice its rate, releases and other requests that a policy never refuses included.
// Below that rate, a client that sends too much is refused. A client that goes on sending would
// cost the sidecar and the host as much time as if it were not limited, so its connections are read
// more slowly: a few requests at a time, each time after a pause of up to a second. A pace is safe
// for concurrent use. (This is a leaky bucket, as in the generic cell rate algorithm.)
type Pace struct {
	interval int64 // between two requests, ns
	conns    int   // guarded by Paces.mu

	mu  sync.Mutex // guards what follows
	due int64      // when the requests so far would have been read at this pace
}

const (
	// paceBurst is how much earlier than at its pace a request may be read.
	paceBurst = time.Second

	// longestPause bounds how long a batch of requests waits, also those of others that share the
	// pace: their releases, for instance.
	longestPause = time.Second

	// connectRequests is how many requests a new connection counts as, besides its hello.
	connectRequests = 2
)

// CountOpen notes a new connection.
func (p *Pace) CountOpen(now int64) { p.Pause(now, connectRequests) }

// Pause notes that n requests were read at the time now, and returns for how long their connection
// is not to be read, and they are not to be handed on.
func (p *Pace) Pause(now int64, n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = min(max(p.due, now)+int64(n)*p.interval, now+int64(paceBurst+longestPause))
	return max(time.Duration(p.due-now)-paceBurst, 0)
}

func (p *Pace) isIdle(now int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns == 0 && p.due <= now
}

// Paces are those of a policy, by what shares a limit. They are safe for concurrent use. A pace outlasts
// its connections, so that a client that reconnects all the time is not read faster.
type Paces[A comparable] struct {
	mu    sync.Mutex // guards what follows
	all   map[A]*Pace
	swept int // paces after the last sweep
}

// Open returns the pace of a connection, for which there is a limit of n requests per second; nil: there
// is none, and n is 0. Close is called when the connection ends.
func (p *Paces[A]) Open(now int64, account A, n int) *Pace {
	if n == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	shared := p.all[account]
	if shared == nil {
		if p.all == nil {
			p.all = make(map[A]*Pace)
		}
		p.sweep(now)
		shared = &Pace{interval: int64(time.Second) / int64(2*n)}
		p.all[account] = shared
	}
	shared.conns++
	return shared
}

// Close is the reverse of Open.
func (p *Paces[A]) Close(shared *Pace) {
	if shared == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	shared.conns--
}

// sweep forgets the paces that nothing depends on, if there are twice as many as after the last
// sweep. The caller holds mu.
func (p *Paces[A]) sweep(now int64) {
	if len(p.all) < 2*p.swept+64 {
		return
	}
	for account, shared := range p.all {
		if shared.isIdle(now) {
			delete(p.all, account)
		}
	}
	p.swept = len(p.all)
}
