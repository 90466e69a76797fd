package sidecar

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/endpoint"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/settings"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Config has the settings of a sidecar. The zero value of a field means its default; negative
// numbers are errors.
type Config struct {
	// Socket is the path of the Unix domain socket. Default: DefaultSocket().
	Socket string
	// SocketMode is the socket's file mode. Default 0660.
	SocketMode os.FileMode
	// SocketGroup is the name or number of the socket's group. Default: the
	// group of this process.
	SocketGroup string
	// Listener is a socket that another process made and keeps, such as systemd. Socket,
	// SocketMode and SocketGroup are then not used.
	Listener *net.UnixListener
	// inherited: Socket is the address of a Listener that another process has. See
	// CheckInherited.
	inherited bool

	// Redis is a redis://, rediss:// or unix:// URL. Default redis://127.0.0.1:6379/0.
	Redis string
	// ReadRedis returns Redis again, at each connection: its user and password may have changed.
	// nil: they do not change.
	ReadRedis func() (string, error)
	// KeyPrefix stands before the name of each lock in Redis: a lock's key, token counter and
	// channel are those of the name with the prefix, as with a NameMapper of Redisson. Only
	// sidecars with the same prefix exclude each other. A state file of another prefix is not
	// restored. At most 128 bytes, printable; braces only as a hash tag.
	// Default: none.
	KeyPrefix string

	// RedisCA is a PEM file with the certificates of the authorities that sign the certificate
	// of a rediss:// Redis; "": those of the host. RedisCert and RedisKey are the files of the
	// certificate that this sidecar presents to Redis; "": none. RedisServerName is the name
	// in the certificate of Redis; "": the host of the URL.
	RedisCA, RedisCert, RedisKey, RedisServerName string

	// Lease is how long Redis keeps a lock whose acquire named no lease; it is
	// renewed every third of it. 300 ms to 1 h, default 30 s.
	Lease time.Duration

	// TokenExpiry is how long the counter of a lock's fencing tokens stays in Redis after
	// its last use by a sidecar: 0, the default, is for as long as Redis keeps its data.
	// A Redisson program (RFencedLock) does not refresh the expiry when it draws tokens, and
	// after the expiry it begins again at 1: set it only if no such program uses these locks.
	// 1 h to 10 years.
	TokenExpiry time.Duration

	// Replicas is how many replicas of Redis must confirm that they have a lock before it is
	// granted, and each renewal before it counts: then no failover to one of them makes a second
	// owner. All hosts should have the same. While fewer confirm, acquires fail, and locks end at
	// their deadlines. Up to 16. Default 0: Redis alone decides, and does not wait for its replicas.
	Replicas int

	// Linger is how long, at most, a lock that clients of this host acquire again and again stays
	// this host's in Redis after a release, so that the next acquire needs no round trip. It is
	// less if two answers of Redis take less, and the lock was held for less. That ends
	// at once if another sidecar waits for the lock. A foreign client may find the
	// lock taken for so long, although no client holds it. Up to 20 ms. Default 5 ms. 0: no
	// lock lingers.
	Linger moment.Span
	// Turn is how long this host hands a lock over between its own clients while another
	// sidecar waits for it. Then the lock passes to that one. A turn also ends when the lock is left
	// free for foreign clients, each 100 ms. Up to 1 s. Default: two round trips to Redis, but at
	// least 0.2 ms and at most 20 ms. 0: a turn ends after each grant.
	Turn moment.Span
	// Fair are patterns of names whose locks go to waiters in the order in which their requests
	// arrive at Redis, over all hosts, as if each acquire had asked for that: a name, or the
	// beginning of names and "*". All hosts should have the same. Default: none.
	Fair []string

	// TryWithin is how long an acquire that does not wait for its lock waits for the answer of Redis.
	// Default 500 ms, as SPEC.md promises to clients.
	TryWithin time.Duration

	// State is the file from which a successor restores the sessions and holds of this
	// sidecar. It is made with mode 0600, and must survive a restart, not a reboot. Default:
	// the path of the socket and ".state". StateNone: no file, and every lock ends with its
	// lease after this process. A sequence file is made beside it, at the same path and
	// ".seq".
	State string
	// ResumeWithin is how long a successor renews the locks of a running process that does not
	// resume its session. Default 1 h.
	ResumeWithin time.Duration
	// ResumeUnseen is the same for a client whose process this sidecar cannot watch, for
	// instance in another pid namespace. A longer time keeps the locks of clients that are
	// busy for long, and also of clients that died during the restart. Default: the lease.
	ResumeUnseen time.Duration

	// HostName is the name of this host, which the sidecars of other hosts show to people. At
	// most 64 bytes, printable, without spaces. Default: that of the kernel.
	HostName string
	// OtherHosts is what the sidecars of other hosts may see and do here. They ask through
	// Redis: every program that may publish there can ask, too. Default otherhosts.Show.
	OtherHosts otherhosts.Setting

	// AskWithin is how long a client waits for what other hosts are asked. Default 500 ms, as SPEC.md
	// promises to clients.
	AskWithin time.Duration

	MaxSessions int // clients at one time. Default 4,096
	MaxLocks    int // names held or waited for, and waiters, in all. Default 1,048,576
	MaxHolds    int // locks held by one client. Default 262,144
	MaxWaiters  int // acquires and confirms of one client that wait. Default 16,384

	// MaxNewNames is how many names that were not locked before one user may lock per second,
	// on average over ten minutes: each leaves a token counter of about 170 bytes in Redis. It
	// does not apply to root and the user of this process. Default 1,000.
	MaxNewNames int

	// Metrics is where metrics and the status page are served over HTTP: an address of this host
	// and a port, as in "127.0.0.1:9377", or the absolute path of a Unix socket, which has
	// SocketMode and SocketGroup. An address without a host is on 127.0.0.1. Listen opens the
	// listener, or MetricsListener if Listen cannot; package monitor serves it. Default: none.
	Metrics string
	// MetricsNames are patterns of names that are counted apart: a name, or the beginning of
	// names and "*". A name counts for the first pattern that it matches. At most 16, each of at
	// most 64 bytes, printable. Default: none.
	MetricsNames []string

	// ExpectedHold is for how long holds of some names usually last: a pattern of names, "=" and a time, as in
	// "invoice:*=10m". Holds that have lasted longer are counted, for an alert. A name counts for the first pattern
	// that it matches. At most 16. Default: none.
	ExpectedHold []string

	// Policy are the entries that say what processes of the host may do, and how much of it: see
	// package policy. Default: none, and every process that may write to the socket may lock.
	Policy []policy.Entry

	// Version is sent to clients and logged. Default "dev". Build is the commit that the sidecar was built from; "":
	// it is not known.
	Version, Build string
	// Log gets one line for each event that an operator acts on. Default slog.Default().
	Log *slog.Logger
}

