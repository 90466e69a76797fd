package protocol

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"
)

// vector is one entry of testdata/vectors.json; SPEC.md §10 describes it.
type vector struct {
	Name      string
	Kind      string // request, reply, bad
	Hex       string
	Pad       int
	Message   json.RawMessage
	Exact     map[string]any // fields of Message, with numbers as strings
	Canonical bool
	Answers   string
	To        string
	Error     struct {
		Code       Code
		ID         uint64
		Unanswered bool
	}
}

func (v vector) frame(t *testing.T) []byte {
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, v.Pad)...)
}

func vectors(t testing.TB) []vector {
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			whole := v.frame(t)
			check := map[string]func(*testing.T, vector, io.Reader) []byte{
				"request": checkRequest, "reply": checkReply, "bad": checkBad,
			}[v.Kind]
			canonical := check(t, v, bytes.NewReader(whole))
			check(t, v, iotest.OneByteReader(bytes.NewReader(whole)))
			if v.Canonical && !bytes.Equal(canonical, whole) {
				t.Errorf("written as\n%x, the vector is\n%x", canonical, whole)
			}
			if v.Kind != "bad" {
				checkTrailing(t, v, whole)
				checkCut(t, whole)
			}
		})
	}
}

// Every request, every answer and every field of both occurs in a canonical vector, which every
// encoder has to write in the same way.
func TestVectorsCoverTheProtocol(t *testing.T) {
	var text []byte
	requests, replies := map[string]bool{}, map[string]bool{}
	for _, v := range vectors(t) {
		if v.Canonical {
			text = append(text, v.Message...)
			replies[v.Answers] = true
			requests[parse(t, v.Message).Op] = true
		}
	}
	for _, op := range ops {
		if !requests[op] || !replies[op] {
			t.Errorf("%s: a request %v, an answer %v", op, requests[op], replies[op])
		}
	}
	for f := field(1); f < fields; f++ {
		if !bytes.Contains(text, []byte(`"`+f.String()+`":`)) {
			t.Errorf("no vector has %s", f)
		}
	}
}

// A JSON decoder that has only floats reads numbers above 2^53 from exact.
func TestVectorsHaveLargeNumbersAsStringsToo(t *testing.T) {
	found := 0
	for _, v := range vectors(t) {
		if len(v.Message) == 0 {
			continue
		}
		var fields map[string]any
		dec := json.NewDecoder(bytes.NewReader(v.Message))
		dec.UseNumber()
		if err := dec.Decode(&fields); err != nil {
			t.Fatal(err)
		}
		want := make(map[string]any)
		for k, value := range fields {
			if text, large := numbersAsStrings(value); large {
				want[k] = text
			}
		}
		found += len(want)
		if len(want)+len(v.Exact) > 0 && !reflect.DeepEqual(v.Exact, want) {
			t.Errorf("%s: exact is %v, want %v", v.Name, v.Exact, want)
		}
	}
	if found == 0 {
		t.Error("no vector has a large number")
	}
}

// numbersAsStrings returns a value with its numbers as strings, and whether one of them is
// larger than 2^53.
func numbersAsStrings(v any) (text any, large bool) {
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		return v.String(), err != nil || n > 1<<53 || n < -1<<53
	case []any:
		all := make([]any, len(v))
		for i, e := range v {
			var l bool
			all[i], l = numbersAsStrings(e)
			large = large || l
		}
		return all, large
	case map[string]any:
		all := make(map[string]any)
		for k, e := range v {
			var l bool
			all[k], l = numbersAsStrings(e)
			large = large || l
		}
		return all, large
	}
	return v, false
}

func checkRequest(t *testing.T, v vector, src io.Reader) []byte {
	t.Helper()
	body, err := NewReader(src).Next()
	if err != nil {
		t.Fatal(err)
	}
	var d RequestDecoder
	got, err := d.Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	want := requestOf(t, v.Message)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read as %+v, want %+v", got, want)
	}
	return got.Append(nil)
}

