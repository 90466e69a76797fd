package protocol

import (
	"math"
	"slices"
)

// RequestDecoder decodes bodies of frames as requests. Its zero value is ready for use.
type RequestDecoder struct {
	parser parser
	top    object

	hello        Hello
	acquire      Acquire
	readWrite    AcquireReadWrite
	permits      AcquirePermits
	downgrade    Downgrade
	release      Release
	cancel       Cancel
	confirm      Confirm
	info         Info
	list         List
	forceRelease ForceRelease
	metrics      Metrics
	events       Events
	status       Status
	ping         Ping
	hosts        Hosts
	hostInfo     HostInfo
	hostList     HostList
	hostStatus   HostStatus
	hostForce    HostForceRelease
	orphaned     ForceReleaseOrphaned
	who          Who
	bye          Bye
	claim        Claim
	unknown      Unknown

	numbers []uint64 // the holds of claim, sorted
}

// Decode returns a pointer to one of the request structs, valid until the next Decode; its
// strings stay valid. The error is a *ConnError, after which the connection must be closed, or
// a *RequestError, whose Reply answers this request.
func (d *RequestDecoder) Decode(body []byte) (Request, error) {
	if !d.claim.More {
		// Successive claims use the same memory. After the last one it is not kept.
		d.claim.Holds, d.numbers = nil, nil
	}
	o := &d.top
	if err := d.parser.open(body, o); err != nil {
		return nil, err
	}
	op := o.op()
	id := o.requestID()
	if d.parser.connError != nil {
		return nil, d.parser.connError
	}

	var m Request
	needsID := true // because it is always answered
	switch string(op) {
	case "hello":
		o.require(fieldV)
		d.hello = Hello{
			ID:        id,
			V:         o.int(fieldV, 0, 0, math.MaxInt64),
			Client:    o.text(fieldClient, MaxClient),
			Resumable: o.bool(fieldResumable, false),
			Resume:    o.text(fieldResume, MaxTicket),
		}
		if o.has(fieldResume) && !d.hello.Resumable {
			d.parser.rejectField("resume needs resumable to be true: a session is resumed by a client that will do so again")
		}
		m = &d.hello
	case "acquire":
		d.acquire = o.acquireByOwner(id)
		m = &d.acquire
	case "acquire_rw":
		d.readWrite = AcquireReadWrite{Acquire: o.acquireByOwner(id), Shared: o.bool(fieldShared, false)}
		if d.readWrite.Shared && o.has(fieldKeepMS) {
			d.parser.rejectField("keep_ms is not for a shared hold; take an exclusive one, or leave it out")
		}
		m = &d.readWrite
	case "acquire_permits":
		o.require(fieldCapacity)
		d.permits = AcquirePermits{
			Acquire: o.acquire(id),
			Permits: uint16(o.int(fieldPermits, 1, 1, MaxPermits)),
			Of:      uint16(o.int(fieldCapacity, 0, 1, MaxPermits)),
		}
		switch r := &d.permits; {
		case r.Permits > r.Of:
			d.parser.rejectField("permits is %d, and of is %d; more than there are cannot be granted", r.Permits, r.Of)
		case o.has(fieldKeepMS):
			d.parser.rejectField("keep_ms is not for permits; take a lock, or leave it out")
		}
		m = &d.permits
	case "downgrade":
		o.require(fieldHold)
		d.downgrade = Downgrade{ID: id, Hold: o.uint(fieldHold)}
		m = &d.downgrade
	case "release":
		o.require(fieldHold)
		d.release = Release{ID: id, Hold: o.uint(fieldHold), CutShort: o.bool(fieldCutShort, false)}
		m, needsID = &d.release, false
	case "confirm":
		d.confirm = Confirm{ID: id, Name: o.name()}
		m = &d.confirm
	case "cancel":
		o.require(fieldTarget)
		d.cancel = Cancel{ID: id, Target: o.uint(fieldTarget)}
		m, needsID = &d.cancel, false
	case "info":
		d.info = Info{ID: id, Name: o.name()}
		m = &d.info
	case "list":
		d.list = List{ID: id, After: o.uint(fieldAfter)}
		m = &d.list
	case "force_release":
		d.forceRelease = ForceRelease{ID: id, Name: o.name(), Hold: o.uint(fieldHold), By: o.requester()}
		m = &d.forceRelease
	case "metrics":
		d.metrics = Metrics{ID: id, After: o.uint(fieldAfter)}
		m = &d.metrics
	case "events":
		d.events = Events{ID: id, After: o.uint(fieldAfter), Wait: o.bool(fieldWait, false)}
		m = &d.events
	case "status":
		d.status = Status{ID: id}
		m = &d.status
	case "hosts":
		d.hosts = Hosts{ID: id, After: o.text(fieldAfterHost, MaxClient)}
		m = &d.hosts
	case "host_info":
		d.hostInfo = HostInfo{ID: id, Host: o.host(), Name: o.name()}
		m = &d.hostInfo
	case "host_list":
		d.hostList = HostList{ID: id, Host: o.host(), After: o.uint(fieldAfter)}
		m = &d.hostList
	case "host_status":
		d.hostStatus = HostStatus{ID: id, Host: o.host()}
		m = &d.hostStatus
	case "host_force_release":
		d.hostForce = HostForceRelease{ID: id, Host: o.host(), Name: o.name(), Hold: o.uint(fieldHold)}
		m = &d.hostForce
	case "force_release_orphaned":
		d.orphaned = ForceReleaseOrphaned{ID: id, Name: o.name(), Sidecar: o.text(fieldSidecar, MaxClient)}
		m = &d.orphaned
	case "who":
		d.who = Who{ID: id, Name: o.name()}
		m = &d.who
	case "ping":
		d.ping = Ping{ID: id}
		m = &d.ping
	case "bye":
		d.bye = Bye{ID: id}
		m = &d.bye
	case "claim":
		d.claim = Claim{ID: id, Holds: o.claimedHolds(d.claim.Holds[:0]), More: o.bool(fieldMore, false)}
		d.checkDistinctHolds()
		m = &d.claim
	default:
		d.unknown = Unknown{ID: id, Op: string(op)}
		m, needsID = &d.unknown, false
	}
	if needsID && id == 0 {
		d.parser.fail(badFrame("%s needs an id", op))
	}
	if d.parser.connError != nil {
		return nil, d.parser.connError
	}
	if d.parser.fieldError != "" {
		return nil, &RequestError{ID: id, Op: string(op), Code: BadRequest, Msg: d.parser.fieldError}
	}
	return m, nil
}

