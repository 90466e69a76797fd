package link

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A readyConn is a link that has been probed and may run scripts. It is greeted by
// go-redis, which knows how (users, passwords, TLS, databases). Then it is switched to RESP3
// and subscribed to the sidecar's channel; a link takes it over.
type readyConn struct {
	*redisConn
	dial     *Dialer // that made it
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

func (s *readyConn) close() {
	s.wire.Close() // first: a pool looks at the health of what is given back
	s.conn.Close()
	s.redisConn.close()
}

// connect makes a connection that is ready: dials, greets, and finds out whether this Redis will
// do. last is the connection before it, if there was one, perhaps in another process:
// what may still run of that one is ended, and tokens go on from its floor.
func (d *Dialer) connect(ctx context.Context, lost *lostAddresses, last wire.Identity) (*readyConn, error) {
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
func (d *Dialer) subscribe(s *readyConn) error {
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
func (d *Dialer) probe(s *readyConn, last wire.Identity) error {
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
		return wire.Unavailablef("Redis at %s is a read-only replica of %s; %s", d.Address, of, d.FailingOver())
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

// greeting is what the Machine is to know of a connection.
func (s *readyConn) greeting(number uint32) *pipeline.Greeting {
	return &pipeline.Greeting{
		Server: s.dial.Server, At: s.dial.options.Addr, ID: s.id, Origin: s.origin, Number: number, Clock: s.clock, ClockAt: s.clockAt,
		HasQueues: s.noQueue == "", IsSharded: s.isSharded, Loads: s.loads, NoRole: s.noRole, Lacks: s.lacks,
		Replication: s.replication, Eviction: s.eviction,
	}
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
