package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const helloLine = `{"op":"hello","id":1,"v":1}`

// send writes a line to the pipe.
func (p *program) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// expect reads the next line, whose fields must have these values.
func (p *program) expect(want string) {
	p.t.Helper()
	got, wanted := decodeLine(p.t, p.line()), decodeLine(p.t, want)
	for k, v := range wanted {
		if !reflect.DeepEqual(got[k], v) {
			p.t.Errorf("the pipe printed %v, want %s", got, want)
			break
		}
	}
}

// decodeLine returns the fields of an object, with every number as its digits.
func decodeLine(t *testing.T, line string) (fields map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return fields
}

// vector is one entry of the vectors of the protocol; SPEC.md §10 describes it.
type vector struct {
	Name, Kind, Hex string
	Pad             int
	Message         json.RawMessage
	Canonical       bool
}

func vectors(t *testing.T) (all []vector) {
	t.Helper()
	text, err := os.ReadFile("../../protocol/testdata/vectors.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (v vector) frame(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, v.Pad)...)
}

// Every request of the vectors reaches the sidecar, and every answer and event the program.
// TestVectorsCoverTheProtocol of package protocol shows that they have every op and every field.
//
// Shows docs/pipe.md: The mapping.
func TestPipePassesEveryVector(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := start(t, &fakeSidecar{path: path}, "pipe")
	var frames *protocol.Reader
	var conn net.Conn
	// connect has the program send hello over the next connection.
	connect := func(hello string) []byte {
		t.Helper()
		p.send(hello)
		if conn, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		frames = protocol.NewReader(conn)
		return next(t, frames)
	}
	disconnect := func() {
		t.Helper()
		conn.Close()
		p.expect(`{"pipe":"disconnected"}`)
	}
	requests, replies := 0, 0
	for _, v := range vectors(t) {
		whole := v.frame(t)
		switch {
		case v.Kind == "request" && v.Canonical:
			var message bytes.Buffer
			if err := json.Compact(&message, v.Message); err != nil {
				t.Fatal(err)
			}
			var got []byte
			if decodeLine(t, message.String())["op"] == "hello" {
				got = connect(message.String())
			} else {
				connect(`{"op":"hello","id":1000000,"v":1}`)
				p.send(message.String())
				got = next(t, frames)
			}
			if !bytes.Equal(got, whole[lengthPrefix:]) {
				t.Errorf("%s: the sidecar received\n%x, the vector is\n%x", v.Name, got, whole[lengthPrefix:])
			}
			disconnect()
			requests++
		case v.Kind == "reply":
			connect(helloLine)
			if _, err := conn.Write(whole); err != nil {
				t.Fatal(err)
			}
			got, want := decodeLine(t, p.line()), decodeLine(t, string(v.Message))
			if v.Canonical && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: the pipe printed\n%v, the vector is\n%v", v.Name, got, want)
			}
			if !v.Canonical && (got["id"] != want["id"] || got["ev"] != want["ev"] || (got["err"] == nil) != (want["err"] == nil)) {
				t.Errorf("%s: the pipe printed\n%v, the vector is\n%v", v.Name, got, want)
			}
			disconnect()
			replies++
		}
	}
	if requests == 0 || replies == 0 {
		t.Errorf("%d requests and %d replies", requests, replies)
	}
	p.stdin.Close()
	expectExit(t, p, 0, "")
}

// next returns the body of the next frame.
func next(t *testing.T, frames *protocol.Reader) []byte {
	t.Helper()
	body, err := frames.Next()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(body)
}

// A request, an event and fields that this version does not know pass through.
func TestPipePassesUnknownMessages(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "pipe")
	p.send(`{"op":"hello","id":1,"v":1,"mood":{"a":[1.5,null]}}`)
	p.expect(`{"id":1,"sidecar":"fake"}`)
	p.send(`{"op":"divine","id":2,"what":["a"]}`)
	p.expect(`{"id":2,"err":{"code":"unsupported","msg":"not faked"}}`)
	f.mu.Lock()
	const event = "\x82\xa2ev\xa4wind\xa1a\xc4\x01\xff" // with a binary field
	_, err := f.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...))
	f.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	p.expect(`{"ev":"wind","a":"/w=="}`)
}

