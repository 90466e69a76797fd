package sidecar_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// metrics asks for the page after so many metrics.
func (c *wire) metrics(after uint64) uint64 {
	c.Helper()
	c.id++
	c.send(protocol.Metrics{ID: c.id, After: after})
	return c.id
}

func TestMetricsComeInPagesOfWholeMetrics(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.refused(c.metrics(0), protocol.Unsupported, "has no metrics")

	half := strings.Repeat("x", protocol.MetricsRoom/2)
	h.gather = func() ([]string, error) {
		return []string{"a", "b", half, "c", strings.Repeat("y", protocol.MetricsRoom)}, nil
	}
	h.restart()
	c = greeted(t, h.cfg.Socket)
	after := uint64(0)
	for _, want := range []string{"ab", half, "c", strings.Repeat("y", protocol.MetricsRoom), ""} {
		var m protocol.MetricsOK
		c.answer(c.metrics(after), &m)
		if m.Text != want {
			t.Fatalf("after %d came %d bytes, want %d", after, len(m.Text), len(want))
		}
		if after = m.Next; after == 0 {
			after = 1000 // there is nothing
		}
	}

	h.gather = func() ([]string, error) { return []string{strings.Repeat("y", protocol.MetricsRoom+1)}, nil }
	h.restart()
	c = greeted(t, h.cfg.Socket)
	c.refused(c.metrics(0), protocol.Unavailable, "name fewer patterns")

	h.gather = func() ([]string, error) { return nil, errors.New("no way") }
	h.restart()
	c = greeted(t, h.cfg.Socket)
	c.refused(c.metrics(0), protocol.Unavailable, "no way")
}

// However many clients ask for metrics, and however long it takes to gather them, the loop serves
// the others.
func TestSlowMetricsKeepNothingFromTheLoop(t *testing.T) {
	h := newHouse(t, nil)
	ready := make(chan struct{})
	h.gather = func() ([]string, error) {
		<-ready
		return []string{"done"}, nil
	}
	h.restart()
	c := greeted(t, h.cfg.Socket)
	first := c.metrics(0)
	for range 3 {
		c.metrics(0)
	}
	c.refused(c.metrics(0), protocol.Limit, "try again")
	gone := greeted(t, h.cfg.Socket)
	gone.refused(gone.metrics(0), protocol.Limit, "try again")
	c.hold("a")
	close(ready)
	seen := make(map[uint64]bool)
	for range 4 {
		answer, ok := c.next().(*protocol.Answer)
		var m protocol.MetricsOK
		if !ok {
			t.Fatal("no answer")
		}
		if err := answer.Unpack(&m); err != nil || m.Text != "done" {
			t.Fatalf("%+v, %v", m, err)
		}
		seen[m.ID] = true
	}
	if len(seen) != 4 || !seen[first] {
		t.Errorf("answers to %v", seen)
	}
	c.answer(c.metrics(0), &protocol.MetricsOK{})
}
