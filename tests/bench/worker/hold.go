package main

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// hold takes many locks and keeps them, renewed, to the end of the process.
type hold struct {
	*run
	connect func(*spec) (client, error)
	client  client
}

// atOnce is how many locks are asked for at one time.
const atOnce = 64

func (h *hold) prepare() (err error) {
	h.client, _, err = h.connected(h.connect, 1)
	return err
}

func (h *hold) start() {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(atOnce, h.Count) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(h.Count); i = next.Add(1) - 1 {
				if !h.take(h.Prefix + strconv.FormatInt(i, 10)) {
					return
				}
			}
		})
	}
	go func() {
		all.Wait()
		if !h.stopped.Load() {
			say(event{Event: "held", Count: h.Count})
		}
	}()
}

func (h *hold) take(name string) bool {
	var renew func() error
	ok := h.insist(func() (err error) {
		renew, err = h.client.hold(name)
		return err
	})
	if ok && renew != nil {
		go h.keep(renew)
	}
	return ok
}

func (h *hold) keep(renew func() error) {
	for range time.Tick(h.lease() / 3) {
		if err := renew(); err != nil {
			h.add(err)
		}
	}
}

func (*hold) finish() error { return nil }
