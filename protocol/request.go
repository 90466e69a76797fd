package protocol

import "fmt"

// Request is a message from a client. RequestDecoder returns pointers to the structs below.
type Request interface {
	// Append appends the request to dst as one whole frame.
	Append(dst []byte) []byte
	// RequestID returns the id of the answer; 0: the request is not answered.
	RequestID() uint64
	request()
}

// Hello is the first frame of a connection. It begins a session or resumes one.
type Hello struct {
	ID        uint64
	V         int64  // protocol version that the client speaks
	Client    string // name and version of the client, for operators
	Resumable bool   // the client will resume the session if the process of the sidecar ends
	Resume    string // ticket of the session to resume; only if Resumable
}

// Acquire requests a lock.
type Acquire struct {
	ID           uint64
	Name         string
	Owner        uint64 // the owner that may re-enter; 0: an anonymous one, which never does
	NotReentrant bool   // the owner waits also for a hold of its own
	Fair         bool   // it is granted in the order in which such requests reach Redis, over all hosts
	WaitMS       int64  // 0: try once; Forever
	LeaseMS      int64  // fixed lease; 0: the watchdog's
	MaxHoldMS    int64  // 0: no limit
	CrashDelayMS int64
	KeepMS       int64 // the lock stays held so long after the grant, however the hold ends
}

// AcquirePermits requests permits of a semaphore, which are a hold of their own. Of the fields of Acquire it has no Owner,
// NotReentrant, Fair and KeepMS: they are not sent.
type AcquirePermits struct {
	Acquire
	Permits uint16 // from 1 to Of
	Of      uint16 // how many the semaphore has, as far as this request is concerned
}

// AcquireReadWrite requests a read/write lock. A shared one has no KeepMS: it is not sent.
type AcquireReadWrite struct {
	Acquire
	Shared bool // beside other shared holds; false: alone
}

// Downgrade makes an exclusive hold of a read/write lock a shared one.
type Downgrade struct {
	ID   uint64
	Hold uint64
}

// Release ends one entry of a hold.
type Release struct {
	ID       uint64 // 0: unanswered
	Hold     uint64
	CutShort bool // the work under the lock was ended, because the lock was about to be lost
}

// Confirm is answered when Redis has executed every release of a lock that the sidecar has
// answered.
type Confirm struct {
	ID   uint64
	Name string
}

// Cancel ends the wait of the acquire whose id is Target.
type Cancel struct {
	ID     uint64 // 0: unanswered
	Target uint64
}

// Info requests the row of one lock.
type Info struct {
	ID   uint64
	Name string
}

// List requests a page of rows.
type List struct {
	ID    uint64
	After uint64 // 0: the first page; then Next of the page before
}

// ForceRelease ends the holds that this sidecar has on a lock.
type ForceRelease struct {
	ID   uint64
	Name string
	Hold uint64     // 0: all of them
	By   *Requester // only between sidecars; nil: the sender did not say
}

// Requester is the client for which a sidecar asks another one.
type Requester struct {
	Host     string // of the client
	PID, UID int64
	Cmd      string // truncated to MaxCmd bytes
}

// Metrics requests a page of the sidecar's metrics.
type Metrics struct {
	ID    uint64
	After uint64 // 0: the first page; then Next of the page before
}

// Events requests what happened to locks after an event.
type Events struct {
	ID    uint64
	After uint64 // 0: the oldest that the sidecar has; then Next of the answer before
	Wait  bool   // if nothing has happened since, the answer waits until something does
}

// Status requests how the sidecar and its locks are.
type Status struct{ ID uint64 }

// Hosts requests a page of the sidecars that use the same Redis with the same key prefix.
type Hosts struct {
	ID    uint64
	After string // "": the first page; then the Sidecar of the last row before
}

// HostInfo requests the row that the sidecar of another host has of one lock.
type HostInfo struct {
	ID   uint64
	Host string // name of the host, or uuid of the sidecar
	Name string
}

// HostList requests a page of rows of the sidecar of another host.
type HostList struct {
	ID    uint64
	Host  string // as in HostInfo
	After uint64 // as in List
}

// HostStatus requests how the sidecar of another host and its locks are.
type HostStatus struct {
	ID   uint64
	Host string // as in HostInfo
}

// HostForceRelease ends the holds that the sidecar of another host has on a lock.
type HostForceRelease struct {
	ID   uint64
	Host string // as in HostInfo
	Name string
	Hold uint64 // as in ForceRelease
}

// ForceReleaseOrphaned frees a lock whose sidecar is gone for good, on whatever host that was; or all permits that such a
// sidecar has.
type ForceReleaseOrphaned struct {
	ID      uint64
	Name    string
	Sidecar string // uuid of the one that is gone; "": the only one that has the lock, or permits, beside this sidecar
}

