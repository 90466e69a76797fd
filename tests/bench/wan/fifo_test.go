package wan

import (
	"slices"
	"testing"
)

func TestFifoKeepsTheOrderHoweverItIsUsed(t *testing.T) {
	var q fifo[int]
	var model []int
	for i := range 5000 {
		for j := range i % 7 {
			q.push(i, j)
			model = append(model, i, j)
		}
		n := min(i*31%19, q.len())
		if got := q.next(n); !slices.Equal(got, model[:n]) {
			t.Fatalf("the next %d are %v, want %v", n, got, model[:n])
		}
		q.drop(n)
		model = model[n:]
		if first, ok := q.first(); ok != (len(model) > 0) || ok && first != model[0] || q.len() != len(model) {
			t.Fatalf("%d items from %v (%v), want %d", q.len(), first, ok, len(model))
		}
	}
}
