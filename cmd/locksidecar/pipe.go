package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

type pipeCmd struct {
	socketFlag
}

func (pipeCmd) Help() string {
	return `Connects a program to the sidecar by JSON lines, for languages without msgpack. Each line of standard input is a
request of the protocol, each line of standard output an answer or an event, with the fields of protocol/SPEC.md.
The first line is hello. docs/pipe.md has the mapping, and what this program adds to it:

    {"pipe":"refused","line":4,"id":7,"msg":"..."}    this line was not sent; the session goes on
    {"pipe":"disconnected","msg":"..."}               the connection has ended, or cannot be made; hello makes the next one

The end of standard input ends the session and releases its locks, and so does the end of this program.

Example:

    $ locksidecar pipe
    {"op":"hello","id":1,"v":1}
    {"id":1,"v":1,"sidecar":"6f1c54e2-7d1c-4a3e-9a9d-2f3b1f6f0c11","version":"1.0.0","session":2,"lease_ms":30000,"now_ns":17205104654372}
    {"op":"acquire","id":2,"name":"invoice:42","wait_ms":5000}
    {"id":2,"token":1795322092208409,"hold":2,"count":1,"deadline_ns":17234802844347}
    {"op":"release","id":3,"hold":2}
    {"id":3,"count":0}

Exit codes:

    0    standard input ended
    1    standard input or output failed
    64   wrong usage`
}

func (c *pipeCmd) Run(ctx context.Context, out io.Writer) error {
	p := &pipe{path: c.Socket, out: bufio.NewWriter(out)}
	if p.path == "" {
		p.path = protocol.DefaultSocket()
	}
	return p.run(ctx, os.Stdin)
}

const (
	// longestLine bounds the memory for a line. A frame as JSON can be longer than the frame, by
	// its escapes.
	longestLine = 1 << 20

	lengthPrefix = 4 // bytes before the body of a frame; SPEC.md §2

	// byeWait is how long the pipe waits for the next frame after it has sent bye.
	byeWait = 5 * time.Second
)

// pipe passes requests from its input to a sidecar, and answers and events to its output. One
// goroutine reads the input, and one for each connection reads frames.
type pipe struct {
	path    string
	decoder protocol.RequestDecoder // of the goroutine that reads the input

	mu     sync.Mutex // guards conn and outErr; never held during I/O
	conn   *pipeConn  // nil: not connected
	outErr error      // the first error of out

	outMu sync.Mutex // guards out; never taken together with mu. A program that does not read has a write hold it
	out   *bufio.Writer
}

// pipeConn is one connection to a sidecar.
type pipeConn struct {
	net.Conn
	done chan struct{} // closed when the goroutine that reads frames has ended

	// Guarded by pipe.mu.
	unanswered map[uint64]bool // the ids in use
	bye        uint64          // id of the bye that the pipe has sent itself; 0: none
}

// pipeLine is a line of the pipe itself.
type pipeLine struct {
	Pipe string `json:"pipe"` // lineRefused or lineDisconnected
	Line int    `json:"line,omitempty"`
	ID   uint64 `json:"id,omitempty"`
	Msg  string `json:"msg"`
}

const (
	lineRefused      = "refused"
	lineDisconnected = "disconnected"
)

func (p *pipe) run(ctx context.Context, in io.Reader) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	var inputErr error
	for n := 1; inputErr == nil; n++ {
		var line []byte
		line, inputErr = readLine(lines)
		var id uint64
		var err error
		switch {
		case errors.Is(inputErr, errLongLine):
			err, inputErr = inputErr, nil
		case len(bytes.TrimSpace(line)) > 0:
			id, err = p.onLine(ctx, line)
		}
		if err != nil {
			p.print(pipeLine{Pipe: lineRefused, Line: n, ID: id, Msg: err.Error()})
		}
		if err := p.outputErr(); err != nil {
			p.end()
			return fmt.Errorf("cannot write to standard output: %w", err)
		}
	}
	p.end()
	if err := p.outputErr(); err != nil {
		return fmt.Errorf("cannot write to standard output: %w", err)
	}
	if inputErr != io.EOF {
		return fmt.Errorf("cannot read standard input: %w", inputErr)
	}
	return nil
}

var errLongLine = fmt.Errorf("the line has more than %d bytes", longestLine)

// readLine returns the next line, valid until the next call. With io.EOF it returns the last
// line if that has no line feed. After errLongLine the rest of the line has been skipped.
func readLine(r *bufio.Reader) (line []byte, err error) {
	line, err = r.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return line, err
	}
	whole := bytes.Clone(line)
	for err == bufio.ErrBufferFull {
		line, err = r.ReadSlice('\n')
		if len(whole) <= longestLine {
			whole = append(whole, line...)
		}
	}
	if err == nil && len(whole) > longestLine {
		return nil, errLongLine
	}
	return whole, err
}

