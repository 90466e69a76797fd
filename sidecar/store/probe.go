package store

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A probe takes and drops a lock of the sidecars' own by the script that acquires and releases
// execute: so it needs every command, key and byte of memory that they need. Script and lock are
// the same on all hosts. The lock is free again when the script ends; what stays is its token
// counter, which expires.
//
// A Redis that executes the probe may refuse an acquire for a reason of its lock only. A Redis
// that refuses the probe is degraded:
//
//	         refused for good, or twice
//	serving ───────────────────────────► degraded
//	   ▲                                     │
//	   └─────────────────────────────────────┘
//	                 executed
//
// A probe without a reply decides nothing: the liveness of the connection does.
//
// Before it, the commands of all scripts are tried: renewals, and an acquire that meets another host's
// lock, need more than the probe. A Redis that does not permit one of them is degraded at once, by its name.
type probe struct {
	encoder  encoder
	interval int64  // ns; 0: no probes
	lock     string // that is taken

	inFlight bool
	sentAt   int64  // of the last one
	next     int64  // when the next one is sent, while none is in flight
	refusals int    // in a row
	why      string // Redis is degraded; "": it serves
	lacks    string // the same, because this user may not execute a command

	// Without a key prefix, an ACL may permit the locks of clients and not that of the probe.
	// These decide then; see isConclusive.
	passed      bool // a probe was executed on this connection
	takeServed  bool // a Take was, since the last probe that was
	takeRefused bool // the same
}

const (
	// probeLock is the name of the probe's lock. Reserved keeps clients from it.
	probeLock = "locksidecar_probe"

	// permissionsPrefix is that of the key on which commands are tried.
	permissionsPrefix = "locksidecar_permissions:"

	// probeLease is how long the lock stays if Redis permits the Take and not the Drop.
	probeLease = time.Second

	// probeConfirm is the time between a refusal that may pass and the next probe, and the least
	// time between two probes.
	probeConfirm = time.Second

	// probeDegraded is the time between two probes of a degraded Redis.
	probeDegraded = 5 * time.Second
)

// beginProbes prepares the probes of a connection. The first one is sent at once.
func (p *pipeline) beginProbes() {
	b := &p.probe
	b.interval = int64(p.commands.cfg.ProbeInterval)
	b.encoder, b.lock = p.encoder, probeLock
	b.encoder.expiry = 2 * time.Duration(b.interval).Milliseconds()
}

// checkProbe queues a probe if one is due, and returns when to check again, at the latest. The
// caller holds mu, and flushes.
func (p *pipeline) checkProbe(now int64) (next int64) {
	b := &p.probe
	switch {
	case b.interval == 0, b.inFlight, p.durability.inFlight, p.commands.closing, !p.canSubscribe(): // a reply, or the end of the connection, changes that
		return now + int64(time.Hour)
	case now < b.next:
		return b.next
	}
	if !p.chooseProbeLock() {
		b.next = now + min(int64(probeDegraded), b.interval)
		return b.next
	}
	p.queuePermissions(now)
	b.inFlight, b.sentAt = true, now
	p.register(now, call{form: probing})
	lease := uint32(probeLease.Milliseconds())
	ops := []redisop.Op{
		{Kind: redisop.Take, Name: b.lock, HoldID: 1, Count: 1, LeaseMS: lease, Asked: redisop.Asked{Reserve: 1}},
		{Kind: redisop.Drop, Name: b.lock, HoldID: 1},
	}
	p.out.Queued = b.encoder.run(p.out.Queued, byDigest, acquireRelease, now, p.id.floor(now), ops)
	p.durability.owed = p.durability.replicas > 0 // a host that locks nothing finds a lost replica, and its return
	p.queueWait(now)
	if b.passed {
		p.ping(now) // a busy connection is asked for its role, too
		p.askEviction(now)
	}
	return now + int64(time.Hour)
}

