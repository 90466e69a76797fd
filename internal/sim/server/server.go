package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// World is what is around a server.
type World interface {
	// Now is the time, ns, and what TIME returns at a server, µs.
	Now(s *Server) (now, clock int64)

	// Execute executes an operation of a run, and returns the owner field or the description of what has the key, if
	// something else does.
	Execute(c *Conn, r *Run, i int) (reply redis.Reply, field string)

	// Slot is what a node knows of the slot of a lock, and which of its keys the node has.
	Slot(s *Server, name string) (Slot, KeySet)

	// Send sends a reply or a push over a connection.
	Send(c *Conn, reply wire.Reply)

	// Publish carries what was published on a channel of a sidecar to other servers.
	Publish(s *Server, channel, text string)

	// Confirmed is how many replicas have confirmed all that a connection wrote, when a WAIT for so many ends.
	Confirmed(c *Conn, replicas int) int
}

// Server is one process.
type Server struct {
	Keys      wire.Keyspace
	Address   string   // as nodes name it
	Prefixes  []string // of owner fields, by owner
	IsNode    bool     // of a Cluster
	IsReplica bool
	Replicas  int    // that are connected
	Items     *Items // nil: lists are not used again

	IsBusy bool // a script of another client does not end

	// PushesLast: what a command publishes to its own connection comes after its reply.
	PushesLast bool

	// AsksUnsubscribe: a SUNSUBSCRIBE is answered with ASK while its slot is on its way to another node, and ends nothing, as
	// in Redis 7.4 to 8.2.
	AsksUnsubscribe bool

	// AsksForAny: while its slot is on its way to another node, a run of which one key is missing is answered with ASK, as in
	// Redis 6.2, and not with TRYAGAIN because others are here.
	AsksForAny bool

	world   World
	scripts [6]bool // of wire.Scripts, that it knows
	conns   []*Conn // in the order in which they were made

	channels map[string]string // of locks, by name
	own      []string          // of sidecars, by owner
}

// Items has lists that were given back, by how many items they have room for. The servers of a world share them.
type Items struct{ free [16][][]answer }

// Free takes back the list of a reply that is not used any more.
func (f *Items) Free(r *answer) {
	n := len(r.List)
	if n == 0 || n >= len(f.free) || cap(r.List) != n {
		return
	}
	for i := range r.List {
		f.Free(&r.List[i])
	}
	clear(r.List)
	f.free[n] = append(f.free[n], r.List)
}

func (f *Items) room(n int) []answer {
	if f == nil || n >= len(f.free) || len(f.free[n]) == 0 {
		return make([]answer, n)
	}
	last := len(f.free[n]) - 1
	items := f.free[n][last]
	f.free[n] = f.free[n][:last]
	return items
}

// Conn is a connection to a server.
type Conn struct {
	Server *Server
	ID     int32 // its user's
	User   *User
	Owner  redis.Owner // whose it is

	HasWritten bool // since its user last said that it had not

	channels []subscription // in the order in which they were subscribed
	isAsking bool           // ASKING came before
	later    []wire.Reply   // pushes after the reply
	isBusy   bool           // a command is executed
}

type subscription struct {
	channel   string
	isSharded bool
}

// User is what the ACL denies. The zero value is permitted everything.
type User struct {
	Commands map[string]bool // not permitted, as the ACL names them: script|load
	Lock     func(name string) bool
	Channel  func(channel string) bool
}

func (u *User) denies(command string) bool { return u.Commands[command] }

// New returns a server that knows no script.
func New(w World) *Server { return &Server{world: w} }

// Connect makes a connection.
func (s *Server) Connect(id int32, owner redis.Owner, user *User) *Conn {
	c := &Conn{Server: s, ID: id, Owner: owner, User: user}
	s.conns = append(s.conns, c)
	return c
}

// Disconnect ends one.
func (c *Conn) Disconnect() {
	c.Server.conns = slices.DeleteFunc(c.Server.conns, func(d *Conn) bool { return c == d })
}