// acquireByOwner returns all fields of an acquire.
func (o *object) acquireByOwner(id uint64) Acquire {
	a := o.acquire(id)
	a.Owner = o.uint(fieldOwner)
	a.NotReentrant = !o.bool(fieldReentrant, true)
	a.Fair = o.bool(fieldFair, false)
	a.KeepMS = o.int(fieldKeepMS, 0, 0, MaxKeepMS)
	return a
}

// acquire returns the fields of an acquire that one of permits has, too.
func (o *object) acquire(id uint64) Acquire {
	return Acquire{
		ID:           id,
		Name:         o.name(),
		WaitMS:       o.int(fieldWaitMS, Forever, 0, MaxDurationMS),
		LeaseMS:      o.int(fieldLeaseMS, 0, MinLeaseMS, MaxDurationMS),
		MaxHoldMS:    o.int(fieldMaxHoldMS, 0, 1, MaxDurationMS),
		CrashDelayMS: o.int(fieldCrashDelayMS, 0, 0, MaxCrashDelayMS),
	}
}

// requester returns the client for which a sidecar asks; nil: the request names none.
func (o *object) requester() *Requester {
	if !o.has(fieldRemoteHost) {
		return nil
	}
	return &Requester{
		Host: o.text(fieldRemoteHost, MaxClient), PID: o.int(fieldPID, 0, 0, math.MaxInt64), UID: o.int(fieldUID, 0, 0, math.MaxInt64),
		Cmd: o.text(fieldCmd, MaxCmd),
	}
}