func checkReply(t *testing.T, v vector, src io.Reader) []byte {
	t.Helper()
	body, err := NewReader(src).Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeReply(body, v.Answers)
	if err != nil {
		t.Fatal(err)
	}
	want := replyOf(t, v.Message, v.Answers)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read as %+v, want %+v", got, want)
	}
	if m, ok := got.(Reply); ok {
		return m.Append(nil)
	}
	return nil // an unknown event
}

func checkBad(t *testing.T, v vector, src io.Reader) []byte {
	t.Helper()
	body, err := NewReader(src).Next()
	if err == nil && v.To == "client" {
		_, err = decodeReply(body, v.Answers)
	} else if err == nil {
		var d RequestDecoder
		_, err = d.Decode(body)
	}
	var conn *ConnError
	var request *RequestError
	switch {
	case errors.As(err, &conn):
		if v.Error.ID != 0 || v.Error.Unanswered || conn.Code != v.Error.Code {
			t.Fatalf("ended the connection with %s (%s), want %+v", conn.Code, conn.Msg, v.Error)
		}
	case errors.As(err, &request):
		if request.ID != v.Error.ID || request.Code != v.Error.Code || v.Error.ID == 0 && !v.Error.Unanswered {
			t.Fatalf("refused request %d with %s (%s), want %+v", request.ID, request.Code, request.Msg, v.Error)
		}
	default:
		t.Fatalf("got %v, want %+v", err, v.Error)
	}
	return nil
}

// checkTrailing checks that a byte after the map, within the frame, makes the frame bad, and
// that a byte after the frame belongs to the next one.
func checkTrailing(t *testing.T, v vector, whole []byte) {
	t.Helper()
	longer := append(bytes.Clone(whole[prefix:]), 0xc0)
	var err error
	if v.Kind == "request" {
		_, err = new(RequestDecoder).Decode(longer)
	} else {
		_, err = decodeReply(longer, v.Answers)
	}
	var conn *ConnError
	if !errors.As(err, &conn) || conn.Code != BadFrame {
		t.Errorf("with a byte after the map: %v", err)
	}
	r := NewReader(bytes.NewReader(append(bytes.Clone(whole), 0, 0)))
	if body, err := r.Next(); err != nil || !bytes.Equal(body, whole[prefix:]) {
		t.Errorf("with bytes after the frame: %x, %v", body, err)
	}
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Errorf("the bytes after the frame: %v", err)
	}
}

// checkCut checks that no proper prefix of a body is a valid body, and that none panics.
func checkCut(t *testing.T, whole []byte) {
	t.Helper()
	var rq RequestDecoder
	var rp ReplyDecoder
	body := whole[prefix:]
	for n := range min(len(body), 700) {
		if _, err := rq.Decode(body[:n]); err == nil {
			t.Fatalf("the first %d bytes are taken for a request", n)
		}
		if _, err := rp.Decode(body[:n]); err == nil {
			t.Fatalf("the first %d bytes are taken for a reply", n)
		}
	}
}

// ops are the ops of all requests of this version.
var ops = []string{"hello", "acquire", "acquire_rw", "acquire_permits", "downgrade", "release", "confirm", "cancel", "info", "list", "force_release", "metrics", "events", "status", "hosts", "host_info", "host_list", "host_status", "host_force_release", "force_release_orphaned", "who", "ping", "bye", "claim"}

