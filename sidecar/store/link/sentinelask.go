package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// sentinelGroup is what a URL says of Sentinels. Immutable.
type sentinelGroup struct {
	redisurl.Sentinel
	tls     TLS
	timeout time.Duration
}

// checkGroup returns the group of Sentinels of a URL.
func checkGroup(s *redisurl.Sentinel, t TLS, timeout time.Duration) (*sentinelGroup, error) {
	g := &sentinelGroup{Sentinel: *s, tls: t, timeout: timeout}
	g.tls.ServerName = "" // that of Redis
	if s.TLS {
		if _, err := g.tls.config(&tls.Config{}); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// client returns a client of one Sentinel. It connects when it is used.
func (g *sentinelGroup) client(address string) *redis.Client {
	dialer := net.Dialer{Timeout: g.timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return redis.NewClient(&redis.Options{
		Addr: address, Username: g.Username, Password: g.Password,
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			conn.ClientSetName(ctx, "locksidecar") // a courtesy: a user that may not is served
			return nil
		},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil || !g.TLS {
				return conn, err
			}
			host, _, _ := net.SplitHostPort(address)
			config, err := g.tls.config(&tls.Config{ServerName: host, MinVersion: tls.VersionTLS12})
			if err != nil {
				conn.Close()
				return nil, wire.Unavailable(err.Error())
			}
			return tls.Client(conn, config), nil
		},
		DialTimeout: g.timeout, ReadTimeout: g.timeout, WriteTimeout: g.timeout, ContextTimeoutEnabled: true,
		Protocol: 2, PoolSize: 1, PipelinePoolSize: -1, MaxRetries: -1, DialerRetries: 1, ConnMaxIdleTime: -1,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// askSentinel asks one Sentinel.
func askSentinel(ctx context.Context, client *redis.Client, m *sentinel.Member, name string) sentinel.View {
	v := sentinel.View{Member: m}
	id := redis.NewStringCmd(ctx, "sentinel", "myid")
	address := redis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", name)
	master := redis.NewMapStringStringCmd(ctx, "sentinel", "master", name)
	peers := redis.NewMapStringStringSliceCmd(ctx, "sentinel", "sentinels", name)
	pipe := client.Pipeline()
	pipe.BatchProcess(ctx, id, address, master, peers)
	_, failed := pipe.Exec(ctx)
	switch at := address.Val(); {
	case errors.Is(address.Err(), redis.Nil):
		v.Err = sentinel.ErrNotWatched
		return v
	case address.Err() != nil, len(at) != 2: // a greeting that is refused leaves no error in a command
		v.Err = cmp.Or(address.Err(), failed, sentinel.ErrNotWatched)
		return v
	case at[0] == "" || !sentinel.IsPort(at[1]):
		v.Err = fmt.Errorf("it names the address %s", wire.Clip(strings.Join(at, ":")))
		return v
	default:
		v.Master = net.JoinHostPort(at[0], at[1])
	}
	for _, err := range []error{id.Err(), master.Err(), peers.Err()} {
		if err != nil && strings.Contains(err.Error(), "NOPERM") {
			v.Denied = err
		}
	}
	v.RunID = id.Val()
	fields := master.Val()
	v.Epoch, _ = strconv.ParseInt(fields["config-epoch"], 10, 64)
	flags := strings.Split(fields["flags"], ",")
	isOfMaster := net.JoinHostPort(fields["ip"], fields["port"]) == v.Master // in a failover, the row may be of the old one
	v.IsDown = isOfMaster && slices.Contains(flags, "o_down")
	if slices.Contains(flags, "failover_in_progress") {
		if v.Lead = sentinel.LeadsTo; isOfMaster {
			v.Lead = sentinel.LeadsFrom
		}
	}
	for _, p := range peers.Val() {
		if host, port := p["ip"], p["port"]; p["runid"] != "" && host != "" && sentinel.IsPort(port) {
			isDown := strings.Contains(p["flags"], "_down") || strings.Contains(p["flags"], "disconnected")
			v.Peers = append(v.Peers, sentinel.Peer{RunID: p["runid"], Address: net.JoinHostPort(host, port), IsDown: isDown})
		}
	}
	return v
}

// silence is the sentence for Sentinels of which none names the master.
func (g *sentinelGroup) silence(views []sentinel.View) error {
	if len(views) == 0 {
		hint := ""
		if g.TLS { // a Sentinel without TLS takes the greeting for half a line and waits
			hint = " and answer in TLS on these ports, or remove sentinel_tls=true from the Redis URL"
		}
		return wire.Unavailablef("none of the Sentinels of the master %q answered within %v; check that they run%s", g.Master, g.timeout, hint)
	}
	slices.SortFunc(views, func(a, b sentinel.View) int { return strings.Compare(a.Member.Address, b.Member.Address) })
	var reasons []string
	for _, v := range views[:min(len(views), 5)] {
		reasons = append(reasons, v.Member.Address+": "+g.reason(v.Err))
	}
	return wire.Unavailablef("no Sentinel names the master %q (%s)", g.Master, strings.Join(reasons, "; "))
}

// reason is what is wrong with a Sentinel, and what to do.
func (g *sentinelGroup) reason(err error) string {
	var timeout net.Error
	var dns *net.DNSError
	var record tls.RecordHeaderError
	text := err.Error()
	if g.Password != "" {
		text = strings.ReplaceAll(text, g.Password, "…")
	}
	switch {
	case errors.Is(err, sentinel.ErrNotWatched), strings.Contains(text, "No such master"):
		return "it watches no master of this name; check it in the Redis URL"
	case errors.Is(err, sentinel.ErrStranger):
		return "it is of another group of Sentinels than the others; name those of one group in the Redis URL"
	case strings.Contains(text, "NOAUTH"):
		return "it wants a password; write sentinel_password=… as an option into the Redis URL, because the one before the @ is for Redis"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return "it does not accept the options sentinel_username and sentinel_password of the Redis URL"
	case strings.Contains(text, "NOPERM"):
		return "it does not permit this user what it needs; let its ACL have +sentinel|myid +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels +subscribe &" + sentinel.SwitchMaster + " &" + strings.Join(sentinel.FailoverChannels, " &") + " (" + wire.Clip(text) + ")"
	case strings.Contains(text, "unknown command"):
		return "it is not a Sentinel; check its port, or write redis:// for a Redis without Sentinel"
	case errors.As(err, &dns):
		return "the host cannot be found (" + dns.Err + ")"
	case g.TLS && (errors.As(err, &record) || isEOF(err)):
		return "it does not answer in TLS; remove sentinel_tls=true from the Redis URL, or name its TLS port"
	case strings.Contains(text, "protected mode"):
		return "it is in protected mode, and accepts connections of its own host only; let it require a password (requirepass), and write sentinel_password=… into the Redis URL"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		if g.TLS {
			return "it did not answer in time; if it does so without TLS, remove sentinel_tls=true from the Redis URL"
		}
		return "it did not answer in time"
	case isEOF(err):
		return "it closed the connection; it may want TLS (sentinel_tls=true)"
	}
	return wire.Clip(text)
}
