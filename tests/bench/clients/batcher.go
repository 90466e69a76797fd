package main

import "sync"

// pending is an operation that was not carried out yet.
type pending struct {
	op    op
	wake  chan struct{}
	batch []*pending // the caller runs these, its own among them; nil: another caller has run its
	err   error
}

// batcher runs the operations that several callers have as one script, like the sidecar's
// pipeline does: while as many scripts as allowed are in flight, operations gather for the
// next one. One caller of each batch runs it for the others.
type batcher struct {
	run func(ops []*pending) // carries them out, and sets err of each

	mu       sync.Mutex
	waiting  []*pending
	inFlight int
	callers  [maxCallers]*pending // each caller's, to be used again
}

// maxInFlight and maxBatch are those of the sidecar's pipeline to a Redis nearby.
const (
	maxInFlight = 2
	maxBatch    = 128
)

func newBatcher(run func([]*pending)) *batcher {
	b := &batcher{run: run}
	for i := range b.callers {
		b.callers[i] = &pending{wake: make(chan struct{}, 1)}
	}
	return b
}

func (b *batcher) do(caller int, o op) error {
	p := b.callers[caller]
	p.op, p.batch, p.err = o, nil, nil
	b.mu.Lock()
	b.waiting = append(b.waiting, p)
	if b.inFlight < maxInFlight {
		b.inFlight++
		p.batch = b.take()
		b.mu.Unlock()
	} else {
		b.mu.Unlock()
		<-p.wake
		if p.batch == nil {
			return p.err
		}
	}

	b.run(p.batch)

	b.mu.Lock()
	var next *pending
	if len(b.waiting) > 0 {
		next = b.waiting[0]
		next.batch = b.take()
	} else {
		b.inFlight--
	}
	b.mu.Unlock()
	if next != nil {
		next.wake <- struct{}{}
	}
	for _, other := range p.batch {
		if other != p {
			other.wake <- struct{}{}
		}
	}
	return p.err
}

// take removes the next batch from those that wait. The caller holds mu.
func (b *batcher) take() []*pending {
	batch := make([]*pending, min(len(b.waiting), maxBatch))
	n := copy(batch, b.waiting)
	b.waiting = b.waiting[:copy(b.waiting, b.waiting[n:])]
	return batch
}