// claimedHolds appends the holds of a claim to holds.
func (o *object) claimedHolds(holds []ClaimedHold) []ClaimedHold {
	o.require(fieldHolds)
	h, ok := o.head(fieldHolds, kindArray)
	switch {
	case !ok:
		return holds
	case h.n%2 != 0:
		o.p.rejectField("holds has %d elements; it must be pairs, of a hold and its entries", h.n)
		return holds
	case h.n/2 > MaxClaims:
		o.p.rejectField("holds names %d holds; at most %d are allowed, the others go into another claim", h.n/2, MaxClaims)
		return holds
	}
	holds = slices.Grow(holds, h.n/2)
	at := int(o.at[fieldHolds]) + h.size
	for range h.n / 2 {
		hold, next := o.p.int(at, "a hold in holds", 1, math.MaxInt64)
		if next == 0 {
			break
		}
		entries, end := o.p.int(next, "an entry count in holds", 1, math.MaxUint32)
		if end == 0 {
			break
		}
		holds = append(holds, ClaimedHold{uint64(hold), uint32(entries)})
		at = end
	}
	return holds
}

// checkDistinctHolds fails if a claim has a hold twice. It sorts the numbers, because a hostile
// client may claim very many.
func (d *RequestDecoder) checkDistinctHolds() {
	d.numbers = slices.Grow(d.numbers[:0], len(d.claim.Holds))
	for _, h := range d.claim.Holds {
		d.numbers = append(d.numbers, h.Hold)
	}
	slices.Sort(d.numbers)
	for i := 1; i < len(d.numbers); i++ {
		if d.numbers[i] == d.numbers[i-1] {
			d.parser.fail(badFrame("holds names hold %d twice", d.numbers[i]))
			return
		}
	}
}

// op returns the operation. A request without one is a connection error.
func (o *object) op() []byte {
	h, ok := o.head(fieldOp, kindStr)
	if !ok || h.n == 0 {
		o.p.fail(badFrame("a request needs an op: a string that is not empty"))
		return nil
	}
	return o.bytes(fieldOp)
}

// Received is a message that ReplyDecoder returns: *Answer, *Err, *LostEvent, *LeaseEvent or
// *UnknownEvent.
type Received interface{ received() }

// Answer is an answer whose fields are not decoded yet: their types depend on the request with
// this ID. It is valid until the next Decode.
type Answer struct {
	ID  uint64
	top *object
}

// UnknownEvent is an event that this version does not know. The client ignores it.
type UnknownEvent struct{ Ev string }

func (*Answer) received()       {}
func (*Err) received()          {}
func (*LostEvent) received()    {}
func (*LeaseEvent) received()   {}
func (*UnknownEvent) received() {}

// OK is a pointer to one of the structs whose names end in OK.
type OK interface {
	Reply
	unpack(id uint64, o *object)
}

// Unpack decodes the answer into m, which must be of the type that answers the request. The
// error is a *ConnError: the sidecar broke the protocol.
func (a *Answer) Unpack(m OK) error {
	p := a.top.p
	m.unpack(a.ID, a.top)
	return p.replyError()
}

// replyError returns what is wrong with a reply. Also a bad field is a connection error there:
// the client cannot rely on later replies of the sidecar.
func (p *parser) replyError() error {
	if p.connError != nil {
		return p.connError
	}
	if p.fieldError != "" {
		return badFrame("%s", p.fieldError)
	}
	return nil
}

// ReplyDecoder decodes bodies of frames as messages from a sidecar. Its zero value is ready for
// use.
type ReplyDecoder struct {
	parser parser
	top    object

	answer Answer
	err    Err
	lost   LostEvent
	lease  LeaseEvent
	event  UnknownEvent
}