// queuePermissions queues the question which commands this user may execute: the first time, also of
// those that locks do without. The caller holds mu.
func (p *pipeline) queuePermissions(now int64) {
	form, channel, isSharded := byDigest, "", int64(0)
	if !p.loads {
		form = byText
	}
	if p.probe.sentAt == 0 {
		channel = p.dial.keys.channel(p.probe.lock)
	}
	if p.encoder.isSharded {
		isSharded = 1
	}
	p.register(now, call{form: permitted})
	out := appendCommand(p.out.Queued, form, permissions, 1, 2)
	out = p.dial.keys.appendOurs(out, permissionsPrefix, p.probe.lock)
	out = appendString(out, channel)
	p.out.Queued = appendNumber(out, isSharded)
}

// onPermissions takes in which commands are refused, of the oldest call, and returns the permissions that
// locks do without. The reply to the probe follows, and decides. The caller holds mu.
func (p *pipeline) onPermissions(answer reply) (optional []string) {
	p.onAnswered()
	if code(answer.text) == "NOSCRIPT" && !p.scriptLoading[permissions] {
		p.scriptLoading[permissions] = true
		p.register(p.now, call{form: loading, script: permissions})
		p.out.Queued = appendLoad(p.out.Queued, permissions)
	}
	if answer.kind != '*' {
		return nil // the reply to the probe says more
	}
	optional = p.lacks // of the greeting
	p.lacks = nil
	var needed []string
	text := ""
	for i := 0; i+1 < len(answer.list); i += 2 {
		switch name := answer.list[i].text; name {
		case "exists", "hlen", "hkeys", "hget", "hdel", "hset", "pttl", "pexpire", "set", "incrby", "del":
			needed = append(needed, "+"+name)
			text = cmp.Or(text, reason(answer.list[i+1].text))
		default:
			optional = append(optional, "+"+name)
		}
	}
	if p.probe.lacks = ""; len(needed) > 0 {
		p.probe.lacks = p.dial.lacks(needed, text)
	}
	return optional
}

// reportOptional logs permissions that this user lacks, and that locks do without.
func (c *commands) reportOptional(permissions []string) {
	c.cfg.Log.Info("the Redis user lacks permissions that are useful and not required; deploy/README.md says what each is for", "permissions", strings.Join(permissions, " "))
}

// lacks is the sentence for a Redis that refuses commands, the first of them with text.
func (d *dialer) lacks(permissions []string, text string) string {
	names := strings.ReplaceAll(strings.Join(permissions, ", "), "+", "")
	if strings.Contains(text, "Unknown Redis command") {
		return fmt.Sprintf("Redis at %s does not know %s, which locks need: remove its rename-command from redis.conf (%s)", d.address, names, clip(text))
	}
	return fmt.Sprintf("Redis at %s does not permit this user %s, which acquires or renewals need; let its ACL have %s (%s)",
		d.address, names, strings.Join(permissions, " "), clip(text))
}

// chooseProbeLock has the probe take a lock of this server. In a Cluster, its name has a number, with which
// its slot is one of those of the server. False: the server has no slot.
func (p *pipeline) chooseProbeLock() bool {
	cl, keys := p.commands.cluster, &p.dial.keys
	if cl == nil || cl.has(p.commands.shard, keys.key(p.probe.lock)) {
		return true
	}
	if keys.tagged {
		return false // all names are in the slot of the tag, at another master
	}
	for i := range 4 * redisop.Slots {
		p.probe.lock = probeLock + strconv.Itoa(i)
		if cl.has(p.commands.shard, keys.key(p.probe.lock)) {
			return true
		}
	}
	return false
}

// isProbeLock reports whether a lock is one that sidecars use to probe Redis.
func isProbeLock(name string) bool {
	number, ok := strings.CutPrefix(name, probeLock)
	return ok && strings.Trim(number, "0123456789") == ""
}

