package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const (
	defaultPatience = 10 * time.Second // after a connection was lost
	dialPatience    = 2 * time.Second  // for the first connection

	// The pauses between two attempts to connect double from the first to the longest. After
	// a minute they are rare: then the sidecar does not return by itself.
	firstPause   = 5 * time.Millisecond
	longestPause = 500 * time.Millisecond
	lookPause    = 100 * time.Millisecond // the longest while no sidecar listens
	rarePause    = time.Second
)

// nextPause returns the pause that follows another one.
func nextPause(pause time.Duration) time.Duration {
	return min(max(2*pause, firstPause), longestPause)
}

// jittered varies a pause at random, so that the clients of a host do not all connect at the
// same moment.
func jittered(pause time.Duration) time.Duration {
	return pause*3/4 + rand.N(pause/2+1)
}

// absolute returns the path of a socket from the root, so that a client connects again after the
// working directory has changed. A path that is too long for a socket then stays as it is.
func absolute(path string) string {
	const most = 107
	if strings.HasPrefix(path, "@") { // an abstract socket has no directory
		return path
	}
	from, err := os.Getwd()
	if whole := from + "/" + path; err == nil && !filepath.IsAbs(path) && len(whole) <= most {
		return whole
	}
	return path
}

// dialer connects to a sidecar.
type dialer struct {
	path    string
	name    string // of the client, as operators see it
	connect func(ctx context.Context, path string) (net.Conn, error)
	clock   func() int64 // CLOCK_BOOTTIME
	log     *slog.Logger // nil: nothing is logged

	watchPeriod time.Duration // between two looks of waitWatch; 0: the constant
}

// dialFirst connects for the first time. It tries again while the sidecar may be about to
// start, until the patience ends.
func (d *dialer) dialFirst(ctx context.Context, patience time.Duration) (*connection, error) {
	giveUp := time.NewTimer(patience)
	defer giveUp.Stop()
	var last *clientError
	for pause := firstPause; ; pause = nextPause(pause) {
		if ctx.Err() != nil {
			return nil, contextErrorDuring(ctx, d.task(), last)
		}
		conn, err := d.dial(ctx, "")
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, contextErrorDuring(ctx, d.task(), last)
		case !isRetryable(err):
			return nil, err
		}
		last = err
		select {
		case <-time.After(jittered(pause)):
		case <-giveUp.C:
			return nil, err
		case <-ctx.Done():
		}
	}
}

func (d *dialer) task() task { return task{"connect to the sidecar at", d.path} }

// isRetryable reports whether a sidecar that starts, or restarts, would remove the cause of
// the error.
func isRetryable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, errNoHello)
}

// errRefused is the cause of an error if the sidecar refused hello for a reason that does not
// pass.
var errRefused = errors.New("hello was refused")

// errNoHello is the cause of an error if the sidecar ended the connection before it answered
// hello.
var errNoHello = errors.New("no answer to hello")

// dial connects and sends hello. If there is a ticket, hello asks to resume its session.
func (d *dialer) dial(ctx context.Context, ticket string) (*connection, *clientError) {
	nc, err := d.connect(ctx, d.path)
	if err != nil {
		return nil, connectError(d.path, err)
	}
	// What blocks below ends with the context.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	conn, failure := d.greet(nc, ticket)
	if !stop() && failure == nil {
		failure = contextError(ctx, d.task())
	}
	if failure != nil {
		nc.Close()
		return nil, failure
	}
	return conn, nil
}

