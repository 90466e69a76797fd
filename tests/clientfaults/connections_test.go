package clientfaults

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Ten thousand connections that ended in any state leave nothing behind: no descriptors,
// goroutines, memory, records in the state file, locks or sessions.
//
// Shows docs/guarantees.md: Connects and disconnects ten thousand times, sends garbage.
func TestTenThousandConnectionsLeaveNothing(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
	stay := harness.StartGoWorker(t, d)
	stay.Lock("stays")
	storm := func(n int) {
		const atOnce = 8
		var wg sync.WaitGroup
		for g := range atOnce {
			wg.Go(func() {
				for i := range n / atOnce {
					if err := comeAndGo(d.Socket, i%4, fmt.Sprintf("storm:%d:%d", g, i)); err != nil {
						t.Errorf("connection %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	settled := func() int {
		// Locks are free because their sessions have ended: that is the last step.
		harness.Eventually(t, "all locks but one are free", func() bool { return len(r.Keys(t.Context(), "storm:*").Val()) == 0 })
		return harness.OpenFiles(t, d.PID())
	}
	storm(1_000) // buffers, tables and the state file grow to their sizes
	fds, memory, file := settled(), harness.ResidentMemory(t, d.PID()), stateSize(t, d)
	storm(9_000)
	settled()
	harness.Eventually(t, fmt.Sprintf("the daemon is back to %d descriptors", fds), func() bool { return harness.OpenFiles(t, d.PID()) <= fds })
	grown := harness.ResidentMemory(t, d.PID()) - memory
	t.Logf("after 1,000 connections %d descriptors and %d KiB; 9,000 later %d and %d KiB more; the state file has %d KiB",
		fds, memory>>10, harness.OpenFiles(t, d.PID()), grown>>10, stateSize(t, d)>>10)
	if grown > 48<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	if now := stateSize(t, d); now != file {
		t.Errorf("the state file grew from %d to %d bytes", file, now)
	}
	// So that the daemon has read the answers to all Drops before this one.
	stay.Lock("last")
	stay.Must(harness.Command{Do: "unlock", As: "last", Confirm: true})
	if n := d.QuitAndCountGoroutines(); n > 40 {
		t.Errorf("%d goroutines are left", n)
	}
	// The daemon ends without a shutdown. Its successor finds one session and one lock.
	d.Start(harness.LongLease)
	d.AwaitSocket()
	d.Log.AwaitWords(t, "took over", "locks=1 clients=1 ended=0")
	stay.Must(harness.Command{Do: "check", As: "stays"})
}

// comeAndGo opens a connection and closes it in one of four states.
func comeAndGo(socket string, state int, lock string) error {
	nc, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer nc.Close()
	hello := protocol.Hello{ID: 1, V: protocol.Version, Resumable: true}.Append(nil)
	switch state {
	case 0: // nothing was sent
		return nil
	case 1:
		hello = hello[:len(hello)/2]
	case 3:
		hello = protocol.Acquire{ID: 2, Name: lock, WaitMS: protocol.Forever}.Append(hello)
	}
	if _, err := nc.Write(hello); err != nil {
		return err
	}
	if state != 3 {
		return nil
	}
	frames := protocol.NewReader(nc)
	for range 2 { // the answers to hello and acquire
		if _, err := frames.Next(); err != nil {
			return err
		}
	}
	return nil
}

func stateSize(t testing.TB, d *harness.Daemon) int64 {
	t.Helper()
	s, err := os.Stat(d.Socket + ".state")
	if err != nil {
		t.Fatal(err)
	}
	return s.Size()
}

// A connection on which half a hello arrives, a byte in a second, or nothing, is closed after
// five seconds, so that others can connect.
//
// Shows docs/guarantees.md: Connects and disconnects ten thousand times, sends garbage.
func TestSlowHelloKeepsNoPlace(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--max-sessions=1")
	const places = 1 + 256
	hello := protocol.Hello{ID: 1, V: protocol.Version, Client: strings.Repeat("slow", 32)}.Append(nil)
	slow := make([]*harness.RawClient, places)
	var trickling sync.WaitGroup
	stop := make(chan struct{})
	defer trickling.Wait()
	defer close(stop)
	for i := range slow {
		slow[i] = harness.ConnectRaw(t, d)
		if i%2 == 0 {
			continue
		}
		slow[i].Write(hello[:1])
		if i < 32 {
			trickling.Go(func() {
				for _, b := range hello[1:] {
					select {
					case <-time.After(time.Second):
					case <-stop:
						return
					}
					if _, err := slow[i].Conn.Write([]byte{b}); err != nil {
						return
					}
				}
			})
		}
	}
	harness.CheckContains(t, harness.ConnectRaw(t, d).ExpectErrorThenEOF(protocol.Limit), "connections", "max-sessions")
	harness.Eventually(t, "another client can connect", func() bool {
		c, err := locksidecar.Dial(t.Context(), d.Socket)
		if err != nil {
			harness.CheckError(t, err, locksidecar.ErrLimit, "max-sessions")
			return false
		}
		defer c.Close()
		if _, err := c.TryLock(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		return true
	})
	for _, w := range slow {
		harness.CheckContains(t, w.ExpectErrorThenEOF(protocol.NoHello), "hello")
	}
}