// Conns are the connections, in the order in which they were made.
func (s *Server) Conns() []*Conn { return s.conns }

// FlushScripts has the server forget all scripts.
func (s *Server) FlushScripts() { s.scripts = [6]bool{} }

// Learn teaches the server all scripts, as a greeting does.
func (s *Server) Learn() { s.scripts = [6]bool{true, true, true, true, true, true} }

func (s *Server) knows(of *wire.Script) *bool {
	for i, known := range wire.Scripts {
		if known == of {
			return &s.scripts[i]
		}
	}
	return new(bool)
}

// An answer is a reply; the zero value is none.
type answer = wire.Reply

func failed(text string) answer { return answer{Kind: '-', Text: text} }

func ok(text string) answer { return answer{Kind: '$', Text: text} }

func integer(n int64) answer { return answer{Kind: ':', Num: n} }

func (s *Server) list(items ...answer) answer {
	made := s.Items.room(len(items))
	copy(made, items)
	return answer{Kind: '*', List: made}
}

// Do executes a command.
func (s *Server) Do(c *Conn, cmd *Command) {
	wasAsking := c.isAsking
	c.isAsking = false
	c.isBusy = s.PushesLast
	if r := s.answer(c, cmd, wasAsking); r.Kind != '>' {
		s.world.Send(c, r)
	}
	c.isBusy = false
	for _, push := range c.later {
		s.world.Send(c, push)
	}
	c.later = c.later[:0]
}

// none is the answer of what answers with pushes.
var none = answer{Kind: '>'}

func (s *Server) answer(c *Conn, cmd *Command, wasAsking bool) answer {
	name := cmd.Words[0]
	switch name {
	case "script":
		name = "script|load"
	case "config":
		name = "config|get"
	}
	if c.User.denies(name) {
		return failed("NOPERM this user has no permissions to run the '" + name + "' command")
	}
	switch cmd.Words[0] {
	case "evalsha", "eval":
		return s.runScript(c, cmd, wasAsking)
	case "script":
		if cmd.Script == nil {
			return failed("ERR a script that the model does not know")
		}
		*s.knows(cmd.Script) = true
		return ok(cmd.Script.SHA)
	case "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe":
		return s.subscribe(c, cmd.Words)
	case "ping":
		return ok("PONG")
	case "asking":
		c.isAsking = true
		return ok("OK")
	case "time":
		_, clock := s.world.Now(s)
		return s.list(ok(strconv.FormatInt(clock/1e6, 10)), ok(strconv.FormatInt(clock%1e6, 10)))
	case "role":
		return s.role()
	case "wait":
		if s.IsReplica {
			return failed("ERR WAIT cannot be used with replica instances. Please also note that writes to replicas are just local and are not propagated.")
		}
		n, _ := strconv.Atoi(cmd.Words[1])
		return integer(int64(s.world.Confirmed(c, n)))
	case "config":
		return answer{Kind: '%', List: []answer{ok(cmd.Words[2]), ok("0")}}
	case "info":
		return ok("# " + cmd.Words[1] + "\r\n")
	}
	return failed("ERR unknown command '" + cmd.Words[0] + "'")
}

func (s *Server) role() answer {
	if s.IsReplica {
		return s.list(ok("slave"), ok("127.0.0.1"), integer(0), ok("connect"), integer(-1))
	}
	replicas := make([]answer, s.Replicas)
	for i := range replicas {
		replicas[i] = s.list(ok("127.0.0.1"), ok("0"), ok("0"))
	}
	return s.list(ok("master"), integer(0), s.list(replicas...))
}

// --- Scripts ---