// Decode returns the message of the frame, valid until the next Decode; its strings stay valid.
// The error is a *ConnError, after which the connection must be closed.
func (d *ReplyDecoder) Decode(body []byte) (Received, error) {
	o := &d.top
	if err := d.parser.open(body, o); err != nil {
		return nil, err
	}
	m := d.read(o)
	if err := d.parser.replyError(); err != nil {
		return nil, err
	}
	return m, nil
}

func (d *ReplyDecoder) read(o *object) Received {
	if o.has(fieldEv) {
		return d.readEvent(o)
	}
	id := o.requestID()
	if o.has(fieldErr) {
		var e object
		d.parser.object(int(o.at[fieldErr]), &e)
		e.require(fieldCode)
		d.err = Err{ID: id, Code: Code(e.text(fieldCode, 0)), Msg: e.text(fieldMsg, 0)}
		return &d.err
	}
	if id == 0 {
		d.parser.fail(badFrame("a reply needs an id, an err or an ev"))
	}
	d.answer = Answer{ID: id, top: o}
	return &d.answer
}

func (d *ReplyDecoder) readEvent(o *object) Received {
	switch ev := o.bytes(fieldEv); string(ev) {
	case "lost":
		o.require(fieldHold)
		o.require(fieldReason)
		d.lost = LostEvent{Hold: o.uint(fieldHold), Reason: Reason(o.text(fieldReason, 0))}
		return &d.lost
	case "lease":
		o.require(fieldDeadlineNS)
		d.lease = LeaseEvent{DeadlineNS: o.int(fieldDeadlineNS, 0, 0, math.MaxInt64)}
		return &d.lease
	default:
		d.event = UnknownEvent{Ev: string(ev)}
		return &d.event
	}
}

func (m *HelloOK) unpack(id uint64, o *object) {
	o.require(fieldV)
	o.require(fieldSidecar)
	o.require(fieldVersion)
	o.require(fieldSession)
	o.require(fieldLeaseMS)
	o.require(fieldNowNS)
	*m = HelloOK{
		ID:      id,
		V:       o.int(fieldV, 0, 0, math.MaxInt64),
		Sidecar: o.text(fieldSidecar, 0),
		Version: o.text(fieldVersion, 0),
		Session: o.uint(fieldSession),
		LeaseMS: o.int(fieldLeaseMS, 0, 0, math.MaxInt64),
		NowNS:   o.int(fieldNowNS, 0, 0, math.MaxInt64),
		Ticket:  o.text(fieldTicket, MaxTicket),
		Resumed: o.bool(fieldResumed, false),
		Msg:     o.text(fieldMsg, 0),
	}
}

func (m *AcquireOK) unpack(id uint64, o *object) {
	o.require(fieldToken)
	o.require(fieldHold)
	o.require(fieldCount)
	o.require(fieldDeadlineNS)
	*m = AcquireOK{
		ID:         id,
		Token:      o.uint(fieldToken),
		Hold:       o.uint(fieldHold),
		Count:      o.count(),
		DeadlineNS: o.int(fieldDeadlineNS, 0, 0, math.MaxInt64),
		EndNS:      o.int(fieldEndNS, 0, 0, math.MaxInt64),
		Shared:     o.bool(fieldShared, false),
		Permits:    o.permits(fieldPermits),
		Of:         o.permits(fieldCapacity),
	}
}

// permits returns a number of permits; absent: 0.
func (o *object) permits(f field) uint16 { return uint16(o.int(f, 0, 0, MaxPermits)) }

func (o *object) count() uint32 { return uint32(o.int(fieldCount, 0, 0, math.MaxUint32)) }

func (m *DowngradeOK) unpack(id uint64, o *object) {
	o.require(fieldDeadlineNS)
	*m = DowngradeOK{ID: id, DeadlineNS: o.int(fieldDeadlineNS, 0, 0, math.MaxInt64)}
}

func (m *ReleaseOK) unpack(id uint64, o *object) {
	o.require(fieldCount)
	*m = ReleaseOK{ID: id, Count: o.count()}
}

func (m *CancelOK) unpack(id uint64, o *object) {
	o.require(fieldCanceled)
	*m = CancelOK{ID: id, Canceled: o.bool(fieldCanceled, false)}
}