func answerTo(op string) OK {
	switch op {
	case "hello":
		return new(HelloOK)
	case "acquire", "acquire_rw", "acquire_permits":
		return new(AcquireOK)
	case "downgrade":
		return new(DowngradeOK)
	case "release":
		return new(ReleaseOK)
	case "confirm":
		return new(ConfirmOK)
	case "cancel":
		return new(CancelOK)
	case "info":
		return new(InfoOK)
	case "list":
		return new(ListOK)
	case "force_release":
		return new(ForceReleaseOK)
	case "metrics":
		return new(MetricsOK)
	case "events":
		return new(EventsOK)
	case "status":
		return new(StatusOK)
	case "hosts":
		return new(HostsOK)
	case "host_info":
		return new(HostInfoOK)
	case "host_list":
		return new(HostListOK)
	case "host_status":
		return new(HostStatusOK)
	case "host_force_release":
		return new(HostForceReleaseOK)
	case "force_release_orphaned":
		return new(ForceReleaseOrphanedOK)
	case "who":
		return new(WhoOK)
	case "ping":
		return new(PingOK)
	case "bye":
		return new(ByeOK)
	case "claim":
		return new(ClaimOK)
	}
	return nil
}

func decodeReply(body []byte, answers string) (any, error) {
	var d ReplyDecoder
	got, err := d.Decode(body)
	if err != nil {
		return nil, err
	}
	if a, ok := got.(*Answer); ok {
		m := answerTo(answers)
		if m == nil {
			return a, nil
		}
		return m, a.Unpack(m)
	}
	return got, nil
}

// fieldsOf has every field of every message, as in the JSON of the vectors.
type fieldsOf struct {
	Op, Ev string
	ID     uint64
	Err    *struct {
		Code Code
		Msg  string
	}
	V            int64
	Client, Name string
	Resumable    bool
	Resume       string
	Owner        uint64
	Reentrant    *bool
	Fair         bool
	WaitMS       *int64 `json:"wait_ms"`
	LeaseMS      int64  `json:"lease_ms"`
	MaxHoldMS    int64  `json:"max_hold_ms"`
	CrashDelayMS int64  `json:"crash_delay_ms"`
	KeepMS       int64  `json:"keep_ms"`
	Shared       bool
	Permits      *int
	Of           uint16
	Hold, Target uint64
	CutShort     bool `json:"cut_short"`
	After        uint64
	Holds        []uint64 // hold, entries, hold, entries, …
	More, Wait   bool

	Sidecar, Version, Build, Redis string
	Degraded                       bool
	RedisAddress                   string `json:"redis_address"`
	RedisRunID                     string `json:"redis_run_id"`
	RedisRisk                      string `json:"redis_risk"`
	KeyPrefix                      string `json:"key_prefix"`
	Session                        uint64
	NowNS                          int64 `json:"now_ns"`
	Ticket                         string
	Resumed                        bool
	Token                          uint64
	Count                          uint32
	DeadlineNS                     int64 `json:"deadline_ns"`
	EndNS                          int64 `json:"end_ns"`
	Canceled                       bool
	Lock                           *rowFields
	Locks                          []rowFields
	Next                           uint64
	Text                           string
	Reason                         Reason
	Host                           string
	AfterHost                      string `json:"after_host"`
	Hosts                          []hostFields
	Events                         []eventFields
	Missed                         uint64
	Hidden                         string

	StartedNS    int64 `json:"started_ns"`
	RoundTripNS  int64 `json:"roundtrip_ns"`
	Trouble      string
	Sessions     int
	Held         int
	Waiting      int
	OldestWaiter *ageFields `json:"oldest_waiter"`
	OldestHold   *ageFields `json:"oldest_hold"`
	RenewalsLate int        `json:"renewals_late"`
	Lost         []LossRow
	Restart      *RestartRow
	Shards       []shardFields
	ShardCount   int `json:"shard_count"`

	RemoteHost string `json:"remote_host"`
	PID, UID   int64
	Cmd        string

	Key    string
	Msg    string
	TTLMS  int64 `json:"ttl_ms"`
	Passed bool  `json:"passed"`
	Owners []ownerFields
	Queue  []ownerFields
	Queued int
	Holder *rowFields
}

type ownerFields struct {
	Field, Sidecar, Host string
	Entries              int64
	Permits              int
	WaitedMS             int64 `json:"waited_ms"`
	Holders              []holderFields
	Held                 int
}