func (s *Server) runScript(c *Conn, cmd *Command, wasAsking bool) answer {
	r := &cmd.Run
	if c.User.Lock != nil && slices.ContainsFunc(r.Ops, func(op redisop.Op) bool { return c.User.Lock(op.Name) }) {
		return failed("NOPERM this user has no permissions to access one of the keys used as arguments")
	}
	if s.IsNode {
		if text := s.redirect(r, wasAsking); text != "" {
			return failed(text)
		}
	}
	if s.IsBusy {
		return failed("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")
	}
	known := s.knows(cmd.Script)
	if cmd.ByText {
		*known = true
	}
	if !*known {
		return failed("NOSCRIPT No matching script. Please use EVAL.")
	}
	if cmd.Script == wire.Permissions {
		return s.list(lacks(c, cmd.Words[1])...)
	}
	statuses := s.Items.room(len(r.Ops))
	areZero := true
	for i := range r.Ops {
		reply, field := s.world.Execute(c, r, i)
		r.onReply(i, &reply)
		switch r.Ops[i].Of {
		case redisop.KindPermits:
			statuses[i] = s.permitsStatus(&r.Ops[i], &reply, field)
		case redisop.KindReadWrite:
			statuses[i] = s.readWriteStatus(&r.Ops[i], &reply, field)
		default:
			statuses[i] = s.status(&r.Ops[i], &reply, field)
		}
		areZero = areZero && statuses[i].Kind == ':' && statuses[i].Num == 0
		c.HasWritten = c.HasWritten || writes(r, i, &reply)
		if reply.Publication == redis.Published {
			s.PublishLock(r.Ops[i].Name, r.IsSharded)
		}
		for j := range reply.Sent {
			s.send(r, &reply.Sent[j])
		}
	}
	switch {
	case cmd.Script == wire.Renew && areZero:
		return integer(int64(len(statuses)))
	case cmd.Script == wire.AcquireRelease && len(statuses) == 1:
		return statuses[0]
	}
	return answer{Kind: '*', List: statuses}
}

// writes reports whether replicas get something of an operation.
func writes(r *Run, i int, reply *redis.Reply) bool {
	switch op := &r.Ops[i]; {
	case reply.Change != redis.Nothing, reply.Token != 0, reply.IsQueued, reply.Publication == redis.Published, len(reply.Sent) > 0:
		return true
	case op.Kind == redisop.Take:
		return r.Confirms && reply.Outcome == redisop.HeldByOther
	default:
		return r.Confirms && reply.Outcome == redisop.Done
	}
}

// lacks is what the script of permissions returns. With a channel, it has the commands that locks do without, too.
func lacks(c *Conn, channel string) (refused []answer) {
	try := func(names ...string) {
		for _, name := range names {
			if c.User.denies(name) {
				refused = append(refused, ok(name), ok("ERR"))
			}
		}
	}
	try("exists", "hlen", "hkeys", "hget", "hdel", "pttl", "pexpire", "set")
	if channel != "" {
		try("pexpireat", "persist", "type", "pubsub", "publish")
		if !c.User.denies("publish") && c.User.Channel != nil && c.User.Channel(channel) {
			refused = append(refused, ok("publish"), ok("ERR"))
		}
	}
	try("del", "hset", "incrby")
	return refused
}

// --- Statuses ---

func code(c wire.StatusCode) answer { return integer(int64(c)) }