func (m *InfoOK) unpack(id uint64, o *object) {
	*m = InfoOK{ID: id, Lock: o.row(fieldLock)}
}

func (m *ListOK) unpack(id uint64, o *object) {
	o.require(fieldLocks)
	*m = ListOK{ID: id, Next: o.uint(fieldNext)}
	o.each(fieldLocks, func(at int) int {
		m.Locks = append(m.Locks, LockRow{})
		return m.Locks[len(m.Locks)-1].unpack(o.p, at)
	})
}

func (m *ForceReleaseOK) unpack(id uint64, o *object) {
	o.require(fieldHold)
	*m = ForceReleaseOK{ID: id, Hold: o.uint(fieldHold), Count: o.count()}
}

func (m *MetricsOK) unpack(id uint64, o *object) {
	o.require(fieldText)
	*m = MetricsOK{ID: id, Text: o.text(fieldText, 0), Next: o.uint(fieldNext)}
}

func (m *EventsOK) unpack(id uint64, o *object) {
	o.require(fieldEvents)
	o.require(fieldNext)
	*m = EventsOK{ID: id, Next: o.uint(fieldNext), Missed: o.uint(fieldMissed), Hidden: o.text(fieldHidden, 0)}
	o.each(fieldEvents, func(at int) int {
		m.Events = append(m.Events, EventRow{})
		return m.Events[len(m.Events)-1].unpack(o.p, at)
	})
}

func (m *StatusOK) unpack(id uint64, o *object) {
	for _, f := range []field{fieldNowNS, fieldStartedNS, fieldVersion, fieldRedis, fieldSessions, fieldHeld, fieldWaiting} {
		o.require(f)
	}
	*m = StatusOK{id, StatusRow{
		NowNS:        o.int(fieldNowNS, 0, 0, math.MaxInt64),
		StartedNS:    o.int(fieldStartedNS, 0, 0, math.MaxInt64),
		Version:      o.text(fieldVersion, 0),
		Build:        o.text(fieldBuild, 0),
		Redis:        o.text(fieldRedis, 0),
		Degraded:     o.bool(fieldDegraded, false),
		RedisAddress: o.text(fieldRedisAddress, 0),
		RedisRunID:   o.text(fieldRedisRunID, 0),
		RedisRisk:    o.text(fieldRedisRisk, 0),
		KeyPrefix:    o.text(fieldKeyPrefix, 0),
		RoundTripNS:  o.int(fieldRoundTripNS, 0, 0, math.MaxInt64),
		Trouble:      o.text(fieldTrouble, 0),
		Sessions:     o.number(fieldSessions),
		Held:         o.number(fieldHeld),
		Waiting:      o.number(fieldWaiting),
		OldestWaiter: o.age(fieldOldestWaiter),
		OldestHold:   o.age(fieldOldestHold),
		RenewalsLate: o.number(fieldRenewalsLate),
		Hidden:       o.text(fieldHidden, 0),
		ShardCount:   o.number(fieldShardCount),
	}}
	o.each(fieldShards, func(at int) int {
		m.Shards = append(m.Shards, ShardRow{})
		return m.Shards[len(m.Shards)-1].unpack(o.p, at)
	})
	o.each(fieldLost, func(at int) int {
		var l object
		end := o.p.object(at, &l)
		if o.p.connError != nil {
			return end
		}
		l.require(fieldReason)
		l.require(fieldCount)
		m.Lost = append(m.Lost, LossRow{Reason(l.text(fieldReason, 0)), l.count()})
		return end
	})
	if _, ok := o.head(fieldRestart, kindMap); ok {
		var r object
		o.p.object(int(o.at[fieldRestart]), &r)
		m.Restart = &RestartRow{
			Reason: r.text(fieldReason, 0), Held: r.number(fieldHeld), Sessions: r.number(fieldSessions), Ended: r.number(fieldEnded),
			Back: r.number(fieldBack), Away: r.number(fieldAway),
		}
	}
}

