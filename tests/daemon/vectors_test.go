package daemon

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A vector is one entry of protocol/testdata/vectors.json; SPEC.md §10 describes it.
type vector struct {
	Name, Kind, Hex, To string
	Pad                 int
	Message             harness.Message
	Error               struct {
		Code       string
		ID         uint64
		Unanswered bool
	}
}

func (v *vector) frame(t *testing.T) []byte {
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, v.Pad)...)
}

// op returns the op of the vector, or "" if the daemon cannot decode it.
func (v *vector) op(t *testing.T) string {
	if op, ok := v.Message["op"].(string); ok {
		return op
	}
	for _, op := range []string{"hello", "claim"} { // all other ops are sent in the same state of the connection
		key := append([]byte("\xa2op"), 0xa0|byte(len(op)))
		if bytes.Contains(v.frame(t), append(key, op...)) {
			return op
		}
	}
	return ""
}

func requestVectors(t *testing.T) []vector {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "protocol/testdata/vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all, ours []vector
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // some are above 2^53
	if err := dec.Decode(&all); err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Kind == "request" || v.Kind == "bad" && v.To == "sidecar" {
			ours = append(ours, v)
		}
	}
	return ours
}

// Each vector of frames to the sidecar is sent in the state of the connection that its op
// requires: hello first, claim after a resumption, everything else after hello.
func TestDaemonAnswersEveryVectorAsSpecified(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	vectors := requestVectors(t)

	// Each claim has a session of its own. The session holds a lock, so that the successor
	// waits for it, with a number above those in the vectors, apart from the largest.
	for w := harness.DialRaw(t, d); ; {
		hold := w.Call(harness.Message{"op": "acquire", "name": "numbers"})["hold"]
		w.Send(harness.Message{"op": "release", "hold": hold})
		if n, _ := strconv.Atoi(fmt.Sprint(hold)); n > 4096 {
			break
		}
	}
	tickets := make(map[string]string)
	for i, v := range vectors {
		if v.op(t) != "claim" {
			continue
		}
		w := harness.ConnectRaw(t, d)
		hello := w.Call(harness.Message{"op": "hello", "v": protocol.Version, "resumable": true})
		if a := w.Call(harness.Message{"op": "acquire", "name": fmt.Sprint("claim ", i)}); a["err"] != nil {
			t.Fatalf("acquire: %v", a)
		}
		tickets[v.Name], _ = hello["ticket"].(string)
	}
	if len(tickets) < 40 {
		t.Fatalf("%d vectors are claims", len(tickets))
	}
	d.Kill()
	d.Start()
	d.AwaitSocket()
	d.AwaitRedis("ok") // which has the names of hosts

	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			w := harness.ConnectRaw(t, d)
			switch v.op(t) {
			case "hello":
			case "claim":
				hello := w.Call(harness.Message{"op": "hello", "v": protocol.Version, "resumable": true, "resume": tickets[v.Name]})
				if hello["resumed"] != true {
					t.Fatalf("the session was not resumed: %v", hello)
				}
			default:
				w = harness.DialRaw(t, d)
			}
			w.Write(v.frame(t))
			if v.Kind == "bad" {
				expectFault(t, w, &v)
			} else {
				expectAnswer(t, w, &v)
			}
		})
	}
	t.Logf("%d vectors", len(vectors))
}

// Each vector is sent without a hello before it.
func TestDaemonRefusesFirstFramesOtherThanHello(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	for _, v := range requestVectors(t) {
		if v.op(t) == "hello" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			w := harness.ConnectRaw(t, d)
			w.Write(v.frame(t))
			want := protocol.NoHello
			if v.Kind == "bad" && v.Error.ID == 0 && !v.Error.Unanswered {
				want = protocol.BadFrame
			}
			w.ExpectErrorThenEOF(want)
		})
	}
}

// expectFault checks that a bad frame is answered as the vector says, and that the connection
// ends if, and only if, that is a connection error or the frame is a hello.
func expectFault(t *testing.T, w *harness.RawClient, v *vector) {
	t.Helper()
	want := v.Error
	if !want.Unanswered {
		m, err := w.Next()
		e, _ := m["err"].(harness.Message)
		id, hasID := m["id"]
		if err != nil || e == nil || e["code"] != want.Code || hasID != (want.ID != 0) || hasID && fmt.Sprint(id) != fmt.Sprint(want.ID) {
			t.Fatalf("answered with %v (%v), want %+v", m, err, want)
		}
		if msg, _ := e["msg"].(string); msg == "" {
			t.Error("the error has no msg")
		}
	}
	isRequestError := want.ID != 0 || want.Unanswered
	switch {
	case !isRequestError || v.op(t) == "hello":
		expectEOF(t, w)
	case v.op(t) == "claim": // it had no effect, and another one is required
		expectID(t, w.Call(harness.Message{"op": "claim", "holds": []int{}}))
	default:
		expectID(t, w.Call(harness.Message{"op": "ping"}))
	}
}

// expectAnswer checks the answer to a valid request.
func expectAnswer(t *testing.T, w *harness.RawClient, v *vector) {
	t.Helper()
	id, answered := v.Message["id"]
	var a harness.Message
	for answered {
		var err error
		if a, err = w.Next(); err != nil {
			t.Fatalf("no answer: %v", err)
		}
		if a["ev"] == nil { // else `lost`, for holds in a claim that the session does not have
			break
		}
	}
	if answered && fmt.Sprint(a["id"]) != fmt.Sprint(id) {
		t.Fatalf("answered with %v", a)
	}
	e, _ := a["err"].(harness.Message)
	code := ""
	if e != nil {
		code, _ = e["code"].(string)
	}
	op, _ := v.Message["op"].(string)
	want := map[string]string{"release": "not_held", "downgrade": "not_held", "force_release": "not_held", "force_release_orphaned": "not_held", "teleport": "unsupported"}[op]
	if op == "hello" && fmt.Sprint(v.Message["v"]) != "1" {
		want = "unsupported"
	}
	switch host, _ := v.Message["host"].(string); len(host) {
	case 0:
	case 36: // a uuid: no sidecar has it
		want = "unavailable"
	default:
		want = "bad_request"
	}
	if answered && code != want {
		t.Fatalf("answered with %v, want the code %q", a, want)
	}
	switch {
	case op == "bye", op == "hello" && want != "":
		expectEOF(t, w)
	case op == "hello":
	case op == "acquire", op == "acquire_rw", op == "acquire_permits": // the next vector may acquire the same name
		w.LastID = 1 << 20
		released := w.Call(harness.Message{"op": "release", "hold": a["hold"]})
		if v.Message["max_hold_ms"] != nil && released["ev"] == "lost" {
			break // the longest hold ended first
		}
		expectID(t, released)
	case op == "claim":
		w.LastID = 1 << 20
		if v.Message["more"] == true {
			expectID(t, w.Call(harness.Message{"op": "claim", "holds": []int{}}))
		}
		expectID(t, w.Call(harness.Message{"op": "ping"}))
	default:
		w.LastID = 1 << 20
		expectID(t, w.Call(harness.Message{"op": "ping"}))
	}
}

func expectID(t *testing.T, a harness.Message) {
	t.Helper()
	if a["err"] != nil || a["id"] == nil {
		t.Fatalf("answered with %v", a)
	}
}

func expectEOF(t *testing.T, w *harness.RawClient) {
	t.Helper()
	if m, err := w.Next(); err != io.EOF {
		t.Fatalf("got %v (%v), not EOF", m, err)
	}
}
