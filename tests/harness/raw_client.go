package harness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/locksidecar/locksidecar/protocol"
)

// A RawClient sends and receives frames, without an SDK: a test can send with it what no SDK
// sends. It decodes answers without the decoder of package protocol.
type RawClient struct {
	Conn   net.Conn
	LastID int // of the requests that Call has sent

	t testing.TB
}

// Message is the body of a frame.
type Message = map[string]any

// DialRaw connects to a daemon and sends hello.
func DialRaw(t testing.TB, d *Daemon) *RawClient {
	t.Helper()
	w := ConnectRaw(t, d)
	if a := w.Call(Message{"op": "hello", "v": protocol.Version, "client": "wire"}); a["err"] != nil {
		t.Fatalf("hello: %v", a)
	}
	return w
}

// ConnectRaw connects to a daemon and sends nothing.
func ConnectRaw(t testing.TB, d *Daemon) *RawClient {
	t.Helper()
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &RawClient{t: t, Conn: conn}
}

// Call sends a request with an id and returns its answer.
func (w *RawClient) Call(m Message) Message {
	w.t.Helper()
	w.LastID++
	m["id"] = w.LastID
	w.Send(m)
	a, err := w.Next()
	if err != nil {
		w.t.Fatalf("no answer to %v: %v", m, err)
	}
	if id, ok := a["id"]; ok && fmt.Sprint(id) != fmt.Sprint(w.LastID) {
		w.t.Fatalf("answer to another request: %v", a)
	}
	return a
}

// ExpectRefusal sends a request, checks that the answer is an error with this code, and
// returns the message of the error.
func (w *RawClient) ExpectRefusal(code protocol.Code, m Message) string {
	w.t.Helper()
	a := w.Call(m)
	e, _ := a["err"].(Message)
	if e == nil || e["code"] != string(code) {
		w.t.Fatalf("%v was answered %v, not with %s", m, a, code)
	}
	msg, _ := e["msg"].(string)
	if msg == "" {
		w.t.Errorf("%v: the error %s has no message", m, code)
	}
	return msg
}

// Send sends one frame.
func (w *RawClient) Send(m Message) {
	w.t.Helper()
	body, err := msgpack.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
}

// Write sends bytes.
func (w *RawClient) Write(b []byte) {
	w.t.Helper()
	if _, err := w.Conn.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// Next returns the next frame that is no lease event, or io.EOF. If the daemon closes the
// connection before it has read everything, a Unix socket reports that as ECONNRESET.
func (w *RawClient) Next() (Message, error) {
	w.t.Helper()
	for {
		w.Conn.SetReadDeadline(time.Now().Add(Patience))
		var head [4]byte
		if _, err := io.ReadFull(w.Conn, head[:]); errors.Is(err, syscall.ECONNRESET) {
			return nil, io.EOF
		} else if err != nil {
			return nil, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(w.Conn, body); err != nil {
			return nil, err
		}
		var m Message
		if err := msgpack.Unmarshal(body, &m); err != nil {
			w.t.Fatalf("an answer that is not a map: %v", err)
		}
		if m["ev"] != "lease" {
			return m, nil
		}
	}
}

// ExpectErrorThenEOF checks that the daemon sends a connection error with this code and
// closes the connection. It returns the message of the error.
func (w *RawClient) ExpectErrorThenEOF(code protocol.Code) string {
	w.t.Helper()
	m, err := w.Next()
	if err != nil {
		w.t.Fatalf("no frame before EOF: %v", err)
	}
	e, _ := m["err"].(Message)
	if e == nil || e["code"] != string(code) {
		w.t.Fatalf("got %v, not the error %s", m, code)
	}
	if m, err := w.Next(); err != io.EOF {
		w.t.Fatalf("after the error came %v (%v), not EOF", m, err)
	}
	msg, _ := e["msg"].(string)
	return msg
}
