package sidecar

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// A pace is the backpressure of a policy's requests_per_second. Connections that share that limit
// are read at twice its rate, releases and other requests that a policy never refuses included.
// Below that rate, a client that sends too much is refused. A client that goes on sending would
// cost the sidecar and the host as much time as if it were not limited, so its connections are read
// more slowly: a few requests at a time, each time after a pause of up to a second. A pace is safe
// for concurrent use. (This is a leaky bucket, as in the generic cell rate algorithm.)
type pace struct {
	interval int64 // between two requests, ns
	conns    int   // guarded by paces.mu

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

// countOpen notes a new connection.
func (p *pace) countOpen(now int64) { p.pause(now, connectRequests) }

// pause notes that n requests were read at the time now, and returns for how long their connection
// is not to be read, and they are not to be handed on.
func (p *pace) pause(now int64, n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = min(max(p.due, now)+int64(n)*p.interval, now+int64(paceBurst+longestPause))
	return max(time.Duration(p.due-now)-paceBurst, 0)
}

func (p *pace) isIdle(now int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns == 0 && p.due <= now
}

// paces are those of a policy. They are safe for concurrent use. A pace outlasts its
// connections, so that a client that reconnects all the time is not read faster.
type paces struct {
	mu    sync.Mutex // guards what follows
	all   map[policy.Account]*pace
	swept int // paces after the last sweep
}

// open returns the pace of a connection of a user's process, about which a policy has these rules;
// nil: it has none. close is called when the connection ends.
func (p *paces) open(now int64, rules *policy.Rules, uid int64) *pace {
	n, account := rules.Requests(uid)
	if n == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	shared := p.all[account]
	if shared == nil {
		if p.all == nil {
			p.all = make(map[policy.Account]*pace)
		}
		p.sweep(now)
		shared = &pace{interval: int64(time.Second) / int64(2*n)}
		p.all[account] = shared
	}
	shared.conns++
	return shared
}

// close is the reverse of open.
func (p *paces) close(shared *pace) {
	if shared == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	shared.conns--
}

// sweep forgets the paces that nothing depends on, if there are twice as many as after the last
// sweep. The caller holds mu.
func (p *paces) sweep(now int64) {
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