// Defaults of Config that the command line shows.
const (
	// StateNone is the Config.State of a sidecar without a state file.
	StateNone = "none"

	DefaultRedis       = "redis://127.0.0.1:6379/0"
	DefaultLease       = 30 * time.Second
	DefaultLinger      = 5 * time.Millisecond
	DefaultSocketMode  = os.FileMode(0o660)
	DefaultMaxSessions = 4096
	DefaultMaxLocks    = 1 << 20
	DefaultMaxHolds    = 1 << 18
	DefaultMaxWaiters  = 1 << 14
	DefaultMaxNewNames = 1000

	DefaultResumeWithin = time.Hour
	maxResumeWithin     = 30 * 24 * time.Hour

	minLease = 300 * time.Millisecond
	maxLease = time.Hour

	// While a lock lingers, tryLock of a Redisson program is refused although no client holds it.
	maxLinger = 20 * time.Millisecond
	maxTurn   = time.Second

	maxReplicas = 16

	// A counter that expired begins again at Redis's clock. With a shorter expiry the tokens
	// would depend on that clock more often.
	minTokenExpiry = time.Hour
	maxTokenExpiry = 10 * 365 * 24 * time.Hour
)

// A state file has room for each prefix that a store accepts.
const _ = uint(state.MaxKeyPrefix - wire.MaxKeyPrefix)