func ownersOf(fields []ownerFields) (rows []OwnerRow) {
	for _, f := range fields {
		rows = append(rows, OwnerRow{f.Field, f.Sidecar, f.Host, f.Entries, f.Permits, f.WaitedMS, holdersOf(f.Holders), f.Held})
	}
	return rows
}

type holderFields struct {
	Hold, Token uint64
	Shared      bool
	Permits     uint16
	Session     uint64
	PID, UID    int64
	Cmd         string
	HeldMS      int64 `json:"held_ms"`
	Absent      bool
	Orphan      bool
}

func holdersOf(fields []holderFields) (rows []HolderRow) {
	for _, f := range fields {
		rows = append(rows, HolderRow(f))
	}
	return rows
}

type shardFields struct {
	Address     string
	Slots       int
	Redis       string
	Degraded    bool
	RoundTripNS int64 `json:"roundtrip_ns"`
	Held        int
	Waiting     int
	Unsent      int
}

type ageFields struct {
	Name     string
	Session  uint64
	PID, UID int64
	Cmd      string
	AgeMS    int64 `json:"age_ms"`
}

type eventFields struct {
	AtNS        int64 `json:"at_ns"`
	Kind, Name  string
	Hold, Token uint64
	Shared      bool
	Permits     uint16
	Session     uint64
	PID, UID    int64
	Cmd         string
	WaitedMS    int64 `json:"waited_ms"`
	HeldMS      int64 `json:"held_ms"`
	Reason      Reason
	RemoteField string `json:"remote_field"`
	RemoteHost  string `json:"remote_host"`
	Count       uint32
	Msg         string
}

type hostFields struct {
	Sidecar, Host, Version string
	PID                    int64
	Started                int64 `json:"started_ms"`
}

type rowFields struct {
	Name, Kind   string
	State        string
	Hold, Token  uint64
	Count        uint32
	Owner        uint64
	Session      uint64
	PID, UID     int64
	Cmd          string
	HeldMS       int64 `json:"held_ms"`
	DeadlineNS   int64 `json:"deadline_ns"`
	LeaseMS      int64 `json:"lease_ms"`
	Absent       bool
	Orphan       bool
	AbsentMS     int64 `json:"absent_ms"`
	AbsentLeftMS int64 `json:"absent_left_ms"`
	KeepLeftMS   int64 `json:"keep_left_ms"`
	Held         int
	Shared       int
	Permits      int
	Of           uint16
	Holders      []holderFields
	RemoteField  string `json:"remote_field"`
	RemoteTTLMS  int64  `json:"remote_ttl_ms"`
	Slot         *uint16
	Shard        string
	Grants       uint32
	RemoteHost   string `json:"remote_host"`
	Waiting      int
	Waiters      []waiterFields
}

type waiterFields struct {
	Session  uint64
	PID, UID int64
	Cmd      string
	Owner    uint64
	Shared   bool
	Permits  uint16
	WaitedMS int64 `json:"waited_ms"`
}

func (r rowFields) row() LockRow {
	row := LockRow{
		Name: r.Name, Kind: r.Kind, State: r.State, Hold: r.Hold, Token: r.Token, Count: r.Count, Owner: r.Owner,
		Session: r.Session, PID: r.PID, UID: r.UID, Cmd: r.Cmd, HeldMS: r.HeldMS, DeadlineNS: r.DeadlineNS,
		LeaseMS: r.LeaseMS, Absent: r.Absent, AbsentMS: r.AbsentMS, AbsentLeftMS: r.AbsentLeftMS, Orphan: r.Orphan, KeepLeftMS: r.KeepLeftMS,
		Held: r.Held, Shared: r.Shared, Permits: r.Permits, Of: r.Of, Holders: holdersOf(r.Holders),
		RemoteField: r.RemoteField, RemoteTTLMS: r.RemoteTTLMS, RemoteHost: r.RemoteHost, Grants: r.Grants, Waiting: r.Waiting,
	}
	if r.Slot != nil {
		row.InCluster, row.Slot = true, *r.Slot
	}
	row.Shard = r.Shard
	for _, w := range r.Waiters {
		row.Waiters = append(row.Waiters, WaiterRow(w))
	}
	return row
}