// greet sends hello and checks the answer.
func (d *dialer) greet(nc net.Conn, ticket string) (*connection, *clientError) {
	_ = nc.SetDeadline(time.Now().Add(protocol.HelloTimeout))
	sentAt := d.clock()
	hello := protocol.Hello{ID: 1, V: protocol.Version, Client: d.name, Resumable: true, Resume: ticket}
	_, written := nc.Write(hello.Append(nil))
	conn := newConnection(nc)
	// A sidecar that refuses a client may have closed the connection by now: its answer is there.
	body, err := conn.frames.Next()
	if err != nil && written != nil {
		err = written
	}
	var broken *protocol.ConnError
	switch {
	case errors.As(err, &broken):
		return nil, &clientError{text: "what listens at " + d.path + " is not a sidecar: " + broken.Msg}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &clientError{
			text: fmt.Sprintf("the sidecar at %s did not answer within %v; is it stopped, or overloaded?", d.path, protocol.HelloTimeout),
			kind: ErrUnavailable, cause: err,
		}
	case err != nil:
		return nil, &clientError{
			text: fmt.Sprintf("the sidecar at %s ended the connection before it answered (%v); is it stopping?", d.path, err),
			kind: ErrUnavailable, cause: errNoHello,
		}
	}
	answer, err := conn.decoder.Decode(body)
	if err == nil {
		switch m := answer.(type) {
		case *protocol.Answer:
			err = m.Unpack(&conn.hello)
		case *protocol.Err:
			return nil, d.helloRefused(m)
		default:
			err = errors.New("an event came before the answer to hello")
		}
	}
	switch {
	case err != nil:
		return nil, &clientError{text: "what listens at " + d.path + " is not a sidecar: " + err.Error(), cause: err}
	case conn.hello.V != protocol.Version:
		older := "the sidecar"
		if conn.hello.V > protocol.Version {
			older = "the module of this client"
		}
		return nil, &clientError{
			text: fmt.Sprintf("the sidecar at %s (%s) speaks version %d of the protocol, this client (%s) version %d; upgrade %s", d.path, conn.hello.Version, conn.hello.V, Version, protocol.Version, older),
			kind: ErrUnsupported, cause: errRefused,
		}
	}
	// The sidecar read its clock after sentAt and before now. If this program's clock is
	// behind that of the sidecar, deadlines would pass too late here.
	if now := d.clock(); conn.hello.NowNS > now || conn.hello.NowNS < sentAt-int64(time.Second) {
		return nil, &clientError{text: fmt.Sprintf("the clock of the sidecar at %s (CLOCK_BOOTTIME) differs from ours by %v; run both in one time namespace", d.path, time.Duration(conn.hello.NowNS-now))}
	}
	_ = nc.SetDeadline(time.Time{})
	return conn, nil
}

// helloRefused converts the sidecar's refusal of hello.
func (d *dialer) helloRefused(m *protocol.Err) *clientError {
	e := refusedError(d.task(), m)
	e.cause = errRefused
	switch m.Code {
	case protocol.Unsupported:
		e.text = fmt.Sprintf("the sidecar at %s does not speak version %d of the protocol, which this client needs; install a matching release of one of them (%s)", d.path, protocol.Version, m.Msg)
	case protocol.Unavailable:
		e.cause = errNoHello
	case protocol.Limit, protocol.NoHello: // no_hello: hello came too late
		e.cause = nil
	}
	return e
}

// connectError converts the error of a connect.
func connectError(path string, err error) *clientError {
	e := &clientError{kind: ErrUnavailable, cause: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.text = fmt.Sprintf("no sidecar: there is no socket %s; start it (locksidecar serve), or say where it listens ($LOCKSIDECAR_SOCKET)", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		e.text = fmt.Sprintf("no sidecar: no process listens at %s; start it (locksidecar serve)", path)
		if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
			e.text = fmt.Sprintf("%s is no socket; remove this file: a sidecar that runs makes its socket again", path)
		}
	case errors.Is(err, fs.ErrPermission):
		e.kind = ErrDenied
		e.text = fmt.Sprintf("user %d has no permission to connect to %s%s", os.Geteuid(), path, socketPermissions(path))
	case errors.Is(err, syscall.EAGAIN):
		e.text = fmt.Sprintf("the sidecar at %s has more new clients than it takes in; is it stopped, or overloaded?", path)
	case errors.Is(err, syscall.EINVAL):
		e.kind = nil
		e.text = fmt.Sprintf("%s cannot be the path of a socket: it has %d bytes, at most 107 are possible", path, len(path))
	default:
		e.text = fmt.Sprintf("cannot connect to the sidecar at %s: %v", path, err)
	}
	return e
}

// connectUnix is how a Client connects outside of tests.
func connectUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