// table returns the configuration of the lock table, without its journal and its seed.
func (c *Config) table() locktable.Config {
	expected, _ := settings.ExpectedHolds(c.ExpectedHold) // it was checked
	return locktable.Config{
		Lease:      c.Lease,
		TryWithin:  c.TryWithin,
		MaxLocks:   c.MaxLocks,
		MaxHolds:   c.MaxHolds,
		MaxWaiters: c.MaxWaiters,
		NewNames:   c.MaxNewNames,
		UID:        int64(unix.Geteuid()),
		Durable:    c.Replicas > 0,

		Contest:      contest.Config{Turn: c.Turn, Linger: c.Linger},
		Fair:         settings.NamePatterns(c.Fair),
		NamePatterns: settings.NamePatterns(c.MetricsNames),
		Expected:     expected,
	}
}

// policy compiles the entries; nil: there are none.
func (c *Config) policy() (*policy.Policy, error) { return policy.New(c.Policy, resolver) }

// CheckPolicy returns what is wrong with the entries of a policy, a policy.EntryError for each
// fault, joined.
func CheckPolicy(entries []policy.Entry) error {
	_, err := policy.New(entries, resolver)
	return err
}

func (c *Config) tls() link.TLS {
	return link.TLS{CA: c.RedisCA, Cert: c.RedisCert, Key: c.RedisKey, ServerName: c.RedisServerName}
}

// DefaultSocket is $LOCKSIDECAR_SOCKET, or else /run/locksidecar/locksidecar.sock, as in the
// SDKs.
func DefaultSocket() string { return protocol.DefaultSocket() }