// onLine sends the request in a line. The error says why it does not, and id is that of the
// request, if it is known.
func (p *pipe) onLine(ctx context.Context, line []byte) (id uint64, err error) {
	frame, err := protocol.AppendFrame(nil, line)
	if err != nil {
		return idOf(line), err
	}
	// A line that breaks the protocol would end the session. A request with a bad field is the
	// sidecar's to answer.
	var refused *protocol.RequestError
	var broken *protocol.ConnError
	isHello := false
	switch request, err := p.decoder.Decode(frame[lengthPrefix:]); {
	case errors.As(err, &refused):
		id, isHello = refused.ID, refused.Op == "hello"
	case errors.As(err, &broken):
		return idOf(line), errors.New(broken.Msg)
	case err != nil:
		return idOf(line), err
	default:
		id = request.RequestID()
		_, isHello = request.(*protocol.Hello)
	}

	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	switch {
	case conn == nil && !isHello:
		return id, errors.New("there is no connection: send hello")
	case conn != nil && isHello:
		return id, errors.New("there is a connection: hello is its first request only")
	case conn == nil:
		var d net.Dialer
		socket, err := d.DialContext(ctx, "unix", p.path)
		if err != nil {
			p.print(pipeLine{Pipe: lineDisconnected, Msg: fmt.Sprintf("cannot connect to the sidecar at %s: %v", p.path, err)})
			return 0, nil
		}
		conn = &pipeConn{Conn: socket, done: make(chan struct{}), unanswered: make(map[uint64]bool)}
		p.mu.Lock()
		p.conn = conn
		p.mu.Unlock()
		go p.receive(conn)
	}
	p.mu.Lock()
	inUse := conn.unanswered[id]
	if id != 0 {
		conn.unanswered[id] = true
	}
	p.mu.Unlock()
	if inUse {
		return id, fmt.Errorf("the id %d is in use: a request with it has no answer yet", id)
	}
	_, _ = conn.Write(frame) // after an error, receive reports the end of the connection
	return id, nil
}

// idOf returns the id in a line that is no valid request; 0: it has none.
func idOf(line []byte) uint64 {
	var request struct{ ID uint64 }
	if json.Unmarshal(line, &request) != nil || request.ID > math.MaxInt64 {
		return 0
	}
	return request.ID
}

// receive prints the frames of a connection until it ends.
func (p *pipe) receive(conn *pipeConn) {
	defer close(conn.done)
	frames := protocol.NewReader(byeReader{p, conn})
	err := p.printFrames(conn, frames)
	p.write(nil, true) // frames before the last one may not be flushed
	conn.Close()
	p.mu.Lock()
	p.conn = nil // before the line: the program may answer it with hello
	saidBye := conn.bye != 0
	p.mu.Unlock()
	if saidBye {
		return
	}
	msg := "the sidecar ended the connection"
	if err != io.EOF {
		msg += ": " + err.Error()
	}
	p.print(pipeLine{Pipe: lineDisconnected, Msg: msg})
}

// printFrames prints frames until one of them is not valid, the connection ends, or the pipe's
// own bye is answered.
func (p *pipe) printFrames(conn *pipeConn, frames *protocol.Reader) error {
	var decoder protocol.ReplyDecoder
	var line []byte
	for {
		body, err := frames.Next()
		if err != nil {
			return err
		}
		reply, err := decoder.Decode(body)
		if err != nil {
			return err
		}
		var id uint64
		switch m := reply.(type) {
		case *protocol.Answer:
			id = m.ID
		case *protocol.Err:
			id = m.ID
		}
		p.mu.Lock()
		delete(conn.unanswered, id)
		isBye := id != 0 && id == conn.bye
		p.mu.Unlock()
		if isBye {
			return io.EOF
		}
		if line, err = protocol.AppendJSON(line[:0], body); err != nil {
			return err
		}
		p.write(append(line, '\n'), frames.Buffered() == 0)
		if err := p.outputErr(); err != nil {
			return err
		}
	}
}

// byeReader reads from a connection. After the pipe's own bye it waits for byeWait at most.
type byeReader struct {
	pipe *pipe
	conn *pipeConn
}

func (r byeReader) Read(b []byte) (int, error) {
	r.pipe.mu.Lock()
	if r.conn.bye != 0 {
		_ = r.conn.SetReadDeadline(time.Now().Add(byeWait))
	}
	r.pipe.mu.Unlock()
	return r.conn.Read(b)
}

// end ends the session, and waits until its last answers are printed.
func (p *pipe) end() {
	p.mu.Lock()
	conn := p.conn
	if conn == nil {
		p.mu.Unlock()
		return
	}
	id := uint64(math.MaxInt64)
	for conn.unanswered[id] {
		id--
	}
	conn.bye = id
	_ = conn.SetReadDeadline(time.Now().Add(byeWait)) // of the read that blocks now
	p.mu.Unlock()
	_ = conn.SetWriteDeadline(time.Now().Add(byeWait))
	if _, err := conn.Write(protocol.Bye{ID: id}.Append(nil)); err != nil {
		conn.Close() // ends the session as well
	}
	<-conn.done
}

// print prints a line of the pipe itself.
func (p *pipe) print(line pipeLine) {
	text, _ := json.Marshal(line) // a struct of numbers and strings
	p.write(append(text, '\n'), true)
}

func (p *pipe) write(line []byte, flush bool) {
	err := p.writeOut(line, flush)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outErr == nil {
		p.outErr = err
	}
}

func (p *pipe) writeOut(line []byte, flush bool) error {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	_, err := p.out.Write(line)
	if err == nil && flush {
		err = p.out.Flush()
	}
	return err
}

// outputErr returns the first error of the output. It does not wait for a write.
func (p *pipe) outputErr() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outErr
}
