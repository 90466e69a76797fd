package sidecar

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Both ops reach the lock table with their mode, and what it grants reaches the client.
func TestReadWriteLocksReachTheTable(t *testing.T) {
	l, end := unserved(t)
	defer end()
	now := protocol.Now()
	l.table.Up(now, 0, false, true)
	c, client := connPair(t)
	defer c.end()
	l.onHello(now, c, &protocol.Hello{ID: 1, V: protocol.Version})
	ask := func(req protocol.Request) {
		in := handOver(c, req)
		l.onRequest(now, &in)
	}
	acquire := func(id, owner uint64, shared bool) {
		ask(&protocol.AcquireReadWrite{Acquire: protocol.Acquire{ID: id, Name: "catalog", Owner: owner, WaitMS: protocol.Forever}, Shared: shared})
	}
	acquire(2, 1, false)
	l.table.Effects()
	l.table.Result(now, redisop.Result{Kind: redisop.Take, Name: "catalog", Sent: now, Token: 1, Permits: uint32(redisop.ExclusiveMode)})
	l.applyEffects()
	acquire(3, 1, true) // the hold that it enters again stays exclusive
	acquire(4, 2, true)
	l.applyEffects()
	row, _ := l.table.Info(now, "catalog")
	if row.Kind != protocol.KindReadWrite || row.Held != 1 || row.Shared != 0 || len(row.Waiters) != 1 || !row.Waiters[0].Shared {
		t.Errorf("%+v", row)
	}
	ask(&protocol.Downgrade{ID: 5, Hold: row.Hold})
	ask(&protocol.Downgrade{ID: 6, Hold: row.Hold})
	ask(&protocol.Downgrade{ID: 7, Hold: row.Hold + 100})
	acquire(8, 1, true)
	ask(&protocol.Acquire{ID: 9, Name: "catalog"})
	l.applyEffects()
	if row, _ = l.table.Info(now, "catalog"); row.Shared == 0 {
		t.Errorf("%+v", row)
	}

	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	frames := protocol.NewReader(client)
	got := make(map[uint64]string)
	for got[9] == "" { // the last one
		body, err := frames.Next()
		if err != nil {
			t.Fatal(err)
		}
		var dec protocol.ReplyDecoder
		switch m, err := dec.Decode(body); m := m.(type) {
		case *protocol.Err:
			got[m.ID] = string(m.Code)
		case *protocol.Answer:
			got[m.ID] = answered(t, m)
		default:
			t.Fatalf("%+v, %v", m, err)
		}
	}
	want := map[uint64]string{
		2: "count 1, shared false", 3: "count 2, shared false", 5: "downgraded", 6: "bad_request", 7: "not_held", 8: "count 3, shared true", 9: "denied",
	}
	for id, w := range want {
		if got[id] != w {
			t.Errorf("%d was answered with %q, want %q", id, got[id], w)
		}
	}
}

// answered describes an answer to an acquire or a downgrade.
func answered(t *testing.T, m *protocol.Answer) string {
	t.Helper()
	if m.ID == 1 {
		return "hello"
	}
	if slices.Contains([]uint64{5, 6, 7}, m.ID) {
		var ok protocol.DowngradeOK
		if err := m.Unpack(&ok); err != nil || ok.DeadlineNS == 0 {
			t.Errorf("%+v, %v", ok, err)
		}
		return "downgraded"
	}
	var ok protocol.AcquireOK
	if err := m.Unpack(&ok); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("count %d, shared %v", ok.Count, ok.Shared)
}