func parse(t *testing.T, text json.RawMessage) fieldsOf {
	t.Helper()
	var m fieldsOf
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *fieldsOf) permits() int {
	if m.Permits == nil {
		return 0
	}
	return *m.Permits
}

func requestOf(t *testing.T, text json.RawMessage) Request {
	t.Helper()
	m := parse(t, text)
	switch m.Op {
	case "hello":
		return &Hello{m.ID, m.V, m.Client, m.Resumable, m.Resume}
	case "acquire", "acquire_rw", "acquire_permits":
		a := &Acquire{ID: m.ID, Name: m.Name, Owner: m.Owner, WaitMS: Forever, LeaseMS: m.LeaseMS, MaxHoldMS: m.MaxHoldMS, CrashDelayMS: m.CrashDelayMS, KeepMS: m.KeepMS}
		a.NotReentrant, a.Fair = m.Reentrant != nil && !*m.Reentrant, m.Fair
		if m.WaitMS != nil {
			a.WaitMS = *m.WaitMS
		}
		if m.Op == "acquire_permits" {
			p := &AcquirePermits{Acquire: *a, Permits: 1, Of: m.Of}
			if m.Permits != nil {
				p.Permits = uint16(*m.Permits)
			}
			return p
		}
		if m.Op == "acquire_rw" {
			return &AcquireReadWrite{*a, m.Shared}
		}
		return a
	case "downgrade":
		return &Downgrade{m.ID, m.Hold}
	case "release":
		return &Release{m.ID, m.Hold, m.CutShort}
	case "confirm":
		return &Confirm{m.ID, m.Name}
	case "cancel":
		return &Cancel{m.ID, m.Target}
	case "info":
		return &Info{m.ID, m.Name}
	case "list":
		return &List{m.ID, m.After}
	case "force_release":
		r := &ForceRelease{ID: m.ID, Name: m.Name, Hold: m.Hold}
		if m.RemoteHost != "" {
			r.By = &Requester{m.RemoteHost, m.PID, m.UID, m.Cmd}
		}
		return r
	case "metrics":
		return &Metrics{m.ID, m.After}
	case "events":
		return &Events{m.ID, m.After, m.Wait}
	case "status":
		return &Status{m.ID}
	case "hosts":
		return &Hosts{m.ID, m.AfterHost}
	case "host_info":
		return &HostInfo{m.ID, m.Host, m.Name}
	case "host_list":
		return &HostList{m.ID, m.Host, m.After}
	case "host_status":
		return &HostStatus{m.ID, m.Host}
	case "host_force_release":
		return &HostForceRelease{m.ID, m.Host, m.Name, m.Hold}
	case "force_release_orphaned":
		return &ForceReleaseOrphaned{m.ID, m.Name, m.Sidecar}
	case "who":
		return &Who{m.ID, m.Name}
	case "ping":
		return &Ping{m.ID}
	case "bye":
		return &Bye{m.ID}
	case "claim":
		c := &Claim{ID: m.ID, More: m.More}
		for pair := range slices.Chunk(m.Holds, 2) {
			c.Holds = append(c.Holds, ClaimedHold{pair[0], uint32(pair[1])})
		}
		return c
	}
	return &Unknown{m.ID, m.Op}
}

