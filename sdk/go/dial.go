package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const (
	defaultPatience = 10 * time.Second // with a connection that was lost
	dialPatience    = 2 * time.Second  // with the first one

	// The pauses between two attempts to connect double from the first to the
	// longest, and are rare when a minute has passed: then it takes somebody to
	// start the sidecar.
	firstPause   = 5 * time.Millisecond
	longestPause = 500 * time.Millisecond
	lookPause    = 100 * time.Millisecond // the longest while nobody listens
	rarePause    = time.Second
)

func longer(pause time.Duration) time.Duration {
	return min(max(2*pause, firstPause), longestPause)
}

// jittered keeps the clients of a host from all coming in the same moment.
func jittered(pause time.Duration) time.Duration {
	return pause*3/4 + rand.N(pause/2+1)
}

// dialer is how a sidecar is reached.
type dialer struct {
	path    string
	name    string // of the client, as operators see it
	connect func(ctx context.Context, path string) (net.Conn, error)
	clock   func() int64 // CLOCK_BOOTTIME
}

// first connects for the first time. It tries again and again while the sidecar
// may be about to start, until the patience ends.
func (d *dialer) first(ctx context.Context, patience time.Duration) (*wire, error) {
	enough := time.NewTimer(patience)
	defer enough.Stop()
	var lately *failure
	for pause := firstPause; ; pause = longer(pause) {
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, d.connecting(), lately)
		}
		w, failed := d.dial(ctx, "")
		switch {
		case failed == nil:
			return w, nil
		case ctx.Err() != nil:
			return nil, gaveUp(ctx, d.connecting(), lately)
		case !mayPass(failed):
			return nil, failed
		}
		lately = failed
		select {
		case <-time.After(jittered(pause)):
		case <-enough.C:
			return nil, failed
		case <-ctx.Done():
		}
	}
}

func (d *dialer) connecting() task { return task{"connect to the sidecar at", d.path} }

// mayPass tells whether a sidecar that starts, or restarts, would mend this.
func mayPass(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, errNoHello)
}

// errNoHello: the sidecar ended the connection before it answered hello.
var errNoHello = errors.New("no answer to hello")

// dial connects and says hello, to resume the session of the ticket if there is
// one.
func (d *dialer) dial(ctx context.Context, ticket string) (*wire, *failure) {
	nc, err := d.connect(ctx, d.path)
	if err != nil {
		return nil, unreachable(d.path, err)
	}
	// Whatever blocks below ends with the context.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	w, failed := d.greet(nc, ticket)
	if !stop() && failed == nil {
		failed = ended(ctx, d.connecting())
	}
	if failed != nil {
		nc.Close()
		return nil, failed
	}
	return w, nil
}

// greet says hello, and makes a wire of the connection.
func (d *dialer) greet(nc net.Conn, ticket string) (*wire, *failure) {
	_ = nc.SetDeadline(time.Now().Add(protocol.HelloTimeout))
	asked := d.clock()
	hello := protocol.Hello{ID: 1, V: protocol.Version, Client: d.name, Resumable: true, Resume: ticket}
	_, err := nc.Write(hello.Append(nil))
	w := newWire(nc)
	var body []byte
	if err == nil {
		body, err = w.frames.Next()
	}
	var broken *protocol.ConnError
	switch {
	case errors.As(err, &broken):
		return nil, &failure{text: "what listens at " + d.path + " is not a sidecar: " + broken.Msg}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &failure{
			text: fmt.Sprintf("the sidecar at %s did not answer within %v; is it stopped, or overloaded?", d.path, protocol.HelloTimeout),
			kind: ErrUnavailable, cause: err,
		}
	case err != nil:
		return nil, &failure{
			text: fmt.Sprintf("the sidecar at %s ended the connection before it answered (%v); is it stopping?", d.path, err),
			kind: ErrUnavailable, cause: errNoHello,
		}
	}
	answer, err := w.decoder.Decode(body)
	if err == nil {
		switch m := answer.(type) {
		case *protocol.Answer:
			err = m.Unpack(&w.hello)
		case *protocol.Err:
			return nil, d.unwelcome(m)
		default:
			err = errors.New("an event came before the answer to hello")
		}
	}
	switch {
	case err != nil:
		return nil, &failure{text: "what listens at " + d.path + " is not a sidecar: " + err.Error(), cause: err}
	case w.hello.V != protocol.Version:
		return nil, d.unwelcome(&protocol.Err{
			Code: protocol.Unsupported,
			Msg:  fmt.Sprintf("it (%s) speaks version %d", w.hello.Version, w.hello.V),
		})
	}
	// The sidecar read its clock between our question and now. A clock of ours
	// that is behind would let us believe in locks for too long.
	if now := d.clock(); w.hello.NowNS > now || w.hello.NowNS < asked-int64(time.Second) {
		return nil, &failure{text: fmt.Sprintf("the clock of the sidecar at %s (CLOCK_BOOTTIME) differs from ours by %v; run both in one time namespace", d.path, time.Duration(w.hello.NowNS-now))}
	}
	_ = nc.SetDeadline(time.Time{})
	return w, nil
}

// unwelcome makes an error of a refused hello.
func (d *dialer) unwelcome(m *protocol.Err) *failure {
	f := refused(d.connecting(), m)
	switch m.Code {
	case protocol.Unsupported:
		f.text = fmt.Sprintf("the sidecar at %s does not speak version %d of the protocol, which this client needs; install a matching release of one of them (%s)", d.path, protocol.Version, m.Msg)
	case protocol.Unavailable:
		f.cause = errNoHello
	}
	return f
}

// unreachable makes an error of a failed connect.
func unreachable(path string, err error) *failure {
	f := &failure{kind: ErrUnavailable, cause: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.text = fmt.Sprintf("no sidecar: there is no socket %s; start it (locksidecar serve), or say where it listens ($LOCKSIDECAR_SOCKET)", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		f.text = fmt.Sprintf("no sidecar: nobody listens at %s; start it (locksidecar serve)", path)
	case errors.Is(err, fs.ErrPermission):
		f.kind = ErrDenied
		f.text = fmt.Sprintf("user %d has no permission to connect to %s%s", os.Geteuid(), path, admits(path))
	case errors.Is(err, syscall.EAGAIN):
		f.text = fmt.Sprintf("the sidecar at %s has more new clients than it takes in; is it stopped, or overloaded?", path)
	case errors.Is(err, syscall.EINVAL):
		f.kind = nil
		f.text = fmt.Sprintf("%s cannot be the path of a socket: it has %d bytes, at most 107 are possible", path, len(path))
	default:
		f.text = fmt.Sprintf("cannot connect to the sidecar at %s: %v", path, err)
	}
	return f
}

// connectUnix is how a Client connects outside of tests.
func connectUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
