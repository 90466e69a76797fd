package wheel_test

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/wheel"
)

// A timer is a field of a struct, and its Value points to that struct. Here the clock is a
// number. A daemon reads a monotonic clock, and sleeps until Next or until it has another input.
func Example() {
	type lease struct {
		name  string
		renew wheel.Timer[*lease]
	}
	const second = int64(time.Second)

	now := int64(0)
	w := wheel.New[*lease](10*time.Millisecond, 1024, now)
	w.MaxPending = 100_000

	leases := []*lease{{name: "orders"}, {name: "invoices"}, {name: "stock"}}
	for i, l := range leases {
		l.renew.Value = l
		if err := w.Add(&l.renew, now+int64(i+1)*second); err != nil {
			fmt.Println(err)
			return
		}
	}
	w.Remove(&leases[1].renew) // released: the wheel keeps no reference to it

	for {
		next, ok := w.Next()
		if !ok {
			fmt.Println("nothing to wait for")
			return
		}
		now = next // stands for sleeping until then
		w.Advance(now, func(t *wheel.Timer[*lease]) {
			fmt.Printf("after %d s: renew %s\n", now/second, t.Value.name)
		})
	}
	// Output:
	// after 1 s: renew orders
	// after 3 s: renew stock
	// nothing to wait for
}