func or[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// endpoint returns the settings of the socket.
func (c *Config) endpoint() endpoint.Config {
	return endpoint.Config{Path: c.Socket, Mode: c.SocketMode, Group: c.SocketGroup, Listener: c.Listener, Log: c.Log}
}

// isInherited reports whether another process makes the socket.
func (c *Config) isInherited() bool { return c.Listener != nil || c.inherited }

func (c *Config) setDefaults() error {
	or(&c.Socket, DefaultSocket())
	or(&c.SocketMode, DefaultSocketMode)
	or(&c.Redis, DefaultRedis)
	or(&c.Lease, DefaultLease)
	or(&c.Linger, moment.SpanOf(DefaultLinger))
	or(&c.ResumeWithin, DefaultResumeWithin)
	or(&c.ResumeUnseen, c.Lease)
	if c.State == "" {
		path := c.endpoint().File()
		if path == "" {
			return errors.New("the socket has no path in the file system, beside which the state could be kept; name a state file, or none")
		}
		c.State = path + ".state"
	}
	or(&c.AskWithin, otherhosts.DefaultAskWithin)
	or(&c.MaxSessions, DefaultMaxSessions)
	or(&c.MaxLocks, DefaultMaxLocks)
	or(&c.MaxHolds, DefaultMaxHolds)
	or(&c.MaxWaiters, DefaultMaxWaiters)
	or(&c.MaxNewNames, DefaultMaxNewNames)
	or(&c.Version, "dev")
	or(&c.Log, slog.Default())

	var errs []error
	refuse := func(setting, format string, args ...any) {
		errs = append(errs, settings.Refuse(setting, fmt.Errorf(format, args...)))
	}
	// Before the state is opened: with a prefix that is wrong it would not be taken over.
	if err := wire.CheckKeyPrefix(c.KeyPrefix); err != nil {
		errs = append(errs, settings.Refuse("key_prefix", err))
	}
	if c.Lease < minLease || c.Lease > maxLease {
		refuse("lease", "lease %v: choose %v to %v", c.Lease, minLease, maxLease)
	}
	if c.Lease%time.Millisecond != 0 {
		refuse("lease", "lease %v: choose whole milliseconds", c.Lease)
	}
	if c.TokenExpiry != 0 && (c.TokenExpiry < minTokenExpiry || c.TokenExpiry > maxTokenExpiry) {
		refuse("token_expiry", "token-expiry %v: choose %v to %v, or 0 for none", c.TokenExpiry, minTokenExpiry, maxTokenExpiry)
	}
	if c.Replicas < 0 || c.Replicas > maxReplicas {
		refuse("durability", "durability replicas:%d: choose 1 to %d replicas, or none", c.Replicas, maxReplicas)
	}
	if linger := c.Linger.Or(0); linger < 0 || linger > maxLinger {
		refuse("linger", "linger %v: choose up to %v, or 0 to have no lock linger", c.Linger, maxLinger)
	}
	if turn := c.Turn.Or(0); turn < 0 || turn > maxTurn {
		refuse("turn", "turn %v: choose auto, up to %v, or 0 for one grant a turn", c.Turn, maxTurn)
	}
	if c.ResumeWithin < 0 || c.ResumeWithin > maxResumeWithin {
		refuse("resume_within", "resume-within %v: choose up to %v, or 0 for the default", c.ResumeWithin, maxResumeWithin)
	}
	if c.ResumeUnseen < 0 || c.ResumeUnseen > maxResumeWithin {
		refuse("resume_unseen", "resume-unseen %v: choose up to %v, or 0 for the lease", c.ResumeUnseen, maxResumeWithin)
	}
	if c.Metrics != "" {
		network, path, err := metricsAddress(c.Metrics)
		if err == nil && network == "unix" && isSameSocket(path, c.endpoint().File()) {
			err = fmt.Errorf("metrics %q: clients of locks connect to this socket; choose another path", c.Metrics)
		}
		errs = append(errs, settings.Refuse("metrics", err))
	}
	_, expected := settings.ExpectedHolds(c.ExpectedHold)
	errs = append(errs, CheckPolicy(c.Policy), c.setHostDefaults(), settings.Refuse("fair", settings.CheckPatterns("fair", c.Fair)),
		settings.Refuse("metrics_names", settings.CheckMetricsNames(c.MetricsNames)), settings.Refuse("expected_hold", expected))
	for _, m := range []struct {
		what string
		n    int
	}{{"max-sessions", c.MaxSessions}, {"max-locks", c.MaxLocks}, {"max-holds", c.MaxHolds}, {"max-waiters", c.MaxWaiters}, {"max-new-names", c.MaxNewNames}} {
		if m.n < 0 {
			refuse(strings.ReplaceAll(m.what, "-", "_"), "%s %d: choose 1 or more, or 0 for the default", m.what, m.n)
		}
	}
	return errors.Join(errs...)
}

// setHostDefaults checks the settings about other hosts.
func (c *Config) setHostDefaults() error {
	or(&c.OtherHosts, otherhosts.Show)
	switch c.OtherHosts {
	case otherhosts.None, otherhosts.Show, otherhosts.ForceRelease:
	default:
		return settings.Refuse("other_hosts", fmt.Errorf("other-hosts %q: choose %s, %s or %s", c.OtherHosts, otherhosts.None, otherhosts.Show, otherhosts.ForceRelease))
	}
	if c.HostName == "" {
		c.HostName, _ = os.Hostname()
		if lookup.CheckHostName(c.HostName) != "" || c.HostName == "" {
			c.HostName = "unnamed"
		}
	}
	if why := lookup.CheckHostName(c.HostName); why != "" {
		return settings.Refuse("host_name", fmt.Errorf("host-name %q: %s", c.HostName, why))
	}
	return nil
}

// resolver finds users and groups of this host.
var resolver = policy.Resolver{
	User: func(name string) (int64, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(u.Uid, 10, 64)
	},
	Group: func(name string) (int64, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(g.Gid, 10, 64)
	},
}