func (s *Server) status(op *redisop.Op, r *redis.Reply, field string) answer {
	counted, n := integer(int64(r.Listeners.State)), integer(int64(r.Listeners.N))
	rank, ticket, arrived := integer(int64(r.Rank)), integer(int64(r.Ticket)), integer(int64(r.Arrived))
	switch r.Outcome {
	case redisop.Refused, redisop.Retryable:
		return s.list(code(wire.CodeRefused), ok(r.Code+" refused"))
	case redisop.NotALock:
		return s.list(code(wire.CodeNotALock), ok(field))
	case redisop.KeyMissing:
		return s.list(code(wire.CodeMissing))
	case redisop.Differs:
		return s.list(code(wire.CodeDiffers))
	case redisop.HeldByOther:
		switch {
		case r.LeftFree && r.IsQueued:
			return s.list(code(wire.CodeFreeQueued), counted, n, rank, ticket, arrived)
		case r.LeftFree:
			return s.list(code(wire.CodeFree), counted, n)
		case r.IsQueued:
			return s.list(code(wire.CodeQueued), integer(r.TTLMS), ok(field), counted, n, rank, ticket, arrived, integer(int64(r.Recall)))
		}
		return s.list(code(wire.CodeHeld), integer(r.TTLMS), ok(field), counted, n)
	}
	switch op.Kind {
	case redisop.Arrive:
		return s.list(code(wire.CodeArrived), arrived, integer(int64(r.FirstArrived)))
	case redisop.Take:
		if isUsual := !r.Made && r.Waiting == 0 && r.Token != 0 && r.Ticket == 0; isUsual && r.Listeners.State == redisop.Uncounted {
			return integer(int64(r.Token))
		}
		made := int64(0)
		if r.Made {
			made = 1
		}
		return s.list(code(wire.CodeTaken), integer(int64(r.Token)), integer(made), integer(int64(r.Waiting)), ticket, counted, n)
	case redisop.Drop:
		switch {
		case r.Passed:
			return s.list(code(wire.CodePassed), integer(int64(r.Waiting)))
		case r.Paused:
			return s.list(code(wire.CodePaused), counted, n)
		case r.Publication == redis.Published && r.Listeners == redisop.CountedListeners(0) && !r.Counted:
			return integer(0)
		}
		return s.list(code(wire.CodeDropped), counted, n)
	}
	return integer(0)
}

// permitsStatus is the status of an operation of a semaphore.
func (s *Server) permitsStatus(op *redisop.Op, r *redis.Reply, field string) answer {
	permits := integer(int64(r.Permits))
	switch {
	case r.Outcome == redisop.Differs:
		return s.list(code(wire.CodeLater))
	case r.Outcome == redisop.HeldByOther && field == "":
		isQueued := int64(0)
		if r.IsQueued {
			isQueued = 1
		}
		return s.list(code(wire.CodeWanted), permits, integer(r.TTLMS), integer(isQueued), integer(int64(r.Rank)), integer(int64(r.Arrived)), integer(int64(r.Recall)))
	case r.Outcome != redisop.Done:
		return s.status(op, r, field)
	case op.Kind == redisop.Drop && r.Waiting == 0, op.Kind != redisop.Take && op.Kind != redisop.Drop && r.Permits == op.Count:
		return integer(0)
	case op.Kind == redisop.Take && r.Waiting == 0 && r.Token != 0 && r.Permits == op.Count+uint32(op.Want):
		return integer(int64(r.Token))
	}
	return s.list(code(wire.CodePermitted), permits, integer(int64(r.Token)), integer(int64(r.Waiting)))
}

// readWriteStatus is the status of an operation of a read/write lock.
func (s *Server) readWriteStatus(op *redisop.Op, r *redis.Reply, field string) answer {
	made := int64(0)
	if r.Made {
		made = 1
	}
	isCounted := r.Waiting != 0 || r.Queues != 0 || r.Made
	goal := op.Count
	if goal == 0 {
		goal = uint32(op.Want)
	}
	switch {
	case r.Outcome == redisop.Differs:
		return s.list(code(wire.CodeLater))
	case r.Outcome == redisop.HeldByOther && r.Arrived != 0:
		phase := int64(0)
		if r.Permits > 0 {
			phase = 1
		} else if field != "" {
			phase = 2
		}
		return s.list(code(wire.CodeAway), integer(phase), integer(int64(r.Permits)), integer(r.TTLMS), ok(field), integer(int64(r.Queues)), integer(int64(r.Rank)), integer(int64(r.Arrived)), integer(int64(r.Recall)))
	case r.Outcome != redisop.Done:
		return s.status(op, r, field)
	case op.Kind == redisop.Drop && !isCounted, op.Kind == redisop.Renew, op.Kind == redisop.Check:
		return integer(0)
	case op.Kind == redisop.Take && !isCounted && r.Token != 0 && r.Permits == goal:
		return integer(int64(r.Token))
	}
	return s.list(code(wire.CodeShares), integer(int64(r.Permits)), integer(int64(r.Token)), integer(made), integer(int64(r.Waiting)), integer(int64(r.Queues)))
}