// unpack decodes the shard at the offset and returns the offset after it.
func (r *ShardRow) unpack(p *parser, at int) int {
	var o object
	end := p.object(at, &o)
	if p.connError != nil {
		return end
	}
	o.require(fieldSlots)
	o.require(fieldRedis)
	*r = ShardRow{
		Address:     o.text(fieldAddress, 0),
		Slots:       o.number(fieldSlots),
		Redis:       o.text(fieldRedis, 0),
		Degraded:    o.bool(fieldDegraded, false),
		RoundTripNS: o.int(fieldRoundTripNS, 0, 0, math.MaxInt64),
		Held:        o.number(fieldHeld),
		Waiting:     o.number(fieldWaiting),
		Unsent:      o.number(fieldUnsent),
	}
	return end
}

// number returns a field that counts something; absent: 0.
func (o *object) number(f field) int { return int(o.int(f, 0, 0, math.MaxInt32)) }

// age returns the map of a field, or nil if it is absent.
func (o *object) age(f field) *AgeRow {
	if _, ok := o.head(f, kindMap); !ok {
		return nil
	}
	var a object
	o.p.object(int(o.at[f]), &a)
	a.require(fieldName)
	return &AgeRow{
		Name: a.text(fieldName, 0), Session: a.uint(fieldSession), PID: a.int(fieldPID, 0, 0, math.MaxInt64),
		UID: a.int(fieldUID, 0, 0, math.MaxInt64), Cmd: a.text(fieldCmd, 0), AgeMS: a.int(fieldAgeMS, 0, 0, math.MaxInt64),
	}
}

func (m *HostsOK) unpack(id uint64, o *object) {
	o.require(fieldHosts)
	*m = HostsOK{ID: id, More: o.bool(fieldMore, false)}
	o.each(fieldHosts, func(at int) int {
		var r object
		end := o.p.object(at, &r)
		if o.p.connError != nil {
			return end
		}
		r.require(fieldSidecar)
		r.require(fieldHost)
		m.Hosts = append(m.Hosts, HostRow{
			Sidecar: r.text(fieldSidecar, 0),
			Host:    r.text(fieldHost, 0),
			Version: r.text(fieldVersion, 0),
			PID:     r.int(fieldPID, 0, 0, math.MaxInt64),
			Started: r.int(fieldStartedMS, 0, 0, math.MaxInt64),
		})
		return end
	})
}

func (m *HostInfoOK) unpack(id uint64, o *object)         { (*InfoOK)(m).unpack(id, o) }
func (m *HostListOK) unpack(id uint64, o *object)         { (*ListOK)(m).unpack(id, o) }
func (m *HostStatusOK) unpack(id uint64, o *object)       { (*StatusOK)(m).unpack(id, o) }
func (m *HostForceReleaseOK) unpack(id uint64, o *object) { (*ForceReleaseOK)(m).unpack(id, o) }

func (m *ForceReleaseOrphanedOK) unpack(id uint64, o *object) {
	o.require(fieldSidecar)
	o.require(fieldHold)
	*m = ForceReleaseOrphanedOK{
		ID: id, Sidecar: o.text(fieldSidecar, 0), Hold: o.uint(fieldHold), TTLMS: o.int(fieldTTLMS, 0, -1, math.MaxInt64), Passed: o.bool(fieldPassed, false),
		Permits: int(o.int(fieldPermits, 0, 0, math.MaxInt32)),
	}
}

func (m *WhoOK) unpack(id uint64, o *object) {
	o.require(fieldRedis)
	*m = WhoOK{id, WhoRow{
		Lock:    o.row(fieldLock),
		Redis:   o.text(fieldRedis, 0),
		Key:     o.text(fieldKey, 0),
		Msg:     o.text(fieldMsg, 0),
		TTLMS:   o.int(fieldTTLMS, 0, -1, math.MaxInt64),
		Owners:  o.owners(fieldOwners),
		Queue:   o.owners(fieldQueue),
		Queued:  o.number(fieldQueued),
		Permits: o.number(fieldPermits),
		Of:      o.permits(fieldCapacity),
		Holder:  o.row(fieldHolder),
		Trouble: o.text(fieldTrouble, 0),
	}}
}