// Who requests who has a lock and who waits for it, on all hosts.
type Who struct {
	ID   uint64
	Name string
}

// Ping checks that the sidecar answers, and requests the state of its Redis.
type Ping struct{ ID uint64 }

// Bye ends the session.
type Bye struct{ ID uint64 }

// Claim names holds that the client of a resumed session still has, at most
// MaxClaims of them.
type Claim struct {
	ID    uint64
	Holds []ClaimedHold // of a Claim that was read: valid until the next Decode
	More  bool          // another Claim follows
}

// ClaimedHold is a hold, and the number of its owner's entries.
type ClaimedHold struct {
	Hold    uint64
	Entries uint32
}

// Unknown is a request with an op that this version does not know. It is
// answered with Unsupported if it has an ID.
type Unknown struct {
	ID uint64
	Op string
}

func (m Hello) RequestID() uint64        { return m.ID }
func (m Acquire) RequestID() uint64      { return m.ID }
func (m Downgrade) RequestID() uint64    { return m.ID }
func (m Release) RequestID() uint64      { return m.ID }
func (m Confirm) RequestID() uint64      { return m.ID }
func (m Cancel) RequestID() uint64       { return m.ID }
func (m Info) RequestID() uint64         { return m.ID }
func (m List) RequestID() uint64         { return m.ID }
func (m ForceRelease) RequestID() uint64 { return m.ID }
func (m Metrics) RequestID() uint64      { return m.ID }
func (m Events) RequestID() uint64       { return m.ID }
func (m Status) RequestID() uint64       { return m.ID }
func (m Ping) RequestID() uint64         { return m.ID }
func (m Bye) RequestID() uint64          { return m.ID }
func (m Claim) RequestID() uint64        { return m.ID }
func (m Unknown) RequestID() uint64      { return m.ID }

func (Hello) request()                           {}
func (Acquire) request()                         {}
func (Downgrade) request()                       {}
func (Release) request()                         {}
func (Confirm) request()                         {}
func (Cancel) request()                          {}
func (Info) request()                            {}
func (List) request()                            {}
func (ForceRelease) request()                    {}
func (Metrics) request()                         {}
func (Events) request()                          {}
func (Status) request()                          {}
func (Ping) request()                            {}
func (Bye) request()                             {}
func (Claim) request()                           {}
func (Unknown) request()                         {}
func (m Hosts) RequestID() uint64                { return m.ID }
func (m HostInfo) RequestID() uint64             { return m.ID }
func (m HostList) RequestID() uint64             { return m.ID }
func (m HostStatus) RequestID() uint64           { return m.ID }
func (m HostForceRelease) RequestID() uint64     { return m.ID }
func (m ForceReleaseOrphaned) RequestID() uint64 { return m.ID }
func (m Who) RequestID() uint64                  { return m.ID }

func (Hosts) request()                {}
func (HostInfo) request()             {}
func (HostList) request()             {}
func (HostStatus) request()           {}
func (HostForceRelease) request()     {}
func (ForceReleaseOrphaned) request() {}
func (Who) request()                  {}

func (m Hello) Append(dst []byte) []byte {
	w := begin(dst, "hello", m.ID)
	w.int("v", m.V)
	if m.Client != "" {
		w.text("client", m.Client, MaxClient)
	}
	w.boolIf("resumable", m.Resumable)
	w.ticketIf("resume", m.Resume)
	return w.finish()
}

func (m Acquire) Append(dst []byte) []byte {
	w := begin(dst, "acquire", m.ID)
	w.str("name", m.Name)
	m.appendOwner(w)
	m.appendTimes(w)
	w.intIf("keep_ms", m.KeepMS)
	return w.finish()
}

func (m AcquireReadWrite) Append(dst []byte) []byte {
	w := begin(dst, "acquire_rw", m.ID)
	w.str("name", m.Name)
	w.boolIf("shared", m.Shared)
	m.appendOwner(w)
	m.appendTimes(w)
	if !m.Shared {
		w.intIf("keep_ms", m.KeepMS)
	}
	return w.finish()
}

func (m AcquirePermits) Append(dst []byte) []byte {
	w := begin(dst, "acquire_permits", m.ID)
	w.str("name", m.Name)
	if m.Permits != 1 {
		w.uint("permits", uint64(m.Permits))
	}
	w.uint("of", uint64(m.Of))
	m.appendTimes(w)
	return w.finish()
}

func (m *Acquire) appendOwner(w *writer) {
	w.uintIf("owner", m.Owner)
	if m.NotReentrant {
		w.bool("reentrant", false)
	}
	w.boolIf("fair", m.Fair)
}

