package messages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A client that violates the protocol thousands of times does not fill the disk: of each
// kind of error, the log has the first few in a period, and the number of the others.
//
// Shows docs/guarantees.md: Connects and disconnects ten thousand times, sends garbage.
func TestGarbageDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	const each = 1_000
	for range each {
		withoutHello := harness.ConnectRaw(t, d)
		withoutHello.Send(harness.Message{"op": "ping", "id": 1})
		withoutHello.ExpectErrorThenEOF(protocol.NoHello)
		withoutHello.Conn.Close()
		broken := harness.DialRaw(t, d)
		broken.Write([]byte{0, 0, 0, 1, 0xc1})
		broken.ExpectErrorThenEOF(protocol.BadFrame)
		broken.Conn.Close()
	}
	d.Terminate() // the daemon logs the remaining numbers
	log := d.Log.String()
	for _, code := range []protocol.Code{protocol.NoHello, protocol.BadFrame} {
		written, counted := 0, 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, "code="+string(code)) {
				written++
			}
			if m := regexp.MustCompile(`about=` + string(code) + ` .*lines=(\d+)`).FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				counted += n
			}
		}
		t.Logf("%s: %d lines for %d connections, and %d counted", code, written, each, counted)
		if written == 0 || written > each/10 || written+counted != each {
			t.Errorf("%s: %d lines for %d connections, and %d counted", code, written, each, counted)
		}
	}
}

// The same is true of locks that end: one client can have thousands of them in a second.
//
// Shows docs/guarantees.md: Loses thousands of locks in a second.
func TestLocksThatEndDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	const locks = 1_000
	w := harness.DialRaw(t, d)
	for i := range locks {
		w.Send(harness.Message{"op": "acquire", "id": i + 10, "name": fmt.Sprint("short:", i), "max_hold_ms": 1})
	}
	for ended := 0; ended < locks; {
		m, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m["ev"] == "lost" {
			ended++
		}
	}
	d.Terminate()
	written, counted := 0, 0
	for line := range strings.Lines(d.Log.String()) {
		if strings.Contains(line, "lock ended") && strings.Contains(line, "reason=max_hold") {
			written++
		}
		if m := regexp.MustCompile(`about=max_hold .*lines=(\d+)`).FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[1])
			counted += n
		}
	}
	if written == 0 || written > locks/10 || written+counted != locks {
		t.Errorf("%d lines for %d locks, and %d counted", written, locks, counted)
	}
}

// A daemon whose state file was replaced says what that means for its successor, and writes it again when it can.
func TestStateThatWasReplacedIsReported(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	other := filepath.Join(filepath.Dir(d.Socket), "other")
	if err := os.WriteFile(other, []byte("of another program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, d.Socket+".state"); err != nil {
		t.Fatal(err)
	}
	gone := `locksidecar_trouble{kind="state_gone"} `
	harness.Eventually(t, "the daemon reports that its state is gone", func() bool {
		return strings.Contains(d.Run("metrics").Stdout, gone+"1\n")
	})
	d.Log.AwaitWords(t, "a successor will not find the state", "is another file now; remove it")
	if ping := d.Run("ping"); ping.Code != 74 {
		t.Errorf("ping ends with %d", ping.Code)
	}
	if err := os.Remove(d.Socket + ".state"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "it is written again", func() bool { return strings.Contains(d.Run("metrics").Stdout, gone+"0\n") })
	if ping := d.Run("ping"); ping.Code != 0 {
		t.Errorf("ping ends with %d afterwards", ping.Code)
	}
}
