package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A pipeClient is a program that speaks to a daemon through locksidecar pipe.
type pipeClient struct {
	*harness.RunProcess

	t    testing.TB
	read int // lines of the output that next has returned
}

func startPipe(t *testing.T, d *harness.Daemon) *pipeClient {
	t.Helper()
	return &pipeClient{RunProcess: harness.StartProcess(t, d, harness.Program(t), "pipe"), t: t}
}

// next returns the next line that is no lease event.
func (p *pipeClient) next() harness.Message {
	p.t.Helper()
	for {
		var lines []string
		harness.Eventually(p.t, "the pipe prints a line", func() bool {
			lines = strings.SplitAfter(p.Output.String(), "\n")
			return len(lines) > p.read+1
		})
		var m harness.Message
		d := json.NewDecoder(bytes.NewReader([]byte(lines[p.read])))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			p.t.Fatalf("%q: %v", lines[p.read], err)
		}
		p.read++
		if m["ev"] != "lease" {
			return m
		}
	}
}

// call sends a line and returns the next one.
func (p *pipeClient) call(format string, args ...any) harness.Message {
	p.t.Helper()
	p.Write(fmt.Sprintf(format, args...) + "\n")
	return p.next()
}

// A program without an SDK: it acquires, waits, loses, and reads what an operator sees.
func TestPipeServesAProgram(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	p, other := startPipe(t, d), startPipe(t, d)
	for _, c := range []*pipeClient{p, other} {
		if a := c.call(`{"op":"hello","id":1,"v":1,"client":"test/1"}`); a["now_ns"] == nil {
			t.Fatalf("hello: %v", a)
		}
	}
	held := p.call(`{"op":"acquire","id":2,"name":"job"}`)
	if row := p.call(`{"op":"info","id":3,"name":"job"}`)["lock"].(harness.Message); row["token"] != held["token"] || row["hold"] != held["hold"] {
		t.Errorf("granted %v, and info shows %v", held, row)
	}
	if a := other.call(`{"op":"acquire","id":2,"name":"job","wait_ms":0}`); a["err"].(harness.Message)["code"] != "timeout" {
		t.Errorf("a try was answered %v", a)
	}
	other.Write(`{"op":"acquire","id":3,"name":"job"}` + "\n")
	harness.Eventually(t, "the other program waits", func() bool { return harness.Waiters(t, d, "job") == 1 })
	if a := p.call(`{"op":"release","id":4,"hold":%v}`, held["hold"]); fmt.Sprint(a["count"]) != "0" {
		t.Errorf("release: %v", a)
	}
	granted := other.next()
	if before, _ := held["token"].(json.Number).Int64(); fmt.Sprint(granted["id"]) != "3" || len(fmt.Sprint(granted["token"])) == 0 {
		t.Errorf("the waiter got %v", granted)
	} else if after, _ := granted["token"].(json.Number).Int64(); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
	if got := d.Run("force-release", "job"); got.Code != 0 {
		t.Fatal(got.Stderr)
	}
	if e := other.next(); e["ev"] != "lost" || e["hold"] != granted["hold"] || e["reason"] != "forced" {
		t.Errorf("the event is %v", e)
	}
}

// The session of a resumable program survives the daemon: the pipe connects again at its hello.
func TestPipeResumesASession(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	p := startPipe(t, d)
	hello := p.call(`{"op":"hello","id":1,"v":1,"resumable":true}`)
	held := p.call(`{"op":"acquire","id":2,"name":"job"}`)
	d.Kill()
	if m := p.next(); m["pipe"] != "disconnected" {
		t.Fatalf("after the end of the daemon: %v", m)
	}
	d.Start(harness.LongLease)
	d.AwaitSocket()
	again := p.call(`{"op":"hello","id":3,"v":1,"resumable":true,"resume":%q}`, hello["ticket"])
	if again["resumed"] != true {
		t.Fatalf("hello: %v", again)
	}
	if a := p.call(`{"op":"claim","id":4,"holds":[%v,1]}`, held["hold"]); fmt.Sprint(a["id"]) != "4" {
		t.Fatalf("claim: %v", a)
	}
	if row := harness.Info(t, d, "job"); fmt.Sprint(row.Token) != fmt.Sprint(held["token"]) {
		t.Errorf("the token is %d, and was %v", row.Token, held["token"])
	}
	if a := p.call(`{"op":"release","id":5,"hold":%v}`, held["hold"]); fmt.Sprint(a["count"]) != "0" {
		t.Errorf("release: %v", a)
	}
}

// The end of its input releases the locks of a pipe, after what it was sent before.
func TestEndOfInputReleasesTheLocksOfAPipe(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	p := startPipe(t, d)
	p.Write(`{"op":"hello","id":1,"v":1}` + "\n" + `{"op":"acquire","id":2,"name":"job"}` + "\n")
	p.next()
	if a := p.next(); a["token"] == nil {
		t.Fatalf("acquire: %v", a)
	}
	p.CloseStdin()
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.Output.String())
	}
	// It was bye that ended the session: the lock is free, and not only its process gone.
	if l, err := harness.Dial(t, d).TryLock(t.Context(), "job"); err != nil {
		t.Error(err)
	} else if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}