// A line that is no request, or would end the session, is refused, and the session goes on.
func TestPipeRefusesBadLines(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "pipe")
	for i, tt := range []struct{ line, id, msg string }{
		{`{"op":"ping","id":7}`, "7", "send hello"},
		{helloLine, "", ""},
		{`hello`, "", "not JSON"},
		{`["op"]`, "", "not a JSON object"},
		{`{"id":7}`, "7", "needs an op"},
		{`{"op":"ping"}`, "", "ping needs an id"},
		{`{"op":"ping","id":"7"}`, "", "id must be"},
		{`{"op":"ping","id":7,"id":7}`, "7", "occurs twice"},
		{`{"op":"ping","id":7,"x":[[[[[[[[[]]]]]]]]]}`, "7", "too deep"},
		{`{"op":"claim","id":7,"holds":[1,1,1,1]}`, "7", "names hold 1 twice"},
		{`{"op":"acquire","id":7,"name":"\ud800"}`, "7", "surrogate"},
		{"{\"op\":\"acquire\",\"id\":7,\"name\":\"\xff\"}", "7", "not UTF-8"},
		{`{"op":"ping","id":7,"x":"` + strings.Repeat("x", protocol.MaxFrame) + `"}`, "7", "does not fit"},
		{`{"op":"ping","id":7,"x":"` + strings.Repeat("x", longestLine) + `"}`, "", "the line has more than"},
		{helloLine, "1", "hello is its first request only"},
		{`{"op":"acquire","id":8,"name":"` + nameWait + `"}`, "", ""},
		{`{"op":"ping","id":8}`, "8", "the id 8 is in use"},
		{"", "", ""},
		{`{"op":"ping","id":9}`, "", ""},
	} {
		p.send(tt.line)
		switch {
		case tt.line == helloLine && tt.msg == "":
			p.expect(`{"id":1}`)
			continue
		case tt.line == "" || strings.Contains(tt.line, nameWait):
			continue
		case tt.msg == "":
			p.expect(`{"id":9,"redis":"ok"}`)
			continue
		}
		got := decodeLine(t, p.line())
		id := ""
		if got["id"] != nil {
			id = fmt.Sprint(got["id"])
		}
		msg, _ := got["msg"].(string)
		if got["pipe"] != "refused" || fmt.Sprint(got["line"]) != fmt.Sprint(i+1) || id != tt.id || !strings.Contains(msg, tt.msg) {
			t.Errorf("line %d, %.60q: the pipe printed %v, want id %q and %q", i+1, tt.line, got, tt.id, tt.msg)
		}
	}
	p.stdin.Close()
	expectExit(t, p, 0, "")
	<-f.closed // the one connection
	if len(f.closed) > 0 {
		t.Error("there was more than one connection")
	}
}

// A field that is not valid is the sidecar's to refuse, in its words.
func TestPipeLeavesBadFieldsToTheSidecar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := start(t, &fakeSidecar{path: path}, "pipe")
	p.send(`{"op":"hello","id":1,"v":"1"}`)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	frames := protocol.NewReader(conn)
	next(t, frames)
	p.send(`{"op":"acquire","id":2,"wait_ms":-1}`)
	if body := next(t, frames); !bytes.Contains(body, []byte("wait_ms")) {
		t.Errorf("the sidecar received %x", body)
	}
}

// A frame that breaks the protocol ends the connection, not the program.
func TestPipeEndsAConnectionThatBreaksTheProtocol(t *testing.T) {
	f := startFake(t)
	p := start(t, f, "pipe")
	p.send(helloLine)
	p.expect(`{"id":1}`)
	f.mu.Lock()
	_, err := f.conn.Write([]byte{0, 0, 0, 2, 0x80, 0x80})
	f.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	p.expect(`{"pipe":"disconnected","msg":"the sidecar ended the connection: protocol: 1 bytes follow the frame's map; a frame is one map"}`)
	<-f.closed
	p.send(`{"op":"ping","id":2}`)
	p.expect(`{"pipe":"refused","line":2,"id":2}`)
	p.send(helloLine)
	p.expect(`{"id":1,"sidecar":"fake"}`)
}

