package main

import "time"

// pairs has a goroutine for each name that takes the lock, works, and gives it
// back, until the stop. Whoever is in the middle of that then, or waits, is left
// there.
type pairs struct {
	*run
	connect func(*spec) (client, error)
	workers []worker
	tapes   []*tape
}

func (p *pairs) prepare() (err error) {
	_, p.workers, err = p.connected(p.connect, len(p.Names))
	p.tapes = newTapes(len(p.Names))
	return err
}

func (p *pairs) start() {
	for i, w := range p.workers {
		go p.loop(w, p.Names[i], p.tapes[i])
	}
}

func (p *pairs) loop(w worker, name string, t *tape) {
	work := time.Duration(p.WorkUS) * time.Microsecond
	for !p.stopped.Load() {
		rec := t.next()
		rec[asked].Store(p.now())
		// An acquire that failed is not the end of the wait: the caller still has
		// no lock.
		if !p.insist(func() error { return w.lock(name) }) {
			return
		}
		rec[granted].Store(p.now())
		if work > 0 {
			time.Sleep(work)
		}
		rec[leaving].Store(p.now())
		err := w.unlock()
		rec[done].Store(p.now())
		if err != nil {
			p.add(err)
			time.Sleep(time.Millisecond)
		}
	}
}

func (p *pairs) finish() error { return writeTapes(p.Records, p.tapes) }