// row returns the row of a field, or nil if it is absent.
func (o *object) row(f field) *LockRow {
	if _, ok := o.head(f, kindMap); !ok {
		return nil
	}
	r := new(LockRow)
	r.unpack(o.p, int(o.at[f]))
	return r
}

// holders returns the holders of a row; nil: it has none.
func (o *object) holders() (rows []HolderRow) {
	o.each(fieldHolders, func(at int) int {
		var r object
		end := o.p.object(at, &r)
		if o.p.connError != nil {
			return end
		}
		rows = append(rows, HolderRow{
			Hold:    r.uint(fieldHold),
			Token:   r.uint(fieldToken),
			Shared:  r.bool(fieldShared, false),
			Permits: r.permits(fieldPermits),
			Session: r.uint(fieldSession),
			PID:     r.int(fieldPID, 0, 0, math.MaxInt64),
			UID:     r.int(fieldUID, 0, 0, math.MaxInt64),
			Cmd:     r.text(fieldCmd, 0),
			HeldMS:  r.int(fieldHeldMS, 0, 0, math.MaxInt64),
			Absent:  r.bool(fieldAbsent, false),
			Orphan:  r.bool(fieldOrphan, false),
		})
		return end
	})
	return rows
}

// owners returns the array of a field.
func (o *object) owners(f field) (rows []OwnerRow) {
	o.each(f, func(at int) int {
		var r object
		end := o.p.object(at, &r)
		if o.p.connError != nil {
			return end
		}
		r.require(fieldField)
		rows = append(rows, OwnerRow{
			Field:    r.text(fieldField, 0),
			Sidecar:  r.text(fieldSidecar, 0),
			Host:     r.text(fieldHost, 0),
			Entries:  r.int(fieldEntries, 0, 0, math.MaxInt64),
			Permits:  r.number(fieldPermits),
			WaitedMS: r.int(fieldWaitedMS, 0, 0, math.MaxInt64),
			Holders:  r.holders(),
			Held:     r.number(fieldHeld),
		})
		return end
	})
	return rows
}

func (m *PingOK) unpack(id uint64, o *object) {
	o.require(fieldNowNS)
	o.require(fieldRedis)
	*m = PingOK{
		ID: id, NowNS: o.int(fieldNowNS, 0, 0, math.MaxInt64), Redis: o.text(fieldRedis, 0),
		Degraded: o.bool(fieldDegraded, false), RedisAddress: o.text(fieldRedisAddress, 0), RedisRunID: o.text(fieldRedisRunID, 0),
		RedisRisk: o.text(fieldRedisRisk, 0), KeyPrefix: o.text(fieldKeyPrefix, 0), Trouble: o.text(fieldTrouble, 0),
	}
}

func (m *ByeOK) unpack(id uint64, _ *object)     { *m = ByeOK{ID: id} }
func (m *ConfirmOK) unpack(id uint64, _ *object) { *m = ConfirmOK{ID: id} }
func (m *ClaimOK) unpack(id uint64, _ *object)   { *m = ClaimOK{ID: id} }

