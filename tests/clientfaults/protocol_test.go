package clientfaults

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A client that does not begin with hello gets an error that says so, and is disconnected.
func TestClientWithoutHelloIsDisconnected(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	silent, early := harness.ConnectRaw(t, d), harness.ConnectRaw(t, d)
	early.Send(harness.Message{"op": "ping", "id": 1})
	harness.CheckContains(t, early.ExpectErrorThenEOF(protocol.NoHello), "hello")
	harness.CheckContains(t, silent.ExpectErrorThenEOF(protocol.NoHello), "hello")
}

// The daemon disconnects a client that announces a frame of 4 GiB, and allocates nothing for
// it.
//
// Shows docs/guarantees.md: Breaks the protocol.
func TestFrameOfFourGigabytesIsRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	good := harness.DialRaw(t, d)
	before := harness.ResidentMemory(t, d.PID())
	for range 20 {
		w := harness.DialRaw(t, d)
		w.Write(binary.BigEndian.AppendUint32(nil, 1<<32-1))
		harness.CheckContains(t, w.ExpectErrorThenEOF(protocol.BadFrame), "65536")
	}
	if grown := harness.ResidentMemory(t, d.PID()) - before; grown > 64<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	if a := good.Call(harness.Message{"op": "ping"}); a["redis"] != "ok" {
		t.Errorf("another client's ping is answered %v", a)
	}
}

// A client that violates the protocol while it holds a lock is disconnected. Its process is
// alive, so that the lock is not granted to another client before the deadline.
//
// Shows docs/guarantees.md: Nothing is freed early.
// Shows docs/guarantees.md: Breaks the protocol.
func TestMisbehavingClientKeepsItsLockToTheDeadline(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--lease=2s")
	w := harness.DialRaw(t, d)
	granted := w.Call(harness.Message{"op": "acquire", "name": "x"})
	if granted["err"] != nil {
		t.Fatal(granted)
	}
	w.Write([]byte{0, 0, 0, 1, 0xc1})
	w.ExpectErrorThenEOF(protocol.BadFrame)
	l, err := harness.Dial(t, d).Lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if deadline := toInt(t, granted["deadline_ns"]); protocol.Now() < deadline {
		t.Errorf("the lock was granted to another client %d ms before the deadline", (deadline-protocol.Now())/1e6)
	}
}

func toInt(t *testing.T, v any) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		t.Fatalf("%v is not a number", v)
	}
	return n
}
