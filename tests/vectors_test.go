package tests

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// A vector is one entry of protocol/testdata/vectors.json; SPEC.md §10 describes it.
type vector struct {
	Name, Kind, Hex, To string
	Pad                 int
	Message             message
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

// op is the vector's op, if it has one that the daemon can read.
func (v *vector) op(t *testing.T) string {
	if op, ok := v.Message["op"].(string); ok {
		return op
	}
	for _, op := range []string{"hello", "claim"} { // others are sent in the same state
		key := append([]byte("\xa2op"), 0xa0|byte(len(op)))
		if bytes.Contains(v.frame(t), append(key, op...)) {
			return op
		}
	}
	return ""
}

func requestVectors(t *testing.T) []vector {
	text, err := os.ReadFile("../protocol/testdata/vectors.json")
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

// TestDaemonAnswersEveryVectorAsSpecified sends each vector of the sidecar's side to a
// daemon, in the state of the connection in which its op is due: a hello first, a claim
// after a resumption, and everything else after hello.
func TestDaemonAnswersEveryVectorAsSpecified(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	vectors := requestVectors(t)

	// One session for each claim: it holds a lock, so that the successor waits for it. The
	// number of its hold is above those in the vectors, but for the largest.
	for w := dialWire(t, d); ; {
		hold := w.ask(message{"op": "acquire", "name": "numbers"})["hold"]
		w.send(message{"op": "release", "hold": hold})
		if n, _ := strconv.Atoi(fmt.Sprint(hold)); n > 4096 {
			break
		}
	}
	tickets := make(map[string]string)
	for i, v := range vectors {
		if v.op(t) != "claim" {
			continue
		}
		w := connectWire(t, d)
		hello := w.ask(message{"op": "hello", "v": protocol.Version, "resumable": true})
		if a := w.ask(message{"op": "acquire", "name": fmt.Sprint("claim ", i)}); a["err"] != nil {
			t.Fatalf("acquire: %v", a)
		}
		tickets[v.Name], _ = hello["ticket"].(string)
	}
	if len(tickets) < 40 {
		t.Fatalf("%d vectors are claims", len(tickets))
	}
	d.kill9()
	d.start()
	d.awaitAnswer()

	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			w := connectWire(t, d)
			switch v.op(t) {
			case "hello":
			case "claim":
				hello := w.ask(message{"op": "hello", "v": protocol.Version, "resumable": true, "resume": tickets[v.Name]})
				if hello["resumed"] != true {
					t.Fatalf("the session was not resumed: %v", hello)
				}
			default:
				w = dialWire(t, d)
			}
			w.write(v.frame(t))
			if v.Kind == "bad" {
				w.expectFault(&v)
			} else {
				w.expectAnswer(&v)
			}
		})
	}
	t.Logf("%d vectors", len(vectors))
}

// TestDaemonTakesNoFirstFrameButHello sends each vector without a hello before it.
func TestDaemonTakesNoFirstFrameButHello(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	for _, v := range requestVectors(t) {
		if v.op(t) == "hello" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			w := connectWire(t, d)
			w.write(v.frame(t))
			want := protocol.NoHello
			if v.Kind == "bad" && v.Error.ID == 0 && !v.Error.Unanswered {
				want = protocol.BadFrame
			}
			w.lastWordsThenEOF(want)
		})
	}
}

// expectFault expects what the vector says of a bad frame, and the connection to end if,
// and only if, that is a connection error or the frame is a hello.
func (w *wire) expectFault(v *vector) {
	t := w.t.(*testing.T)
	t.Helper()
	want := v.Error
	if !want.Unanswered {
		m, err := w.next()
		e, _ := m["err"].(message)
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
		w.expectEOF()
	case v.op(t) == "claim": // it claimed nothing, and is still due
		w.expectID(w.ask(message{"op": "claim", "holds": []int{}}))
	default:
		w.expectID(w.ask(message{"op": "ping"}))
	}
}

// expectAnswer expects the answer to a good request.
func (w *wire) expectAnswer(v *vector) {
	t := w.t.(*testing.T)
	t.Helper()
	id, answered := v.Message["id"]
	var a message
	for answered {
		var err error
		if a, err = w.next(); err != nil {
			t.Fatalf("no answer: %v", err)
		}
		if a["ev"] == nil { // `lost`, for what a claim names and the session does not have
			break
		}
	}
	if answered && fmt.Sprint(a["id"]) != fmt.Sprint(id) {
		t.Fatalf("answered with %v", a)
	}
	e, _ := a["err"].(message)
	code := ""
	if e != nil {
		code, _ = e["code"].(string)
	}
	op, _ := v.Message["op"].(string)
	want := map[string]string{"release": "not_held", "force_release": "not_held", "teleport": "unsupported"}[op]
	if op == "hello" && fmt.Sprint(v.Message["v"]) != "1" {
		want = "unsupported"
	}
	if answered && code != want {
		t.Fatalf("answered with %v, want the code %q", a, want)
	}
	switch {
	case op == "bye", op == "hello" && want != "":
		w.expectEOF()
	case op == "hello":
	case op == "acquire": // the next vector may want the same name
		w.lastID = 1 << 20
		w.expectID(w.ask(message{"op": "release", "hold": a["hold"]}))
	case op == "claim":
		w.lastID = 1 << 20
		if v.Message["more"] == true {
			w.expectID(w.ask(message{"op": "claim", "holds": []int{}}))
		}
		w.expectID(w.ask(message{"op": "ping"}))
	default:
		w.lastID = 1 << 20
		w.expectID(w.ask(message{"op": "ping"}))
	}
}

func (w *wire) expectID(a message) {
	w.t.Helper()
	if a["err"] != nil || a["id"] == nil {
		w.t.Fatalf("answered with %v", a)
	}
}

func (w *wire) expectEOF() {
	w.t.Helper()
	if m, err := w.next(); err != io.EOF {
		w.t.Fatalf("got %v (%v), not the end of the connection", m, err)
	}
}