// unpack decodes the row at the offset and returns the offset after it.
func (r *LockRow) unpack(p *parser, at int) int {
	var o object
	end := p.object(at, &o)
	if p.connError != nil {
		return end
	}
	o.require(fieldName)
	o.require(fieldState)
	*r = LockRow{
		Name:         o.text(fieldName, 0),
		Kind:         o.text(fieldKind, 0),
		State:        o.text(fieldState, 0),
		Hold:         o.uint(fieldHold),
		Token:        o.uint(fieldToken),
		Count:        o.count(),
		Owner:        o.uint(fieldOwner),
		Session:      o.uint(fieldSession),
		PID:          o.int(fieldPID, 0, 0, math.MaxInt64),
		UID:          o.int(fieldUID, 0, 0, math.MaxInt64),
		Cmd:          o.text(fieldCmd, 0),
		HeldMS:       o.int(fieldHeldMS, 0, 0, math.MaxInt64),
		DeadlineNS:   o.int(fieldDeadlineNS, 0, 0, math.MaxInt64),
		LeaseMS:      o.int(fieldLeaseMS, 0, 0, math.MaxInt64),
		Absent:       o.bool(fieldAbsent, false),
		AbsentMS:     o.int(fieldAbsentMS, 0, 0, math.MaxInt64),
		AbsentLeftMS: o.int(fieldAbsentLeftMS, 0, 0, math.MaxInt64),
		Orphan:       o.bool(fieldOrphan, false),
		KeepLeftMS:   o.int(fieldKeepLeftMS, 0, 0, math.MaxInt64),
		Held:         o.number(fieldHeld),
		Shared:       o.number(fieldShared),
		Permits:      o.number(fieldPermits),
		Of:           o.permits(fieldCapacity),
		Holders:      o.holders(),
		RemoteField:  o.text(fieldRemoteField, 0),
		RemoteHost:   o.text(fieldRemoteHost, 0),
		RemoteTTLMS:  o.int(fieldRemoteTTLMS, 0, -1, math.MaxInt64),
		InCluster:    o.has(fieldSlot),
		Slot:         uint16(o.int(fieldSlot, 0, 0, MaxSlot)),
		Shard:        o.text(fieldShard, 0),
		Grants:       uint32(o.int(fieldGrants, 0, 0, math.MaxUint32)),
		Waiting:      o.number(fieldWaiting),
	}
	o.each(fieldWaiters, func(at int) int {
		r.Waiters = append(r.Waiters, WaiterRow{})
		return r.Waiters[len(r.Waiters)-1].unpack(p, at)
	})
	return end
}

func (r *WaiterRow) unpack(p *parser, at int) int {
	var o object
	end := p.object(at, &o)
	if p.connError != nil {
		return end
	}
	*r = WaiterRow{
		Session:  o.uint(fieldSession),
		PID:      o.int(fieldPID, 0, 0, math.MaxInt64),
		UID:      o.int(fieldUID, 0, 0, math.MaxInt64),
		Cmd:      o.text(fieldCmd, 0),
		Owner:    o.uint(fieldOwner),
		Shared:   o.bool(fieldShared, false),
		Permits:  o.permits(fieldPermits),
		WaitedMS: o.int(fieldWaitedMS, 0, 0, math.MaxInt64),
	}
	return end
}

// unpack decodes the event at the offset and returns the offset after it.
func (r *EventRow) unpack(p *parser, at int) int {
	var o object
	end := p.object(at, &o)
	if p.connError != nil {
		return end
	}
	o.require(fieldAtNS)
	o.require(fieldKind)
	*r = EventRow{
		AtNS:        o.int(fieldAtNS, 0, 0, math.MaxInt64),
		Kind:        o.text(fieldKind, 0),
		Name:        o.text(fieldName, 0),
		Hold:        o.uint(fieldHold),
		Token:       o.uint(fieldToken),
		Shared:      o.bool(fieldShared, false),
		Permits:     o.permits(fieldPermits),
		Session:     o.uint(fieldSession),
		PID:         o.int(fieldPID, 0, 0, math.MaxInt64),
		UID:         o.int(fieldUID, 0, 0, math.MaxInt64),
		Cmd:         o.text(fieldCmd, 0),
		WaitedMS:    o.int(fieldWaitedMS, 0, 0, math.MaxInt64),
		HeldMS:      o.int(fieldHeldMS, 0, 0, math.MaxInt64),
		Reason:      Reason(o.text(fieldReason, 0)),
		RemoteField: o.text(fieldRemoteField, 0),
		RemoteHost:  o.text(fieldRemoteHost, 0),
		Count:       o.count(),
		Msg:         o.text(fieldMsg, 0),
	}
	return end
}