// --- Subscriptions ---

func (s *Server) subscribe(c *Conn, words []string) answer {
	isSharded, verb := strings.HasPrefix(words[0], "ss") || words[0] == "sunsubscribe", words[0]
	ends := strings.HasSuffix(verb, "unsubscribe")
	for _, channel := range words[1:] {
		if !ends && c.User.Channel != nil && c.User.Channel(channel) {
			return failed("NOPERM this user has no permissions to access one of the channels used as arguments")
		}
	}
	if s.IsNode && isSharded {
		if slot, _ := s.world.Slot(s, nameOf(s.Keys, words[1])); slot.Place == Elsewhere || slot.Place == Importing {
			return failed(slot.redirect("MOVED", s.Keys.SlotOf(nameOf(s.Keys, words[1]))))
		} else if slot.Place == Nowhere {
			return failed(clusterDown)
		} else if slot.Place == Migrating && ends && s.AsksUnsubscribe {
			return failed(slot.redirect("ASK", s.Keys.SlotOf(nameOf(s.Keys, words[1]))))
		}
	}
	for _, channel := range words[1:] {
		sub := subscription{channel, isSharded}
		at := slices.Index(c.channels, sub)
		switch {
		case ends && at >= 0:
			c.channels = slices.Delete(c.channels, at, at+1)
		case !ends && at < 0:
			c.channels = append(c.channels, sub)
		}
		s.push(c, verb, channel, integer(c.subscribed(isSharded)))
	}
	return none
}

// subscribed is how many channels of a kind a connection has.
func (c *Conn) subscribed(isSharded bool) (n int64) {
	for _, sub := range c.channels {
		if sub.isSharded == isSharded {
			n++
		}
	}
	return n
}

// IsSubscribed reports whether a connection is subscribed to a channel.
func (c *Conn) IsSubscribed(channel string) bool {
	return slices.ContainsFunc(c.channels, func(sub subscription) bool { return sub.channel == channel })
}

// SubscribeOwn subscribes a connection to the channel of a sidecar, as its greeting does.
func (c *Conn) SubscribeOwn(channel string) {
	c.channels = append(c.channels, subscription{channel, false})
}

// EndSlot ends the subscriptions to the channel of a lock whose slot leaves the server.
func (s *Server) EndSlot(name string) {
	channel := s.channelOf(name)
	for _, c := range s.conns {
		if at := slices.Index(c.channels, subscription{channel, true}); at >= 0 {
			c.channels = slices.Delete(c.channels, at, at+1)
			s.push(c, "sunsubscribe", channel, integer(c.subscribed(true)))
		}
	}
}

// nameOf is the lock that has a channel.
func nameOf(keys wire.Keyspace, channel string) string {
	name := strings.TrimPrefix(channel, wire.ChannelPrefix)
	if name = strings.TrimPrefix(name, "{"+keys.Prefix); strings.HasSuffix(name, "}") {
		name = name[:len(name)-1]
	}
	return name
}

// channelOf is the channel of a lock.
func (s *Server) channelOf(name string) string {
	channel, ok := s.channels[name]
	if !ok {
		channel = s.Keys.Channel(name)
		if s.channels == nil {
			s.channels = make(map[string]string)
		}
		s.channels[name] = channel
	}
	return channel
}

// PublishLock publishes the release of a lock to the subscribers of its channel.
func (s *Server) PublishLock(name string, isSharded bool) {
	channel, verb := s.channelOf(name), "message"
	if isSharded {
		verb = "smessage"
	}
	for _, c := range s.conns {
		if slices.Contains(c.channels, subscription{channel, isSharded}) {
			s.push(c, verb, channel, ok("0"))
		}
	}
}

