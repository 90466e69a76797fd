package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// dialer knows the way to one Redis, and which keys are ours there. Immutable.
type dialer struct {
	options redis.Options  // what the URL says; the address of the server, if group and nodes are nil
	group   *sentinelGroup // who says where the server is; nil: the URL does
	nodes   []string       // of a Cluster, host:port; nil: Redis is none
	wire.Server
	timeout time.Duration // of silence while an answer is owed
	tls     TLS
	channel string // of the sidecar

	replicas int // that must confirm what is done; 0: none
}

// parse reads the URL. What it says about a bad one never repeats the part that
// may be a password.
func parse(cfg Config) (*dialer, error) {
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
	d := &dialer{Server: wire.Server{Address: o.Addr, Keys: wire.NewKeyspace(cfg.KeyPrefix)}, timeout: cfg.Timeout, tls: cfg.TLS, channel: wire.OwnChannel(cfg.UUID), replicas: cfg.Replicas}
	if o.ClientName == "" {
		o.ClientName = "locksidecar"
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = 5 * time.Second
	}
	d.options = *o
	if u.Nodes != nil {
		d.nodes, d.Address = u.Nodes, strings.Join(u.Nodes, ",")
	}
	if u.Sentinel != nil {
		d.Address = u.Sentinel.Master
		if d.group, err = checkGroup(u.Sentinel, cfg.TLS, cfg.Timeout); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// at returns the way to the server at an address that Sentinels name, or a node of a Cluster. Nodes
// announce IP addresses, for which there are no certificates: then the certificate is to have the name
// of the URL.
func (d *dialer) at(address string) *dialer {
	to := *d
	to.IsNode = d.nodes != nil
	to.group, to.nodes, to.Address, to.options.Addr = nil, nil, address, address
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

// leadsTo reports whether two ways lead to the same Redis, perhaps with another user and password.
func (d *dialer) leadsTo(other *dialer) bool {
	return d.options.Network == other.options.Network && d.place() == other.place() && d.hasSentinelsOf(other) && (d.options.TLSConfig == nil) == (other.options.TLSConfig == nil)
}

// hasSentinelsOf reports whether two URLs have the same Sentinels, or none.
func (d *dialer) hasSentinelsOf(other *dialer) bool {
	if d.group == nil || other.group == nil {
		return d.group == other.group
	}
	return slices.Equal(slices.Sorted(slices.Values(d.group.Addresses)), slices.Sorted(slices.Values(other.group.Addresses)))
}

// notYet is the sentence for the time before the first connection.
func (d *dialer) notYet() string {
	if d.group != nil {
		return fmt.Sprintf("the master %q is not connected yet", d.group.Master)
	}
	return "Redis at " + d.Address + " is not connected yet"
}

// place is the address and the number of the database; or the name of the master, if Sentinels say
// where it is.
func (d *dialer) place() string { return d.Address + "/" + strconv.Itoa(d.options.DB) }

// A netConn is the socket under a link. It can be cut at any time by anybody.
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
func (d *dialer) dial(ctx context.Context, lost *lostAddresses) (*redisConn, error) {
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

// A readyConn is a link that has been probed and may run scripts. It is greeted by
// go-redis, which knows how (users, passwords, TLS, databases). Then it is switched to RESP3
// and subscribed to the sidecar's channel; a link takes it over.
type readyConn struct {
	*redisConn
	dial     *dialer // that made it
	conn     *redis.Conn
	in       *inputSource
	replies  *wire.Replies // of in, after the switch to RESP3
	refused  string        // why Redis refused the subscription to the sidecar's channel; "": it did not
	noQueue  string        // why this user may not use the queues of locks; "": it may
	noAsking string        // why a node of a Cluster refuses ASKING; "": it does not
	id       wire.Identity
	origin   wire.Origin // of what the server executes
	clock    int64       // the server's time at clockAt, µs
	clockAt  int64       // CLOCK_BOOTTIME in ns
	version  string      // of the server

	isClusterNode bool // although the URL does not say so
	isSharded     bool // it has sharded channels, and is a node of a Cluster

	loads  bool  // SCRIPT LOAD is permitted
	noRole bool  // ROLE is not: a ping is a PING
	killed error // why the earlier connection could not be ended; nil if it was, or there was none

	replication pipeline.Replication
	eviction    pipeline.Eviction
}

// exec sends cmds at once and reads all replies. Each cmd keeps its own error;
// the error returned is that of the connection, after which it must be closed.
func (s *readyConn) exec(cmds ...redis.Cmder) error {
	s.wire.SetDeadline(time.Now().Add(s.wire.patience))
	pipe := s.conn.Pipeline()
	pipe.BatchProcess(context.Background(), cmds...)
	_, first := pipe.Exec(context.Background())
	if first == nil {
		return nil
	}
	// first is the first error of all. A connection that breaks leaves its error in
	// every cmd that is still unanswered, so in the last; a greeting that Redis
	// refuses leaves it in none.
	if last := cmds[len(cmds)-1].Err(); last != nil && !isReply(last) {
		return last
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return nil
		}
	}
	return first
}

// isReply reports whether an error is a reply of Redis, and not one of the connection.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

func (s *readyConn) close() {
	s.wire.Close() // first: a pool looks at the health of what is given back
	s.conn.Close()
	s.redisConn.close()
}

// connect makes a connection that is ready: dials, greets, and finds out whether this Redis will
// do. last is the connection before it, if there was one, perhaps in another process:
// what may still run of that one is ended, and tokens go on from its floor.
func (d *dialer) connect(ctx context.Context, lost *lostAddresses, last wire.Identity) (*readyConn, error) {
	l, err := d.dial(ctx, lost)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { l.wire.Close() })
	defer stop()
	l.wire.patience = d.timeout
	s := &readyConn{redisConn: l, dial: d, conn: l.client.Conn()}
	if err = d.probe(s, last); err == nil {
		err = d.subscribe(s)
	}
	if err != nil {
		if why := d.unwelcome(l.wire.first); why != nil {
			err = why
		}
		lost.note(l.wire)
		s.close()
		return nil, err
	}
	return s, nil
}

// inputSource is where replies come from: the greeting's blocking reads, then the pipeline's.
type inputSource struct{ io.Reader }

// subscribe switches to RESP3, in which one connection has replies and messages, and subscribes
// to the sidecar's channel. go-redis does not use the connection any more.
func (d *dialer) subscribe(s *readyConn) error {
	s.in = &inputSource{s.wire}
	s.replies = wire.NewReplies(s.in)
	s.replies.Known = [...]string{"message", d.channel}
	text := wire.AppendString(wire.AppendString(wire.AppendArray(nil, 2), "hello"), "3")
	text = pipeline.AppendSubscribe(text, d.channel)
	s.wire.SetDeadline(time.Now().Add(s.wire.patience))
	if _, err := s.wire.Write(text); err != nil {
		return wire.Unavailable(d.broken(err))
	}
	hello, err := s.replies.Next()
	if err != nil {
		return wire.Unavailable(d.broken(err))
	}
	if hello.Kind != '%' {
		return d.noRESP3(hello)
	}
	answer, err := s.replies.Next()
	switch {
	case err != nil:
		return wire.Unavailable(d.broken(err))
	case answer.Kind == '-' && wire.OutcomeOf(wire.Code(answer.Text)) == redisop.Retryable:
		return wire.Unavailablef("Redis at %s does not accept the subscription of this sidecar: %s", d.Address, wire.Clip(answer.Text))
	case answer.Kind == '-':
		s.refused = wire.Reason(answer.Text)
	case answer.Kind != '>' || !wire.HasKinds(answer.List, "$$:") || answer.List[0].Text != "subscribe":
		return wire.Unavailable(d.broken(&wire.UnexpectedReply{Reply: answer}))
	}
	return nil
}

// probe fills in what s is to know, in two exchanges.
func (d *dialer) probe(s *readyConn, last wire.Identity) error {
	ctx := context.Background()
	hello := redis.NewSliceCmd(ctx, "hello", 2) // version, role and id, even where INFO is not permitted
	server := redis.NewStringCmd(ctx, "info", "server")
	replication := redis.NewStringCmd(ctx, "info", "replication")
	memory, stats := redis.NewStringCmd(ctx, "info", "memory"), redis.NewStringCmd(ctx, "info", "stats")
	clock := redis.NewTimeCmd(ctx, "time")
	exists := redis.NewCmd(ctx, append([]any{"script", "exists"}, digests(wire.Scripts)...)...)
	asRole := redis.NewCmd(ctx, "role")
	if err := s.exec(hello, server, replication, memory, stats, clock, exists, asRole); err != nil {
		return d.handshakeError(err)
	}
	s.note(exists.Err(), "+script|exists")
	s.note(asRole.Err(), "+role")
	s.noRole = asRole.Err() != nil
	answered := protocol.Now()
	info := wire.InfoFields(server.Val() + "\n" + replication.Val())
	greeting := helloFields(hello.Val())

	s.version = info["redis_version"]
	if s.version == "" {
		s.version, _ = greeting["version"].(string)
	}
	if s.version == "" && hello.Err() != nil {
		// Neither command tells the version. If it is not a matter of versions, the reason is here.
		return d.handshakeError(hello.Err())
	}
	mode, _ := greeting["mode"].(string)
	if mode == "" {
		mode = info["redis_mode"]
	}
	if mode == "sentinel" {
		return wire.Unavailablef("Redis at %s is a Sentinel, which has no locks; write redis+sentinel://%s/NAME with the name of the master that it watches", d.Address, d.Address)
	}
	if isCluster := mode == "cluster"; mode != "" && isCluster != d.IsNode {
		if d.IsNode {
			return wire.Unavailablef("Redis at %s is no node of a Cluster; write redis:// instead of redis+cluster://", d.Address)
		}
		s.isClusterNode = true
	}
	if tooOld(s.version) {
		return wire.Unavailablef("Redis at %s is %s; locksidecar needs 6.2 or newer", d.Address, s.version)
	}
	role := info["role"]
	if role == "" {
		role, _ = greeting["role"].(string)
	}
	if pipeline.IsReplica(role) {
		of := "another Redis"
		if info["master_host"] != "" {
			of = net.JoinHostPort(info["master_host"], info["master_port"])
		}
		return wire.Unavailablef("Redis at %s is a read-only replica of %s; %s", d.Address, of, wire.FailingOver)
	}
	if info["loading"] == "1" {
		return d.loading()
	}
	if err := clock.Err(); err != nil {
		return d.handshakeError(err)
	}
	s.id = wire.Identity{RunID: info["run_id"], ReplID: info["master_replid"] + "/" + strconv.Itoa(d.options.DB), Floor: clock.Val().UnixMicro(), FloorAt: answered}
	s.id.ClientID, _ = greeting["id"].(int64)
	s.origin = wire.OriginOf(s.id.RunID, role)
	s.replication.OnInfo(info)
	s.eviction.OnInfo(wire.InfoFields(memory.Val() + "\n" + stats.Val()))
	s.clock, s.clockAt = s.id.Floor, answered
	if last.Known() {
		// If a new master's clock is behind the old one's, tokens still grow.
		s.id.Floor = max(s.id.Floor, last.Above(answered))
	}

	// To load the scripts again that Redis knows would cost it as much as the rest of the connection.
	var cmds []redis.Cmder
	var load *redis.StringCmd // the last one; nil: Redis knows all
	for i, isKnown := range knownScripts(exists, len(wire.Scripts)) {
		if isKnown {
			continue
		}
		load = redis.NewStringCmd(ctx, "script", "load", wire.Scripts[i].Text)
		if cmds = append(cmds, load); wire.Scripts[i] == wire.Renew { // a user may be permitted this and not that
			cmds = append(cmds, redis.NewCmd(ctx, "eval", wire.Renew.Text, 0, "", 0))
		}
	}
	// A renewal of no lock shows whether this user may run scripts at all.
	evalsha := redis.NewCmd(ctx, "evalsha", wire.Renew.SHA, 0, "", 0)
	cmds = append(cmds, evalsha)
	// There is no lock whose name is empty, so this changes nothing.
	queue := d.Keys.Queue("")
	queueCmds := []redis.Cmder{
		redis.NewCmd(ctx, "zadd", queue, "xx", "0", "-"), redis.NewCmd(ctx, "zcard", queue), redis.NewCmd(ctx, "zrank", queue, "-"),
		redis.NewCmd(ctx, "zrange", queue, "0", "0"), redis.NewCmd(ctx, "zrem", queue, "-"), redis.NewCmd(ctx, "zpopmin", queue),
	}
	cmds = append(cmds, queueCmds...)
	var minimum *redis.Cmd
	if s.replication.Replicas > 0 {
		minimum = redis.NewCmd(ctx, "config", "get", pipeline.MinReplicas)
		cmds = append(cmds, minimum)
	}
	var sharded, asking *redis.Cmd
	if d.IsNode {
		// ASKING is about the command after it, and means nothing to that one.
		sharded, asking = redis.NewCmd(ctx, "pubsub", "shardnumsub"), redis.NewCmd(ctx, "asking")
		cmds = append(cmds, asking, sharded)
	}
	var wait *redis.Cmd
	if d.replicas > 0 {
		// For no replica, and answered at once: it shows whether this user may wait for some.
		wait = redis.NewCmd(ctx, "wait", 0, 0)
		cmds = append(cmds, wait)
	}
	var kill *redis.IntCmd
	if last.ClientID != 0 && s.id.SameServer(&last) {
		kill = redis.NewIntCmd(ctx, "client", "kill", "id", strconv.FormatInt(last.ClientID, 10))
		cmds = append(cmds, kill)
	}
	if err := s.exec(cmds...); err != nil {
		return d.handshakeError(err)
	}
	if err := evalsha.Err(); err != nil {
		return d.scriptError(err)
	}
	if wait != nil && wait.Err() != nil {
		return wire.Unavailable(pipeline.NoWait(&d.Server, wait.Err().Error()))
	}
	s.loads = load == nil || load.Err() == nil
	if minimum != nil {
		onMinimum(&s.replication, minimum)
	}
	// A user without +pubsub gets an error of another kind than a server that has no such channels.
	s.isSharded = sharded != nil && (sharded.Err() == nil || wire.Code(sharded.Err().Error()) == "NOPERM")
	if asking != nil && asking.Err() != nil {
		s.noAsking = asking.Err().Error()
	}
	for _, cmd := range queueCmds {
		if err := cmd.Err(); err != nil && wire.Code(err.Error()) == "NOPERM" {
			s.noQueue = err.Error()
			break
		}
	}
	if kill != nil {
		s.killed = kill.Err()
	}
	return nil
}

// digests are those of scripts, as arguments.
func digests(of []*wire.Script) (shas []any) {
	for _, sc := range of {
		shas = append(shas, sc.SHA)
	}
	return shas
}

// knownScripts returns which of n scripts Redis says it knows: none if it does not say it.
func knownScripts(exists *redis.Cmd, n int) []bool {
	knows := make([]bool, n)
	if answer, ok := exists.Val().([]any); ok && len(answer) == n {
		for i, v := range answer {
			knows[i] = v == int64(1)
		}
	}
	return knows
}

// onMinimum takes in the answer to CONFIG GET.
func onMinimum(r *pipeline.Replication, answer *redis.Cmd) {
	list, _ := answer.Val().([]any)
	if r.IsDenied = answer.Err() != nil; len(list) == 2 {
		text, _ := list[1].(string)
		r.OnMinimum(text)
	}
}

// risk is why two owners are possible, as far as the greeting shows it.
func (s *readyConn) risk() *pipeline.Risk {
	return &pipeline.Risk{Replication: s.replication, Eviction: s.eviction, Server: s.dial.Server, Durable: s.dial.replicas}
}

// helloFields reads the flat list of keys and values that HELLO answers.
func helloFields(list []any) map[string]any {
	fields := make(map[string]any)
	for i := 0; i+1 < len(list); i += 2 {
		if key, ok := list[i].(string); ok {
			fields[key] = list[i+1]
		}
	}
	return fields
}

// tooOld reports whether a version is below 6.2. One that cannot be read is not:
// relatives of Redis number themselves as they like.
func tooOld(version string) bool {
	majorText, rest, _ := strings.Cut(version, ".")
	minorText, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(majorText)
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(minorText)
	if err != nil {
		return major < 6
	}
	return major < 6 || major == 6 && minor < 2
}
