package locksidecar

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/locksidecar/locksidecar/protocol"
)

// connection is one connection to the sidecar, from the answer to hello to its end.
type connection struct {
	// Immutable after the answer to hello.
	nc    net.Conn
	in    *sharedReader
	out   *outbox
	hello protocol.HelloOK

	// Immutable after attach.
	lastClaim    uint64 // id of the last claim; every other request has a larger id; 0: nothing was claimed
	claimedHolds int

	// Owned by the goroutine that has the turn to read.
	frames   *protocol.Reader
	decoder  protocol.ReplyDecoder
	grant    protocol.AcquireOK // the newest
	answered bool               // a request was answered
}

func newConnection(nc net.Conn) *connection {
	var raw syscall.RawConn
	if c, ok := nc.(syscall.Conn); ok {
		raw, _ = c.SyscallConn()
	}
	in := newSharedReader(nc, raw)
	return &connection{nc: nc, in: in, out: newOutbox(nc, raw), frames: protocol.NewReader(in)}
}

// queue adds a frame to those that flush writes. A session without a connection has a nil
// connection, which discards all frames: what they would report is in the claims that are
// sent over the next connection.
func (conn *connection) queue(m protocol.Request) {
	if conn != nil {
		conn.out.queue(m)
	}
}

func (conn *connection) flush() {
	if conn != nil {
		conn.out.flush()
	}
}

// next returns the next message of the sidecar. The error is os.ErrDeadlineExceeded if the
// read was interrupted, syscall.EAGAIN if it does not wait and nothing has arrived, and a
// *disconnectError if the connection has ended.
func (conn *connection) next() (protocol.Received, error) {
	body, err := conn.frames.Next()
	if err != nil {
		var broken *protocol.ConnError
		switch {
		case errors.As(err, &broken):
			return nil, err
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, os.ErrDeadlineExceeded
		case errors.Is(err, syscall.EAGAIN):
			return nil, syscall.EAGAIN
		}
		return nil, &disconnectError{clientError{text: disconnectText(err), kind: ErrUnavailable, cause: err}}
	}
	return conn.decoder.Decode(body)
}

// hangUp closes the connection for both sides, so that reading it ends.
func (conn *connection) hangUp() {
	conn.nc.Close()
	conn.in.hangUp()
}

// close closes the connection, and frees what it has. No goroutine reads it any more.
func (conn *connection) close() {
	conn.nc.Close()
	conn.in.close()
	conn.out.close()
}

// disconnectError is the end of a connection that this client did not cause: the sidecar
// stops, was killed or is replaced. The session continues over another connection.
type disconnectError struct{ clientError }

// protocolError is the end of a connection over which the sidecar reported that this client
// broke the protocol. The sidecar keeps the session's holds until their deadlines, and
// nothing else of the session.
type protocolError struct{ clientError }

// connectionError converts the error that the sidecar sent before it closed the connection.
func connectionError(m *protocol.Err) error {
	f := clientError{text: "the sidecar ended the connection: " + m.Msg, kind: ErrUnavailable}
	if m.Code == protocol.Unavailable {
		return &disconnectError{f}
	}
	return &protocolError{f}
}

// disconnectText describes an error of a read.
func disconnectText(err error) string {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return "the sidecar ended the connection"
	}
	return "the connection to the sidecar failed: " + err.Error()
}
