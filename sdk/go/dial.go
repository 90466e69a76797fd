package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const (
	defaultPatience = 2 * time.Second
	firstPause      = 5 * time.Millisecond // between two attempts to connect; doubles
	longestPause    = 100 * time.Millisecond
)

// dialing is an attempt to reach the sidecar, which all callers share who find
// no connection.
type dialing struct {
	done    chan struct{} // closed when session and err are set
	session *session
	err     error
	lately  atomic.Pointer[failure] // why it has not succeeded so far
}

// dial connects and says hello, again and again while the sidecar may be about
// to start, until the client's patience ends.
func (c *Client) dial(ctx context.Context, d *dialing) (*session, error) {
	patience := time.NewTimer(c.patience)
	defer patience.Stop()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		s, err := c.dialOnce(ctx)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, errClosed()
		}
		if !mayPass(err) {
			return nil, err
		}
		d.lately.Store(err)
		select {
		case <-time.After(pause):
		case <-patience.C:
			return nil, err
		case <-ctx.Done():
			return nil, errClosed()
		}
	}
}

// mayPass tells whether a sidecar that starts, or restarts, would mend this.
func mayPass(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, errNoHello)
}

// errNoHello: the sidecar ended the connection before it answered hello.
var errNoHello = errors.New("no answer to hello")

func (c *Client) dialOnce(ctx context.Context) (*session, *failure) {
	nc, err := c.connect(ctx, c.path)
	if err != nil {
		return nil, unreachable(c.path, err)
	}
	// Whatever blocks below ends with the context.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	s, failed := c.greet(nc)
	if !stop() && failed == nil {
		failed = &failure{text: "the client was closed", kind: ErrClosed}
	}
	if failed != nil {
		nc.Close()
		return nil, failed
	}
	s.start()
	return s, nil
}

// greet says hello and makes a session of the connection.
func (c *Client) greet(nc net.Conn) (*session, *failure) {
	_ = nc.SetDeadline(time.Now().Add(protocol.HelloTimeout))
	asked := c.clock()
	_, err := nc.Write(protocol.Hello{ID: 1, V: protocol.Version, Client: c.name}.Append(nil))
	s := newSession(c.clock, nc)
	var body []byte
	if err == nil {
		body, err = s.frames.Next()
	}
	var broken *protocol.ConnError
	switch {
	case errors.As(err, &broken):
		return nil, &failure{text: "what listens at " + c.path + " is not a sidecar: " + broken.Msg}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &failure{
			text: fmt.Sprintf("the sidecar at %s did not answer within %v; is it stopped, or overloaded?", c.path, protocol.HelloTimeout),
			kind: ErrUnavailable, cause: err,
		}
	case err != nil:
		return nil, &failure{
			text: fmt.Sprintf("the sidecar at %s ended the connection before it answered (%v); is it stopping?", c.path, err),
			kind: ErrUnavailable, cause: errNoHello,
		}
	}
	answer, err := s.decoder.Decode(body)
	if err == nil {
		switch m := answer.(type) {
		case *protocol.Answer:
			err = m.Unpack(&s.hello)
		case *protocol.Err:
			return nil, c.unwelcome(m)
		default:
			err = errors.New("an event came before the answer to hello")
		}
	}
	switch {
	case err != nil:
		return nil, &failure{text: "what listens at " + c.path + " is not a sidecar: " + err.Error(), cause: err}
	case s.hello.V != protocol.Version:
		return nil, c.unwelcome(&protocol.Err{
			Code: protocol.Unsupported,
			Msg:  fmt.Sprintf("it (%s) speaks version %d", s.hello.Version, s.hello.V),
		})
	}
	// The sidecar read its clock between our question and now. A clock of ours
	// that is behind would let us believe in locks for too long.
	if now := c.clock(); s.hello.NowNS > now || s.hello.NowNS < asked-int64(time.Second) {
		return nil, &failure{text: fmt.Sprintf("the clock of the sidecar at %s (CLOCK_BOOTTIME) differs from ours by %v; run both in one time namespace", c.path, time.Duration(s.hello.NowNS-now))}
	}
	_ = nc.SetDeadline(time.Time{})
	return s, nil
}

// unwelcome makes an error of a refused hello.
func (c *Client) unwelcome(m *protocol.Err) *failure {
	f := refused(c.connecting(), m)
	switch m.Code {
	case protocol.Unsupported:
		f.text = fmt.Sprintf("the sidecar at %s does not speak version %d of the protocol, which this client needs; install a matching release of one of them (%s)", c.path, protocol.Version, m.Msg)
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

// admits says whom the socket admits, if this process may see it.
func admits(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "; ask for access to its directory"
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	group := strconv.FormatUint(uint64(stat.Gid), 10)
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	if info.Mode().Perm()&0o020 == 0 {
		return fmt.Sprintf(" (mode %04o); run as its user, or configure the sidecar's socket mode", info.Mode().Perm())
	}
	return fmt.Sprintf(" (mode %04o, group %s); join that group and log in again", info.Mode().Perm(), group)
}

// connectUnix is how a Client connects outside of tests.
func connectUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// lostConnection says how a connection ended, in words.
func lostConnection(err error) string {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return "the sidecar ended the connection"
	}
	return "the connection to the sidecar failed: " + err.Error()
}
