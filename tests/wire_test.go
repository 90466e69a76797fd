package tests

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/locksidecar/locksidecar/protocol"
)

// A wire is a client that has only the protocol, for what no SDK would send. It
// reads answers without the project's decoder.
type wire struct {
	t      testing.TB
	conn   net.Conn
	lastID int
}

type message = map[string]any

// dialWire connects and says hello.
func dialWire(t testing.TB, d *daemon) *wire {
	t.Helper()
	w := connectWire(t, d)
	if a := w.ask(message{"op": "hello", "v": protocol.Version, "client": "wire"}); a["err"] != nil {
		t.Fatalf("hello: %v", a)
	}
	return w
}

// connectWire connects and says nothing.
func connectWire(t testing.TB, d *daemon) *wire {
	t.Helper()
	conn, err := net.Dial("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &wire{t: t, conn: conn}
}

// ask sends a request with an id and returns its answer.
func (w *wire) ask(m message) message {
	w.t.Helper()
	w.lastID++
	m["id"] = w.lastID
	w.send(m)
	a, err := w.next()
	if err != nil {
		w.t.Fatalf("no answer to %v: %v", m, err)
	}
	if id, ok := a["id"]; ok && fmt.Sprint(id) != fmt.Sprint(w.lastID) {
		w.t.Fatalf("answer to another request: %v", a)
	}
	return a
}

// refused is ask for a request that must fail; it returns the error's message.
func (w *wire) refused(code protocol.Code, m message) string {
	w.t.Helper()
	a := w.ask(m)
	e, _ := a["err"].(message)
	if e == nil || e["code"] != string(code) {
		w.t.Fatalf("%v was answered %v, not with %s", m, a, code)
	}
	msg, _ := e["msg"].(string)
	if msg == "" {
		w.t.Errorf("%v: the error %s says nothing to people", m, code)
	}
	return msg
}

// send sends one frame.
func (w *wire) send(m message) {
	w.t.Helper()
	body, err := msgpack.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
}

func (w *wire) write(b []byte) {
	w.t.Helper()
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the next frame that is no lease event, or io.EOF.
func (w *wire) next() (message, error) {
	w.t.Helper()
	for {
		w.conn.SetReadDeadline(time.Now().Add(patience))
		var head [4]byte
		if _, err := io.ReadFull(w.conn, head[:]); err != nil {
			return nil, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(w.conn, body); err != nil {
			return nil, err
		}
		var m message
		if err := msgpack.Unmarshal(body, &m); err != nil {
			w.t.Fatalf("an answer that is no map: %v", err)
		}
		if m["ev"] != "lease" {
			return m, nil
		}
	}
}

// lastWordsThenEOF expects a connection error with this code, and then the end.
func (w *wire) lastWordsThenEOF(code protocol.Code) string {
	w.t.Helper()
	m, err := w.next()
	if err != nil {
		w.t.Fatalf("no frame before the end: %v", err)
	}
	e, _ := m["err"].(message)
	if e == nil || e["code"] != string(code) {
		w.t.Fatalf("got %v, not the error %s", m, code)
	}
	if m, err := w.next(); err != io.EOF {
		w.t.Fatalf("after the error came %v (%v), not the end", m, err)
	}
	msg, _ := e["msg"].(string)
	return msg
}
