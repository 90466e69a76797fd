package link

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"time"
)

// The host of a URL may be an endpoint that fails over: a name whose addresses change. It is resolved
// for each connection. If it has several addresses, those that were lost are tried last, because a
// replica may be among them.

// lostAddresses are those of connections that ended, or that Redis refused, the last one last. It has
// one user at a time.
type lostAddresses struct{ hosts []string }

// maxLost bounds how many are kept.
const maxLost = 16

// note notes the address of a connection.
func (a *lostAddresses) note(conn net.Conn) {
	if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		a.add(remote.IP.String())
	}
}

func (a *lostAddresses) add(host string) {
	a.hosts = slices.DeleteFunc(a.hosts, func(h string) bool { return h == host })
	a.hosts = append(a.hosts, host)
	if len(a.hosts) > maxLost {
		a.hosts = a.hosts[1:]
	}
}

// sort sorts addresses: those that were not lost, then the others, the last one last.
func (a *lostAddresses) sort(hosts []string) {
	slices.SortStableFunc(hosts, func(x, y string) int {
		return cmp.Compare(slices.Index(a.hosts, x), slices.Index(a.hosts, y))
	})
}

// lookupHost resolves a name. Tests replace it.
var lookupHost = net.DefaultResolver.LookupHost

// open opens a socket to the server.
func (d *Dialer) open(ctx context.Context, lost *lostAddresses) (net.Conn, error) {
	nd := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	host, port, err := net.SplitHostPort(d.options.Addr)
	if d.options.Network != "tcp" || err != nil || len(lost.hosts) == 0 || net.ParseIP(host) != nil {
		return nd.DialContext(ctx, d.options.Network, d.options.Addr)
	}
	hosts, err := lookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	lost.sort(hosts)
	nd.Timeout = d.options.DialTimeout / time.Duration(max(1, len(hosts)))
	var errs []error
	for _, h := range hosts {
		socket, err := nd.DialContext(ctx, d.options.Network, net.JoinHostPort(h, port))
		if err == nil {
			return socket, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
