package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A netConn is the socket under a link. Any goroutine can cut it at any time.
type netConn struct {
	net.Conn
	socket   net.Conn
	raw      syscall.RawConn // of the socket
	secure   bool            // TLS is between Conn and socket
	patience time.Duration   // of a connection that is greeted; 0: the caller sets the deadlines

	hasRead bool
	first   string // what the peer has sent first, if that is an error: the greeting may drop it
}

// Read grants the peer time as long as it goes on talking: a long batch is not
// given up because Redis is slow, only because it is silent.
func (w *netConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 && !w.hasRead {
		if w.hasRead = true; p[0] == '-' {
			w.first = string(p[:n])
		}
	}
	if n > 0 && w.patience > 0 {
		w.Conn.SetReadDeadline(time.Now().Add(w.patience))
	}
	return n, err
}

// Close ends the socket. TLS would send an alert first, which blocks when the peer takes
// nothing any more.
func (w *netConn) Close() error { return w.socket.Close() }

// release ends the deadlines of the greeting.
func (w *netConn) release() {
	w.patience = 0
	w.SetDeadline(time.Time{})
}

// A redisConn is one connection and never another: go-redis is given one socket, and
// refused when it wants to dial again without the dialer.
type redisConn struct {
	wire   *netConn
	client *redis.Client
	lacks  []string // permissions of commands of the greeting that this user lacks, and that locks do without
}

// note adds a permission to lacks if Redis denied a command.
func (l *redisConn) note(err error, permission string) {
	if err != nil && wire.Code(err.Error()) == "NOPERM" {
		l.lacks = append(l.lacks, permission)
	}
}

var errSpent = errors.New("a link has one connection")

// dial opens a socket and wraps it. Nothing was sent on it yet.
func (d *Dialer) dial(ctx context.Context, lost *lostAddresses) (*redisConn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.DialTimeout)
	defer cancel()
	socket, err := d.open(ctx, lost)
	if err != nil {
		return nil, d.dialError(err)
	}
	raw, err := socket.(syscall.Conn).SyscallConn()
	if err != nil {
		socket.Close()
		return nil, d.dialError(err)
	}
	conn := socket
	plain := d.options.TLSConfig == nil
	if !plain {
		config, err := d.tls.config(d.options.TLSConfig)
		if err != nil {
			socket.Close()
			return nil, wire.Unavailable(err.Error())
		}
		secure := tls.Client(socket, config)
		ctx, cancel := context.WithTimeout(ctx, d.timeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			lost.note(socket)
			socket.Close()
			return nil, d.tlsError(err)
		}
		conn = secure
	}
	l := &redisConn{wire: &netConn{Conn: conn, socket: socket, raw: raw, secure: !plain}}

	o := d.options
	var used atomic.Bool
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, errSpent
		}
		return l.wire, nil
	}
	// A name in CLIENT LIST is a courtesy. A user that may not set one still gets
	// his locks, so it is not left to the handshake, which would fail.
	name := o.ClientName
	o.ClientName = ""
	o.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		l.note(cn.ClientSetName(ctx, name).Err(), "+client|setname")
		return nil
	}
	// Without a subscription Redis sends replies only. So go-redis has read everything that
	// Redis sent when it has the last reply, and the socket can be taken over: see subscribe.
	o.Protocol = 2
	o.TLSConfig = nil
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.PoolSize = 1
	o.MinIdleConns = 0
	o.MaxIdleConns = 0
	o.MaxActiveConns = 1
	o.PipelinePoolSize = -1
	o.ConnMaxIdleTime = -1
	o.ConnMaxLifetime = 0
	o.ReadTimeout = -2 // deadlines are set on the wire
	o.WriteTimeout = -2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	l.client = redis.NewClient(&o)
	return l, nil
}

// close ends the connection. What is under way on it fails.
func (l *redisConn) close() {
	l.wire.Close()
	l.client.Close()
}
