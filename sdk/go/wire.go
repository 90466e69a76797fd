package locksidecar

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/locksidecar/locksidecar/protocol"
)

// wire is one connection to the sidecar, from the answer to hello to its end.
type wire struct {
	// Immutable after the greeting.
	nc    net.Conn
	in    *inbox
	out   *outbox
	hello protocol.HelloOK

	// Owned by whoever greets, then by whose turn it is to read.
	frames  *protocol.Reader
	decoder protocol.ReplyDecoder
	grant   protocol.AcquireOK // the newest
	claim   uint64             // id of the last claim; 0: none is unanswered
	claimed int                // holds
	opened  int64              // when the session was taken up; 0: not yet
	served  bool               // a request was answered
}

func newWire(nc net.Conn) *wire {
	var raw syscall.RawConn
	if c, ok := nc.(syscall.Conn); ok {
		raw, _ = c.SyscallConn()
	}
	in := newInbox(nc, raw)
	return &wire{nc: nc, in: in, out: newOutbox(nc, raw), frames: protocol.NewReader(in)}
}

// queue adds a frame to those that flush writes. A session without a connection has
// a nil wire, which takes everything and sends nothing: what would have been said is
// in the claims that come with the next one.
func (w *wire) queue(m protocol.Request) {
	if w != nil {
		w.out.queue(m)
	}
}

func (w *wire) flush() {
	if w != nil {
		w.out.flush()
	}
}

// next returns what the sidecar says next. The error is os.ErrDeadlineExceeded if
// the reader is to look up, syscall.EAGAIN if it does not wait and nothing has arrived, and a *cut if the connection has ended.
func (w *wire) next() (protocol.Received, error) {
	body, err := w.frames.Next()
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
		return nil, &cut{failure{text: lostConnection(err), kind: ErrUnavailable, cause: err}}
	}
	return w.decoder.Decode(body)
}

// hangUp has next return.
func (w *wire) hangUp() {
	w.nc.Close()
	w.in.hangUp()
}

// close ends the connection.
func (w *wire) close() {
	w.nc.Close()
	w.in.close()
	w.out.close()
}

// cut: the connection ended without our doing, as it does when a sidecar stops,
// is killed or is replaced. The session goes on.
type cut struct{ failure }

// blame: the sidecar says that we broke the protocol. It keeps what we hold until
// its deadline, and nothing else of the session.
type blame struct{ failure }

// lastWord makes an error of what the sidecar says before it ends a connection.
func lastWord(m *protocol.Err) error {
	f := failure{text: "the sidecar ended the connection: " + m.Msg, kind: ErrUnavailable}
	if m.Code == protocol.Unavailable {
		return &cut{f}
	}
	return &blame{f}
}

// lostConnection says how a connection ended, in words.
func lostConnection(err error) string {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return "the sidecar ended the connection"
	}
	return "the connection to the sidecar failed: " + err.Error()
}