// PublishOwn publishes a text on the channel of a sidecar to the subscribers here.
func (s *Server) PublishOwn(channel, text string) {
	for _, c := range s.conns {
		if slices.Contains(c.channels, subscription{channel, false}) {
			s.push(c, "message", channel, ok(text))
		}
	}
}

// Receivers is how many connections are subscribed to a channel.
func (s *Server) Receivers(channel string) (n int32) {
	for _, c := range s.conns {
		if c.IsSubscribed(channel) {
			n++
		}
	}
	return n
}

// OwnChannel is the channel of the sidecar with a number.
func (s *Server) OwnChannel(owner redis.Owner) string {
	for len(s.own) < len(s.Prefixes) {
		s.own = append(s.own, wire.OwnChannel(strings.TrimSuffix(s.Prefixes[len(s.own)], ":")))
	}
	return s.own[owner]
}

// send publishes a message to a sidecar.
func (s *Server) send(r *Run, m *redis.Sent) {
	if int(m.To) >= len(s.Prefixes) || !wire.IsUUID(strings.TrimSuffix(s.Prefixes[m.To], ":")) {
		return
	}
	channel, text := s.OwnChannel(m.To), Text(&m.Message, r.Origin, s.Prefixes[m.To], s.Keys)
	if m.Reached > 0 {
		s.PublishOwn(channel, text)
	}
	s.world.Publish(s, channel, text)
}

// Text is a message to the sidecar whose owner fields have a prefix, as its script sends it: see queue.lua.
func Text(m *redisop.Message, origin, prefix string, keys wire.Keyspace) string {
	isNew := prefix[14] == '8'
	word := func(w string) string {
		if isNew {
			return w + ":" + origin
		}
		return w
	}
	key := keys.Key(m.Name)
	switch m.Kind {
	case redisop.Transferred:
		tokens := m.Tokens
		if !isNew {
			tokens = min(tokens, redisop.PassedTokensOld)
		}
		text := append(make([]byte, 0, 128), word("transfer")...)
		for _, n := range [...]uint64{m.Ticket, m.LastToken, uint64(tokens), uint64(m.LeaseMS), uint64(m.Waiting), uint64(m.PassedMS)} {
			text = strconv.AppendUint(append(text, ' '), n, 10)
		}
		return string(append(append(text, ' '), key...))
	case redisop.Admitted:
		if m.Of == redisop.KindReadWrite {
			return fmt.Sprintf("%s r %d %d %d %d %d %d %s", word("admit"), m.Ticket, m.Units, m.LastToken, m.Tokens, m.LeaseMS, m.Waiting, key)
		}
		return fmt.Sprintf("%s p %d %d %d %d %d %d %s", word("admit"), m.Ticket, m.Units, m.LastToken, m.Tokens, m.LeaseMS, m.Waiting, key)
	case redisop.Recalled:
		switch m.Of {
		case redisop.KindPermits:
			return word("return") + " p " + key
		case redisop.KindReadWrite:
			return word("return") + " r " + key
		}
		return word("recall") + " " + key
	case redisop.Freed:
		return word("free") + " " + strconv.FormatUint(uint64(m.PauseMS), 10) + " " + key
	case redisop.Requeue:
		if isNew {
			return word("requeue") + " " + strconv.FormatUint(m.Ticket, 10) + " " + key
		}
		return "requeue " + key
	}
	panic("a message that no script sends")
}

func (s *Server) push(c *Conn, verb, channel string, last answer) {
	push := answer{Kind: '>', List: s.list(ok(verb), ok(channel), last).List}
	if isMessage := verb == "message" || verb == "smessage"; isMessage && c.isBusy {
		c.later = append(c.later, push)
		return
	}
	s.world.Send(c, push)
}