// onProbeReply takes in the reply to a probe, which is the oldest call. The caller holds mu.
func (p *pipeline) onProbeReply(answer reply) {
	p.onAnswered()
	b := &p.probe
	b.inFlight = false
	defer p.commands.nudge() // for the next one
	text := refusedProbe(answer)
	word := code(text)
	switch {
	case text == "":
		b.passed, b.takeServed, b.takeRefused = true, false, false
		b.refusals, b.why = 0, ""
	case endsSession(word):
		if p.drainReason == "" {
			p.drainReason = p.dial.answered(probeLock, text)
		}
	case word == "NOSCRIPT": // the next operation loads it
	case p.noteRedirect(text), p.commands.cluster != nil && (word == "ASK" || word == "TRYAGAIN"): // the slot is on its way to another node
	case deniesKey(text) && !b.isConclusive(p.dial.keys.prefix):
		b.refusals, b.why = 0, ""
	default:
		b.refusals++
		if b.why != "" || b.refusals > 1 || outcomeOf(word) == redisop.Refused {
			b.why = p.dial.degraded(text)
		}
	}
	switch {
	case b.why != "", b.lacks != "", p.durability.why != "":
		b.next = p.now + min(int64(probeDegraded), b.interval)
	case b.refusals > 0:
		b.next = p.now + min(int64(probeConfirm), b.interval)
	default:
		b.next = p.now + b.interval
	}
}

// probeSoon brings the next probe forward, because replicas did not confirm what was done. The caller
// holds mu.
func (p *pipeline) probeSoon() {
	if b := &p.probe; b.interval != 0 {
		b.next = min(b.next, p.now+int64(probeDegraded))
		p.commands.nudge()
	}
}

// isConclusive reports whether a refusal of the probe's keys shows that the keys of other locks
// are refused. All keys have the prefix, if there is one.
func (b *probe) isConclusive(prefix string) bool {
	return prefix != "" || !b.takeServed && (b.passed || b.takeRefused)
}

// onResult notes the result of a Take, or that a renewal was refused. A result that the last probe does
// not explain brings the next one forward. The caller holds mu.
func (p *pipeline) onResult(r *redisop.Result) {
	b := &p.probe
	isServed := r.Outcome == redisop.Done || r.Outcome == redisop.HeldByOther
	isRefused := r.Outcome == redisop.Refused || r.Outcome == redisop.Retryable
	switch r.Kind {
	case redisop.Take:
		b.takeServed = b.takeServed || isServed
		b.takeRefused = b.takeRefused || r.Outcome == redisop.Refused
	case redisop.Renew:
		isServed = false // a Redis that executes renewals may refuse acquires
	default:
		return
	}
	isDegraded := b.why != "" || b.lacks != ""
	if soon := b.sentAt + int64(probeConfirm); b.interval != 0 && (isDegraded && isServed || !isDegraded && isRefused) && soon < b.next {
		b.next = soon
		p.commands.nudge()
	}
}

// refusedProbe returns the error of Redis in the reply to a probe; "": it was executed, or the
// lock is a foreign client's.
func refusedProbe(answer reply) string {
	if answer.kind == '-' {
		return reason(answer.text)
	}
	for _, status := range answer.list {
		if isLaidOut(status, redisop.Take) && status.list[0].num == int64(codeRefused) {
			return reason(status.list[1].text)
		}
	}
	return ""
}

// deniesKey reports whether an error says that the ACL denies a key.
func deniesKey(text string) bool {
	return strings.Contains(text, "access") && strings.Contains(text, "key")
}

// degraded is the sentence for a Redis that refused a probe with text.
func (d *dialer) degraded(text string) string {
	text = clip(text)
	switch {
	case deniesKey(text):
		prefix := d.keys.literalPrefix()
		return fmt.Sprintf("Redis at %s does not permit this user the keys of locks; let its ACL have the keys ~%s* and ~%s* (%s)",
			d.address, prefix, counterPrefix, text)
	case code(text) == "NOPERM", deniedInScript(text):
		return fmt.Sprintf("Redis at %s does not permit this user a command that acquires need; let its ACL have the commands of the scripts (%s)", d.address, text)
	}
	return d.answered(probeLock, text)
}

// reportDegraded logs and reports that Redis began, or ceased, to be degraded; why: "" if it
// ceased.
func (c *commands) reportDegraded(why string) {
	if why == "" {
		c.cfg.Log.Info("redis is not degraded any more")
	} else {
		c.cfg.Log.Warn("redis is degraded: it refuses what locks need", "reason", why)
	}
	if c.cfg.OnDegraded != nil {
		c.cfg.OnDegraded(c.shard, why)
	}
}
