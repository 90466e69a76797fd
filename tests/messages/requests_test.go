package messages

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestUnknownProtocolVersionIsRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	w := harness.ConnectRaw(t, d)
	harness.CheckContains(t, w.ExpectRefusal(protocol.Unsupported, harness.Message{"op": "hello", "v": 99, "client": "future/99"}), "version 1")
	if m, err := w.Next(); err != io.EOF {
		t.Errorf("after the refusal came %v (%v), not EOF", m, err)
	}
}

func TestInvalidNamesAreRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c, w := harness.Dial(t, d), harness.DialRaw(t, d)
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", 513), "a control character": "a\nb", "a C1 control character": "a\u0085b",
	} {
		if _, err := c.TryLock(t.Context(), name); err == nil || errors.Is(err, locksidecar.ErrUnavailable) || errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("%s: the SDK returns %v", what, err)
		} else {
			harness.CheckContains(t, err.Error(), "name")
		}
		harness.CheckContains(t, w.ExpectRefusal(protocol.BadRequest, harness.Message{"op": "acquire", "name": name}), "name")
	}
	if _, err := c.TryLock(t.Context(), "\xff"); err == nil {
		t.Error("the SDK accepted a name that is not UTF-8")
	} else {
		harness.CheckContains(t, err.Error(), "name", "UTF-8")
	}
	if _, err := c.TryLock(t.Context(), strings.Repeat("x", 512)); err != nil {
		t.Errorf("a name of 512 bytes: %v", err)
	}
	// A frame with text that is not UTF-8 is a connection error.
	bad := harness.ConnectRaw(t, d)
	bad.Send(harness.Message{"op": "hello", "id": 1, "v": 1})
	if _, err := bad.Next(); err != nil {
		t.Fatal(err)
	}
	bad.Send(harness.Message{"op": "acquire", "id": 2, "name": "\xff"})
	harness.CheckContains(t, bad.ExpectErrorThenEOF(protocol.BadFrame), "UTF-8")
}

func TestNumbersOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	w := harness.DialRaw(t, d)
	for _, m := range []harness.Message{
		{"wait_ms": -1}, {"wait_ms": 2_592_000_001}, {"lease_ms": 49}, {"lease_ms": -5},
		{"max_hold_ms": 0}, {"crash_delay_ms": 3_600_001}, {"owner": -1}, {"wait_ms": "1"},
	} {
		var field string
		for k := range m {
			field = k
		}
		m["op"], m["name"] = "acquire", "x"
		harness.CheckContains(t, w.ExpectRefusal(protocol.BadRequest, m), field)
	}
	if a := w.Call(harness.Message{"op": "acquire", "name": "x", "wait_ms": 0}); a["err"] != nil {
		t.Errorf("after the refusals, a valid request is answered %v", a)
	}
}

func TestSecondReleaseIsRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	l, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	next, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	harness.CheckError(t, l.Unlock(), locksidecar.ErrNotHeld)
	if err := next.Err(); err != nil {
		t.Errorf("the second release ended the hold of the next holder: %v", err)
	}

	w := harness.DialRaw(t, d)
	hold := w.Call(harness.Message{"op": "acquire", "name": "y"})["hold"]
	w.Call(harness.Message{"op": "release", "hold": hold})
	harness.CheckContains(t, w.ExpectRefusal(protocol.NotHeld, harness.Message{"op": "release", "hold": hold}), "hold")
}

func TestReleaseOfAnotherSessionsHoldIsRefused(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	mine, theirs := harness.DialRaw(t, d), harness.DialRaw(t, d)
	hold := theirs.Call(harness.Message{"op": "acquire", "name": "x"})["hold"]
	if hold == nil {
		t.Fatal("the lock was not granted")
	}
	mine.ExpectRefusal(protocol.NotHeld, harness.Message{"op": "release", "hold": hold})
	mine.ExpectRefusal(protocol.Timeout, harness.Message{"op": "acquire", "name": "x", "wait_ms": 0})
	if a := theirs.Call(harness.Message{"op": "release", "hold": hold}); a["err"] != nil {
		t.Errorf("the release of the owner is answered %v", a)
	}
}

// A request for a key that is not a lock is refused, and the key stays as it is.
func TestKeyThatIsNotALockIsRefused(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	r.Set(t.Context(), "a string", "value", 0)
	_, err := harness.Dial(t, d).TryLock(t.Context(), "a string")
	harness.CheckError(t, err, locksidecar.ErrDenied, "a string")
	if v := r.Get(t.Context(), "a string").Val(); v != "value" {
		t.Errorf("the key is %q now", v)
	}
}
