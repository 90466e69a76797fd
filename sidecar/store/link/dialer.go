package link

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Dialer knows the way to one Redis, and which keys are ours there. Immutable.
type Dialer struct {
	options redis.Options  // what the URL says; the address of the server, if group and nodes are nil
	group   *sentinelGroup // who says where the server is; nil: the URL does
	Nodes   []string       // of a Cluster, host:port; nil: Redis is none, or this is the way to one node
	wire.Server
	timeout time.Duration // of silence while an answer is owed
	tls     TLS
	channel string // of the sidecar

	replicas int // that must confirm what is done; 0: none
}

// Settings is what a user says of a Redis: see store.Config, which has the same fields.
type Settings struct {
	URL, KeyPrefix, UUID string
	TLS                  TLS
	Timeout              time.Duration
	Replicas             int
}

// Parse reads the URL. What it says about a bad one never repeats the part that
// may be a password.
func Parse(cfg Settings) (*Dialer, error) {
	u, err := redisurl.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	o, err := redis.ParseURL(u.Server.String())
	if err != nil && !u.MayQuoteOptions() {
		return nil, fmt.Errorf("the Redis URL is wrong: it has an option that does not exist, or one with a wrong value; characters like & in a password must be percent-encoded: want %s", redisurl.Forms)
	}
	if err != nil {
		return nil, fmt.Errorf("the Redis URL is wrong (%s): want %s", strings.TrimPrefix(err.Error(), "redis: "), redisurl.Forms)
	}
	if o.DB < 0 {
		return nil, fmt.Errorf("the Redis URL names database %d, below 0: want %s", o.DB, redisurl.Forms)
	}
	if err := cfg.TLS.check(o.TLSConfig); err != nil {
		return nil, err
	}
	if err := wire.CheckKeyPrefix(cfg.KeyPrefix); err != nil {
		return nil, err
	}
	d := &Dialer{Server: wire.Server{Address: o.Addr, Keys: wire.NewKeyspace(cfg.KeyPrefix)}, timeout: cfg.Timeout, tls: cfg.TLS, channel: wire.OwnChannel(cfg.UUID), replicas: cfg.Replicas}
	if o.ClientName == "" {
		o.ClientName = "locksidecar"
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = 5 * time.Second
	}
	d.options = *o
	if u.Nodes != nil {
		d.Nodes, d.Address = u.Nodes, strings.Join(u.Nodes, ",")
	}
	if u.Sentinel != nil {
		d.Address = u.Sentinel.Master
		if d.group, err = checkGroup(u.Sentinel, cfg.TLS, cfg.Timeout); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// At returns the way to the server at an address that Sentinels name, or a node of a Cluster. Nodes
// announce IP addresses, for which there are no certificates: then the certificate is to have the name
// of the URL.
func (d *Dialer) At(address string) *Dialer {
	to := *d
	to.IsNode = d.Nodes != nil
	to.group, to.Nodes, to.Address, to.options.Addr = nil, nil, address, address
	if o := &to.options; o.TLSConfig != nil {
		host, _, _ := net.SplitHostPort(address)
		if to.IsNode && net.ParseIP(host) != nil {
			return &to
		}
		o.TLSConfig = o.TLSConfig.Clone()
		o.TLSConfig.ServerName = host
	}
	return &to
}

// HasTLS reports whether the way is over TLS.
func (d *Dialer) HasTLS() bool { return d.options.TLSConfig != nil }

// Database is the number of the database.
func (d *Dialer) Database() int { return d.options.DB }

// LeadsTo reports whether two ways lead to the same Redis, perhaps with another user and password.
func (d *Dialer) LeadsTo(other *Dialer) bool {
	return d.options.Network == other.options.Network && d.Place() == other.Place() && d.hasSentinelsOf(other) && d.HasTLS() == other.HasTLS()
}

// hasSentinelsOf reports whether two URLs have the same Sentinels, or none.
func (d *Dialer) hasSentinelsOf(other *Dialer) bool {
	if d.group == nil || other.group == nil {
		return d.group == other.group
	}
	return slices.Equal(slices.Sorted(slices.Values(d.group.Addresses)), slices.Sorted(slices.Values(other.group.Addresses)))
}

// NotYet is the sentence for the time before the first connection.
func (d *Dialer) NotYet() string {
	if d.group != nil {
		return fmt.Sprintf("the master %q is not connected yet", d.group.Master)
	}
	return "Redis at " + d.Address + " is not connected yet"
}

// Place is the address and the number of the database; or the name of the master, if Sentinels say
// where it is.
func (d *Dialer) Place() string { return d.Address + "/" + strconv.Itoa(d.options.DB) }