func TestPipeReportsThatThereIsNoSidecar(t *testing.T) {
	p := start(t, &fakeSidecar{path: filepath.Join(t.TempDir(), "none.sock")}, "pipe")
	p.send(helloLine)
	if line := p.line(); !strings.Contains(line, `{"pipe":"disconnected"`) || !strings.Contains(line, "none.sock") {
		t.Errorf("the pipe printed %s", line)
	}
	p.stdin.Close()
	expectExit(t, p, 0, "")
}

// A program that does not read ends its session all the same, and finds every line if it reads
// later.
func TestEndOfInputEndsTheSessionOfAProgramThatDoesNotRead(t *testing.T) {
	const events = 4096 // in all more than the buffers between the three processes have room for
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := start(t, &fakeSidecar{path: path}, "pipe")
	p.send(helloLine)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	frames := protocol.NewReader(conn)
	next(t, frames)
	// The pipe prints until its program's buffer is full, and the sidecar writes until the pipe
	// reads no more. Then the program sends another line, and ends its input.
	event := protocol.Err{ID: 5, Code: protocol.Timeout, Msg: strings.Repeat("x", protocol.MaxMessage)}.Append(nil)
	all := bytes.Repeat(event, events)
	_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	wrote, err := conn.Write(all)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe takes %d bytes that no program reads: %v", wrote, err)
	}
	_ = conn.SetWriteDeadline(time.Time{})
	p.send(`{"op":"ping","id":6}`)
	next(t, frames)
	p.stdin.Close()
	bye := make(chan uint64)
	go func() {
		body, err := frames.Next()
		if request, err2 := new(protocol.RequestDecoder).Decode(body); err == nil && err2 == nil {
			bye <- request.RequestID()
		}
		close(bye)
	}()
	id := <-bye // nothing has been read from the pipe
	if id == 0 {
		t.Fatal("the sidecar received no bye")
	}
	lines := make(chan int, 1)
	go func() {
		n := 0
		for {
			if _, err := p.out.ReadString('\n'); err != nil {
				lines <- n
				return
			}
			n++
		}
	}()
	if _, err := conn.Write(all[wrote:]); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(protocol.ByeOK{ID: id}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if n := <-lines; n != events {
		t.Errorf("the pipe printed %d lines, not %d", n, events)
	}
	if code := exitCodeOf(t, p.cmd.Wait()); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

// The end of input sends bye after everything else, and the last answers are printed.
func TestEndOfInputEndsTheSessionOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := start(t, &fakeSidecar{path: path}, "pipe")
	const last = 1<<63 - 1
	p.send(helloLine)
	p.send(fmt.Sprintf(`{"op":"acquire","id":%d,"name":"job"}`, last))
	if _, err := io.WriteString(p.stdin, `{"op":"release","hold":5}`); err != nil { // without a line feed
		t.Fatal(err)
	}
	p.stdin.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	frames := protocol.NewReader(conn)
	var d protocol.RequestDecoder
	for _, want := range []protocol.Request{
		&protocol.Hello{ID: 1, V: 1}, &protocol.Acquire{ID: last, Name: "job", WaitMS: protocol.Forever},
		&protocol.Release{Hold: 5}, &protocol.Bye{ID: last - 1}, // an id that is not in use
	} {
		if got, err := d.Decode(next(t, frames)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the sidecar received %+v (%v), want %+v", got, err, want)
		}
	}
	if _, err := conn.Write(protocol.AcquireOK{ID: last, Token: 9, Hold: 6, Count: 1, DeadlineNS: 7}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(protocol.ByeOK{ID: last - 1}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if got := expectExit(t, p, 0, ""); got != fmt.Sprintf(`{"id":%d,"token":9,"hold":6,"count":1,"deadline_ns":7}`+"\n", last) {
		t.Errorf("the pipe printed %q", got)
	}
}
