package pipeline

import (
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Take and a Drop allocate nothing, if their owner gives back what it has handed on.
func TestPairAllocatesNothing(t *testing.T) {
	d := drive(t)
	var out []byte
	var deliveries []Delivery
	results := 0
	do := func(ops []redisop.Op, answer wire.Reply) {
		d.Do(d.now, ops)
		out = d.TakeBytes(out)
		if err := d.Reply(d.now, &answer); err != nil {
			t.Error(err)
		}
		_ = d.Rest(d.now)
		deliveries = d.TakeDeliveries(deliveries)
		for i := range deliveries {
			if results += len(deliveries[i].Results); d.WantsSpare() {
				d.Spare(deliveries[i].Results[:0])
			}
		}
		clear(deliveries)
	}
	take, drop := []redisop.Op{takeOp("a", 1)}, []redisop.Op{{Kind: redisop.Drop, Name: "a", HoldID: 1}}
	allocs := testing.AllocsPerRun(200, func() {
		do(take, wire.Reply{Kind: ':', Num: 1 << 51})
		do(drop, wire.Reply{Kind: ':'})
	})
	if allocs != 0 || results != 2*201 {
		t.Errorf("%v allocations for a pair, and %d results; want 0 and 402", allocs, results)
	}
}