func replyOf(t *testing.T, text json.RawMessage, answers string) any {
	t.Helper()
	m := parse(t, text)
	switch {
	case m.Ev == "lost":
		return &LostEvent{m.Hold, m.Reason}
	case m.Ev == "lease":
		return &LeaseEvent{m.DeadlineNS}
	case m.Ev != "":
		return &UnknownEvent{m.Ev}
	case m.Err != nil:
		return &Err{m.ID, m.Err.Code, m.Err.Msg}
	}
	switch answers {
	case "hello":
		return &HelloOK{m.ID, m.V, m.Sidecar, m.Version, m.Session, m.LeaseMS, m.NowNS, m.Ticket, m.Resumed, m.Msg}
	case "acquire", "acquire_rw", "acquire_permits":
		return &AcquireOK{m.ID, m.Token, m.Hold, m.Count, m.DeadlineNS, m.EndNS, m.Shared, uint16(m.permits()), m.Of}
	case "downgrade":
		return &DowngradeOK{m.ID, m.DeadlineNS}
	case "release":
		return &ReleaseOK{m.ID, m.Count}
	case "confirm":
		return &ConfirmOK{m.ID}
	case "cancel":
		return &CancelOK{m.ID, m.Canceled}
	case "info", "host_info":
		ok := &InfoOK{ID: m.ID}
		if m.Lock != nil {
			row := m.Lock.row()
			ok.Lock = &row
		}
		if answers == "host_info" {
			return (*HostInfoOK)(ok)
		}
		return ok
	case "list", "host_list":
		ok := &ListOK{ID: m.ID, Next: m.Next}
		for _, r := range m.Locks {
			ok.Locks = append(ok.Locks, r.row())
		}
		if answers == "host_list" {
			return (*HostListOK)(ok)
		}
		return ok
	case "hosts":
		ok := &HostsOK{ID: m.ID, More: m.More}
		for _, r := range m.Hosts {
			ok.Hosts = append(ok.Hosts, HostRow(r))
		}
		return ok
	case "host_force_release":
		return &HostForceReleaseOK{m.ID, m.Hold, m.Count}
	case "force_release_orphaned":
		return &ForceReleaseOrphanedOK{m.ID, m.Sidecar, m.Hold, m.TTLMS, m.Passed, m.permits()}
	case "force_release":
		return &ForceReleaseOK{m.ID, m.Hold, m.Count}
	case "metrics":
		return &MetricsOK{m.ID, m.Text, m.Next}
	case "events":
		ok := &EventsOK{ID: m.ID, Next: m.Next, Missed: m.Missed, Hidden: m.Hidden}
		for _, e := range m.Events {
			ok.Events = append(ok.Events, EventRow(e))
		}
		return ok
	case "status", "host_status":
		var shards []ShardRow
		for _, s := range m.Shards {
			shards = append(shards, ShardRow(s))
		}
		ok := &StatusOK{m.ID, StatusRow{
			m.NowNS, m.StartedNS, m.Version, m.Build, m.Redis, m.Degraded, m.RedisAddress, m.RedisRunID, m.RedisRisk, m.KeyPrefix, m.RoundTripNS, m.Trouble,
			m.Sessions, m.Held, m.Waiting, (*AgeRow)(m.OldestWaiter), (*AgeRow)(m.OldestHold), m.RenewalsLate, m.Lost, m.Restart, m.Hidden, shards, m.ShardCount,
		}}
		if answers == "host_status" {
			return (*HostStatusOK)(ok)
		}
		return ok
	case "who":
		ok := &WhoOK{m.ID, WhoRow{
			Redis: m.Redis, Key: m.Key, Msg: m.Msg, TTLMS: m.TTLMS, Owners: ownersOf(m.Owners), Queue: ownersOf(m.Queue), Queued: m.Queued,
			Permits: m.permits(), Of: m.Of, Trouble: m.Trouble,
		}}
		if m.Lock != nil {
			row := m.Lock.row()
			ok.Lock = &row
		}
		if m.Holder != nil {
			row := m.Holder.row()
			ok.Holder = &row
		}
		return ok
	case "ping":
		return &PingOK{m.ID, m.NowNS, m.Redis, m.Degraded, m.RedisAddress, m.RedisRunID, m.RedisRisk, m.KeyPrefix, m.Trouble}
	case "bye":
		return &ByeOK{m.ID}
	case "claim":
		return &ClaimOK{m.ID}
	}
	t.Fatalf("the vector does not say what it answers")
	return nil
}
