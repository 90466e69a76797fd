package guarantees

import (
	"context"
	"fmt"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Requests of two hosts for a fair lock are granted in the order in which they arrive at Redis,
// whether each of them asks for that or the setting fair names the lock.
//
// Shows docs/guarantees.md: First come, first served over all hosts, if every request asks for it.
// Shows docs/queue.md: Strict order.
func TestFairLockIsGrantedInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		says    string
		setting string
		option  []locksidecar.Option
	}{
		{says: "each acquire is fair", setting: "other:*", option: []locksidecar.Option{locksidecar.Fair()}},
		{says: "the setting names the lock", setting: "booth:*"},
	} {
		t.Run(tt.says, func(t *testing.T) {
			t.Parallel()
			const name = "booth:1"
			r := harness.StartRedis(t)
			hosts := []*harness.Daemon{
				harness.StartDaemon(t, r.UnixURL(), "--fair="+tt.setting),
				harness.StartDaemon(t, r.UnixURL(), "--fair="+tt.setting),
			}
			clients := []*locksidecar.Client{harness.Dial(t, hosts[0]), harness.Dial(t, hosts[1])}
			held, err := clients[0].Lock(t.Context(), name, tt.option...)
			if err != nil {
				t.Fatal(err)
			}
			// A request has arrived when its host has asked Redis about it: what the host asks next is answered later.
			var waiting [2]int
			arrives := func(host, i int) {
				waiting[host]++
				harness.Eventually(t, fmt.Sprintf("request %d arrives", i), func() bool {
					status, err := clients[host].Status(t.Context())
					return err == nil && status.Waiting == waiting[host]
				})
				if _, err := clients[host].TryLock(t.Context(), fmt.Sprintf("after:%d", i)); err != nil {
					t.Fatal(err)
				}
			}
			granted := make(chan int)
			next := make(chan error)
			order := []int{0, 1, 0, 0, 1, 1, 1, 0, 1, 0}
			for i, host := range order {
				go func() {
					l, err := clients[host].Lock(context.WithoutCancel(t.Context()), name, tt.option...)
					if err != nil {
						next <- err
						return
					}
					granted <- i
					next <- l.Unlock()
				}()
				arrives(host, i)
			}

			if err := held.Unlock(); err != nil {
				t.Fatal(err)
			}

			for want := range order {
				select {
				case got := <-granted:
					if got != want {
						t.Fatalf("request %d is granted, want %d", got, want)
					}
					if err := <-next; err != nil {
						t.Fatal(err)
					}
				case err := <-next:
					t.Fatal(err)
				}
			}
		})
	}
}