func (m *Acquire) appendTimes(w *writer) {
	if m.WaitMS != Forever {
		w.int("wait_ms", m.WaitMS)
	}
	w.intIf("lease_ms", m.LeaseMS)
	w.intIf("max_hold_ms", m.MaxHoldMS)
	w.intIf("crash_delay_ms", m.CrashDelayMS)
}

func (m Downgrade) Append(dst []byte) []byte {
	w := begin(dst, "downgrade", m.ID)
	w.uint("hold", m.Hold)
	return w.finish()
}

func (m Release) Append(dst []byte) []byte {
	w := begin(dst, "release", m.ID)
	w.uint("hold", m.Hold)
	if m.CutShort {
		w.bool("cut_short", true)
	}
	return w.finish()
}

func (m Confirm) Append(dst []byte) []byte {
	w := begin(dst, "confirm", m.ID)
	w.str("name", m.Name)
	return w.finish()
}

func (m Cancel) Append(dst []byte) []byte {
	w := begin(dst, "cancel", m.ID)
	w.uint("target", m.Target)
	return w.finish()
}

func (m Info) Append(dst []byte) []byte {
	w := begin(dst, "info", m.ID)
	w.str("name", m.Name)
	return w.finish()
}

func (m List) Append(dst []byte) []byte {
	w := begin(dst, "list", m.ID)
	w.uintIf("after", m.After)
	return w.finish()
}

func (m ForceRelease) Append(dst []byte) []byte {
	w := begin(dst, "force_release", m.ID)
	w.str("name", m.Name)
	w.uintIf("hold", m.Hold)
	if by := m.By; by != nil {
		w.text("remote_host", by.Host, MaxClient)
		w.intIf("pid", by.PID)
		w.intIf("uid", by.UID)
		w.textIf("cmd", by.Cmd, MaxCmd)
	}
	return w.finish()
}

func (m Metrics) Append(dst []byte) []byte {
	w := begin(dst, "metrics", m.ID)
	w.uintIf("after", m.After)
	return w.finish()
}

func (m Events) Append(dst []byte) []byte {
	w := begin(dst, "events", m.ID)
	w.uintIf("after", m.After)
	w.boolIf("wait", m.Wait)
	return w.finish()
}

func (m Status) Append(dst []byte) []byte {
	return begin(dst, "status", m.ID).finish()
}

func (m Hosts) Append(dst []byte) []byte {
	w := begin(dst, "hosts", m.ID)
	w.textIf("after_host", m.After, MaxClient)
	return w.finish()
}

func (m HostInfo) Append(dst []byte) []byte {
	w := begin(dst, "host_info", m.ID)
	w.str("host", m.Host)
	w.str("name", m.Name)
	return w.finish()
}

func (m HostList) Append(dst []byte) []byte {
	w := begin(dst, "host_list", m.ID)
	w.str("host", m.Host)
	w.uintIf("after", m.After)
	return w.finish()
}

func (m HostStatus) Append(dst []byte) []byte {
	w := begin(dst, "host_status", m.ID)
	w.str("host", m.Host)
	return w.finish()
}

func (m HostForceRelease) Append(dst []byte) []byte {
	w := begin(dst, "host_force_release", m.ID)
	w.str("host", m.Host)
	w.str("name", m.Name)
	w.uintIf("hold", m.Hold)
	return w.finish()
}

func (m ForceReleaseOrphaned) Append(dst []byte) []byte {
	w := begin(dst, "force_release_orphaned", m.ID)
	w.str("name", m.Name)
	w.textIf("sidecar", m.Sidecar, MaxClient)
	return w.finish()
}

func (m Who) Append(dst []byte) []byte {
	w := begin(dst, "who", m.ID)
	w.str("name", m.Name)
	return w.finish()
}

func (m Ping) Append(dst []byte) []byte {
	return begin(dst, "ping", m.ID).finish()
}

func (m Bye) Append(dst []byte) []byte {
	return begin(dst, "bye", m.ID).finish()
}

func (m Claim) Append(dst []byte) []byte {
	if len(m.Holds) > MaxClaims {
		panic(fmt.Sprintf("protocol: a claim of %d holds; at most %d are allowed, the others go into another claim", len(m.Holds), MaxClaims))
	}
	w := begin(dst, "claim", m.ID)
	w.array("holds", 2*len(m.Holds))
	for _, h := range m.Holds {
		_ = w.enc.EncodeUint(h.Hold)
		_ = w.enc.EncodeUint(uint64(h.Entries))
	}
	w.boolIf("more", m.More)
	return w.finish()
}

func (m Unknown) Append(dst []byte) []byte {
	return begin(dst, m.Op, m.ID).finish()
}
