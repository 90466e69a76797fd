package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// Every message, with a value in every field that is not its default.
var everyRequest = []Request{
	&Hello{ID: 1, V: 2, Client: "go/1.0.0"},
	&Hello{ID: 1, V: 2, Client: "go/1.0.0", Resumable: true, Resume: "ticket"},
	&Acquire{ID: 2, Name: "invoice:42", Owner: 3, NotReentrant: true, Fair: true, WaitMS: 0, LeaseMS: 50, MaxHoldMS: 1, CrashDelayMS: 2, KeepMS: 3},
	&Acquire{ID: 2, Name: "invoice:42", WaitMS: Forever},
	&AcquirePermits{Acquire: Acquire{ID: 2, Name: "api", WaitMS: 0, LeaseMS: 50, MaxHoldMS: 1, CrashDelayMS: 2}, Permits: 3, Of: MaxPermits},
	&AcquirePermits{Acquire: Acquire{ID: 2, Name: "api", WaitMS: Forever}, Permits: 1, Of: 1},
	&AcquireReadWrite{Acquire: Acquire{ID: 2, Name: "catalog", Owner: 3, NotReentrant: true, Fair: true, WaitMS: 0, LeaseMS: 50, MaxHoldMS: 1, CrashDelayMS: 2, KeepMS: 3}},
	&AcquireReadWrite{Acquire: Acquire{ID: 2, Name: "catalog", Owner: 3, WaitMS: Forever}, Shared: true},
	&Downgrade{ID: 4, Hold: 5},
	&Release{ID: 4, Hold: 5},
	&Release{Hold: 5},
	&Confirm{ID: 1, Name: "n"},
	&Cancel{ID: 6, Target: 7},
	&Cancel{Target: 7},
	&Info{ID: 8, Name: "n"},
	&List{ID: 9, After: 10},
	&ForceRelease{ID: 11, Name: "n"},
	&ForceRelease{ID: 11, Name: "n", Hold: 12},
	&ForceRelease{ID: 11, Name: "n", By: &Requester{Host: "db-7", PID: 2, UID: 3, Cmd: "c"}},
	&Metrics{ID: 11, After: 3},
	&Hosts{ID: 1},
	&Hosts{ID: 1, After: "uuid"},
	&HostInfo{ID: 1, Host: "db-7", Name: "n"},
	&HostList{ID: 1, Host: "db-7", After: 2},
	&HostStatus{ID: 1, Host: "db-7"},
	&HostForceRelease{ID: 1, Host: "db-7", Name: "n"},
	&HostForceRelease{ID: 1, Host: "db-7", Name: "n", Hold: 12},
	&ForceReleaseOrphaned{ID: 1, Name: "n"},
	&ForceReleaseOrphaned{ID: 1, Name: "n", Sidecar: "uuid"},
	&Who{ID: 1, Name: "n"},
	&Ping{ID: 12},
	&Bye{ID: 14},
	&Claim{ID: 15},
	&Claim{ID: 15, Holds: []ClaimedHold{{2, 1}, {1, math.MaxUint32}}, More: true},
	&Claim{ID: 15, Holds: []ClaimedHold{{math.MaxInt64, 1}}},
	&Unknown{ID: 13, Op: "teleport"},
}

// fullRow has more fields than a row of any state, and more than a fixmap can have.
var fullRow = LockRow{
	Name: strings.Repeat("n", MaxName), Kind: KindPermits, State: StateHeld, Hold: 1, Token: 1 << 50, Count: 3, Owner: 4, Session: 5, PID: 6, UID: 7,
	Cmd: strings.Repeat("c", MaxCmd), HeldMS: 8, DeadlineNS: 9, LeaseMS: 10, Absent: true, AbsentMS: 13, AbsentLeftMS: 14, Orphan: true, KeepLeftMS: 12,
	Held: 17, Shared: 26, Permits: 18, Of: MaxPermits, Holders: []HolderRow{{19, 1 << 50, true, 20, 21, 22, 23, "h", 24, true, true}, {}},
	RemoteField: strings.Repeat("f", MaxField), RemoteTTLMS: -1, RemoteHost: strings.Repeat("h", MaxClient), InCluster: true, Slot: MaxSlot, Shard: strings.Repeat("s", MaxField), Waiting: 11,
	Waiters: []WaiterRow{{Session: 12, PID: 13, UID: 14, Cmd: "w", Owner: 15, Shared: true, Permits: 25, WaitedMS: 16}, {}},
}

var (
	fullHolder = HolderRow{1 << 62, 1 << 62, true, MaxPermits, 1 << 62, 1 << 40, 1 << 32, strings.Repeat("c", MaxCmd), 1 << 40, true, true}
	fullWaiter = WaiterRow{1 << 62, 1 << 40, 1 << 32, strings.Repeat("c", MaxCmd), 1 << 62, true, MaxPermits, 1 << 40}
)

var everyReply = []Reply{
	&HelloOK{ID: 1, V: 1, Sidecar: "uuid", Version: "0.1", Session: 2, LeaseMS: 3, NowNS: 4},
	&HelloOK{ID: 1, V: 1, Sidecar: "uuid", Version: "0.1", Session: 2, LeaseMS: 3, NowNS: 4, Ticket: "ticket", Resumed: true},
	&AcquireOK{ID: 1, Token: 2, Hold: 3, Count: 4, DeadlineNS: 5},
	&AcquireOK{ID: 1, Token: 2, Hold: 3, Count: 4, DeadlineNS: 5, EndNS: 6},
	&AcquireOK{ID: 1, Token: 2, Hold: 3, Count: 4, DeadlineNS: 5, EndNS: 6, Permits: 7, Of: MaxPermits},
	&AcquireOK{ID: 1, Token: 2, Hold: 3, Count: 4, DeadlineNS: 5, Shared: true},
	&DowngradeOK{ID: 1, DeadlineNS: 2},
	&ReleaseOK{ID: 1, Count: 2},
	&CancelOK{ID: 1, Canceled: true},
	&InfoOK{ID: 1},
	&InfoOK{ID: 1, Lock: &fullRow},
	&ListOK{ID: 1, Locks: []LockRow{fullRow, {Name: "a", State: StateFree}}, Next: 2},
	&ForceReleaseOK{ID: 1, Hold: 2},
	&ForceReleaseOK{ID: 1, Hold: 2, Count: 3},
	&MetricsOK{ID: 1, Text: "locksidecar_holds 3\n", Next: 4},
	&HostsOK{ID: 1, Hosts: []HostRow{{Sidecar: "uuid", Host: "db-7", Version: "0.1", PID: 2, Started: 3}, {Sidecar: "uuid2", Host: "db-8"}}, More: true},
	&HostInfoOK{ID: 1, Lock: &fullRow},
	&HostListOK{ID: 1, Locks: []LockRow{fullRow}, Next: 2},
	&HostForceReleaseOK{ID: 1, Hold: 2},
	&ForceReleaseOrphanedOK{ID: 1, Sidecar: "uuid", Hold: 2, TTLMS: -1, Passed: true},
	&ForceReleaseOrphanedOK{ID: 1, Sidecar: "uuid", Hold: 2, TTLMS: 3, Permits: 4},
	&WhoOK{ID: 1, WhoRow: WhoRow{Redis: "ok", Key: KeyFree}},
	&WhoOK{ID: 1, WhoRow: WhoRow{
		Redis: "ok", Key: KeyPermits, TTLMS: 1, Permits: 7, Of: 10,
		Owners: []OwnerRow{{Field: "f", Sidecar: "uuid", Host: "db-7", Permits: 5, Held: 2, Holders: []HolderRow{{Hold: 1, Permits: 4}, {Hold: 2}}}, {Field: "g", Permits: 2}},
		Queue:  []OwnerRow{{Field: "h", Permits: 4, WaitedMS: 3}}, Queued: 1,
	}},
	&WhoOK{ID: 1, WhoRow: WhoRow{
		Lock: &fullRow, Redis: "ok", Key: KeyReadWrite, Msg: "read", TTLMS: -1, Owners: []OwnerRow{{Field: "f", Sidecar: "uuid", Host: "db-7", Entries: 2}, {Field: "g"}},
		Queue: []OwnerRow{{Field: "h", WaitedMS: 3}}, Queued: 4, Holder: &fullRow, Trouble: "t",
	}},
	&PingOK{ID: 1, NowNS: 2, Redis: "ok", Degraded: true, RedisAddress: "redis.example:6379/0", RedisRunID: "5f3c", RedisRisk: "r", KeyPrefix: "app1:", Trouble: "t"},
	&StatusOK{ID: 1, StatusRow: StatusRow{
		NowNS: 2, StartedNS: 1, Version: "0.1", Redis: "not ok", Degraded: true, Held: 3,
		Shards: []ShardRow{{Slots: 4, Redis: "none has them"}, {"10.0.0.7:6379", 5, "out of memory", true, 6, 7, 8, 9}}, ShardCount: 10,
	}},
	&ConfirmOK{ID: 1},
	&ByeOK{ID: 1},
	&ClaimOK{ID: 1},
	&Err{ID: 1, Code: Timeout, Msg: "m"},
	&Err{Code: NoHello, Msg: "m"},
	&LostEvent{Hold: 1, Reason: Stolen},
	&LeaseEvent{DeadlineNS: 1},
}

// answers returns the op of the request that a reply answers.
func answers(m any) string {
	for _, op := range ops {
		if reflect.TypeOf(m) == reflect.TypeOf(answerTo(op)) {
			return op
		}
	}
	return ""
}

func TestEveryMessageDecodesAsItWasEncoded(t *testing.T) {
	for _, m := range everyRequest {
		whole := m.Append([]byte("before"))
		if !bytes.HasPrefix(whole, []byte("before")) {
			t.Fatalf("%T: Append changed the bytes before the frame", m)
		}
		got, err := new(RequestDecoder).Decode(whole[len("before")+prefix:])
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v was read as %+v, %v", m, got, err)
		}
		if err == nil && got.RequestID() != m.RequestID() {
			t.Errorf("%T: id %d", m, got.RequestID())
		}
	}
	for _, m := range everyReply {
		got, err := decodeReply(m.Append(nil)[prefix:], answers(m))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v was read as %+v, %v", m, got, err)
		}
	}
}

func TestDecodersKeepNothingOfThePreviousMessage(t *testing.T) {
	var d RequestDecoder
	for _, m := range append(everyRequest, &Acquire{ID: 1, Name: "n", WaitMS: Forever}, &Hello{ID: 1, V: 1}) {
		// Nor does a frame that fails in the middle affect the next one.
		if _, err := d.Decode([]byte("\x83\xa2op\xa7acquire\xa7wait_ms\x05")); err == nil {
			t.Fatal("a frame that is cut short was read")
		}
		got, err := d.Decode(m.Append(nil)[prefix:])
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v was read as %+v, %v", m, got, err)
		}
	}
}

func TestAnotherMsgpackDecoderReadsEveryReply(t *testing.T) {
	for _, m := range everyReply {
		got, err := msgpack.NewDecoder(bytes.NewReader(m.Append(nil)[prefix:])).DecodeMap()
		if err != nil || len(got) == 0 {
			t.Errorf("%T: %v, %v", m, got, err)
		}
	}
	m, err := msgpack.NewDecoder(bytes.NewReader(InfoOK{ID: 1, Lock: &fullRow}.Append(nil)[prefix:])).DecodeMap()
	if err != nil {
		t.Fatal(err)
	}
	if row := m["lock"].(map[string]any); len(row) != 31 || row["remote_ttl_ms"] != int8(-1) || row["name"] != fullRow.Name {
		t.Errorf("the row has %d fields: %v", len(row), row)
	}
}

func TestTextForPeopleIsTruncatedAndValidUTF8(t *testing.T) {
	long := strings.Repeat("ä", MaxMessage)
	for _, msg := range []string{long, "x" + long, strings.Repeat("\xff", 5000), strings.Repeat("🔒", MaxMessage), "ok"} {
		got, err := decodeReply(Err{ID: 1, Code: Limit, Msg: msg}.Append(nil)[prefix:], "")
		if err != nil {
			t.Fatalf("%.10q…: %v", msg, err)
		}
		cut := got.(*Err).Msg
		if len(cut) > MaxMessage || !utf8.ValidString(cut) || utf8.ValidString(msg) && !strings.HasPrefix(msg, cut) || len(msg) < MaxMessage && cut != msg {
			t.Errorf("%.10q… became %d bytes: %.10q…", msg, len(cut), cut)
		}
	}
	row := LockRow{Name: "n", State: StateRemote, Cmd: "\xff" + long, RemoteField: long, Waiters: make([]WaiterRow, 50)}
	got, err := decodeReply(InfoOK{ID: 1, Lock: &row}.Append(nil)[prefix:], "info")
	if err != nil {
		t.Fatal(err)
	}
	if r := got.(*InfoOK).Lock; len(r.Cmd) > MaxCmd || len(r.RemoteField) != MaxField || len(r.Waiters) != MaxWaiters {
		t.Errorf("cmd %d, remote_field %d bytes, %d waiters", len(r.Cmd), len(r.RemoteField), len(r.Waiters))
	}
}

func TestRowsOfListRoomFitIntoAFrame(t *testing.T) {
	big := fullRow
	for range MaxWaiters {
		big.Waiters = append(big.Waiters, fullWaiter)
		big.Holders = append(big.Holders, fullHolder)
	}
	m := ListOK{ID: 1<<63 - 1, Next: 1<<63 - 1}
	room := ListRoom
	small := LockRow{Name: "n", State: StateFree}
	for _, row := range []LockRow{big, small} {
		for row.Size() <= room {
			m.Locks = append(m.Locks, row)
			room -= row.Size()
		}
	}
	if len(m.Locks) < 20 {
		t.Fatalf("only %d rows", len(m.Locks))
	}
	body, err := NewReader(bytes.NewReader(m.Append(nil))).Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeReply(body, "list")
	if err != nil || len(got.(*ListOK).Locks) != len(m.Locks) {
		t.Errorf("%d rows were written, read: %v", len(m.Locks), err)
	}
}

// The longest status fits into a frame: of more shards, the first ones are sent.
func TestAnswerToStatusFitsIntoAFrame(t *testing.T) {
	long := strings.Repeat("x", MaxMessage)
	oldest := &AgeRow{strings.Repeat("n", MaxName), 1 << 62, 1 << 40, 1 << 32, long, 1 << 40}
	m := StatusOK{1<<63 - 1, StatusRow{
		NowNS: 1 << 62, StartedNS: 1 << 62, Version: long, Redis: long, Degraded: true, RedisAddress: long, RedisRunID: long, RedisRisk: long, KeyPrefix: long,
		RoundTripNS: 1 << 62, Trouble: long, Sessions: 1 << 30, Held: 1 << 30, Waiting: 1 << 30, OldestWaiter: oldest, OldestHold: oldest,
		RenewalsLate: 1 << 30, Restart: &RestartRow{long, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30}, Hidden: long, ShardCount: 1 << 30,
	}}
	for range 10 {
		m.Lost = append(m.Lost, LossRow{Reason(long), 1 << 30})
	}
	for range 2 * MaxShards {
		m.Shards = append(m.Shards, ShardRow{long, 1 << 14, long, true, 1 << 62, 1 << 30, 1 << 30, 1 << 30})
	}
	body, err := NewReader(bytes.NewReader(m.Append(nil))).Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeReply(body, "status")
	if err != nil || len(got.(*StatusOK).Shards) != MaxShards || got.(*StatusOK).ShardCount != 1<<30 {
		t.Errorf("%d bytes: %v", len(body), err)
	}
}

// The longest answer about one lock fits into a frame.
func TestAnswerToWhoFitsIntoAFrame(t *testing.T) {
	row := fullRow
	for range MaxWaiters {
		row.Waiters = append(row.Waiters, fullWaiter)
		row.Holders = append(row.Holders, fullHolder)
	}
	long := strings.Repeat("x", MaxMessage)
	var owners []OwnerRow
	for range 2 * MaxOwners {
		owners = append(owners, OwnerRow{long, long, long, 1 << 62, 1 << 30, 1 << 62, row.Holders, 1 << 30})
	}
	m := WhoOK{1<<63 - 1, WhoRow{&row, long, long, long, -1, owners, owners, 1 << 30, 1 << 30, MaxPermits, &row, long}}
	body, err := NewReader(bytes.NewReader(m.Append(nil))).Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeReply(body, "who")
	if err != nil || len(got.(*WhoOK).Owners) != MaxOwners || len(got.(*WhoOK).Queue) != MaxOwners {
		t.Errorf("%d bytes: %v", len(body), err)
	}
}

func TestEventsOfListRoomFitIntoAFrame(t *testing.T) {
	m := EventsOK{ID: 1<<63 - 1, Next: 1<<63 - 1, Missed: 1<<63 - 1}
	room := ListRoom
	big := EventRow{AtNS: 1 << 62, Kind: EventDeadlock, Name: strings.Repeat("n", MaxName), Cmd: strings.Repeat("c", MaxCmd), Msg: strings.Repeat("m", 2*MaxMessage)}
	for _, row := range []EventRow{big, {Kind: "k"}} {
		for row.Size() <= room {
			m.Events = append(m.Events, row)
			room -= row.Size()
		}
	}
	body, err := NewReader(bytes.NewReader(m.Append(nil))).Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeReply(body, "events")
	if err != nil || len(got.(*EventsOK).Events) != len(m.Events) || len(got.(*EventsOK).Events[0].Msg) != MaxMessage {
		t.Errorf("%d events were written, read: %v", len(m.Events), err)
	}
}

func TestEncodingAnInvalidMessagePanics(t *testing.T) {
	ticket := strings.Repeat("t", MaxTicket+1)
	for name, m := range map[string]interface{ Append([]byte) []byte }{
		"a frame of more than 64 KiB":       Info{ID: 1, Name: strings.Repeat("n", MaxFrame)},
		"a ticket that is too long":         HelloOK{ID: 1, Ticket: ticket},
		"a resume that is too long":         Hello{ID: 1, Resumable: true, Resume: ticket},
		"a claim that names too many holds": Claim{ID: 1, Holds: make([]ClaimedHold, MaxClaims+1)},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was written", name)
				}
			}()
			m.Append(nil)
		}()
	}
}

// largestClaim returns a claim of MaxClaims holds with the largest numbers, unsorted.
func largestClaim(more bool) Claim {
	c := Claim{ID: math.MaxInt64, More: more}
	for i := range uint64(MaxClaims) {
		c.Holds = append(c.Holds, ClaimedHold{math.MaxInt64 - i*2654435761%MaxClaims, math.MaxUint32})
	}
	return c
}

func TestLargestClaimFitsIntoAFrame(t *testing.T) {
	want := largestClaim(true)
	body, err := NewReader(bytes.NewReader(want.Append(nil))).Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := new(RequestDecoder).Decode(body)
	if err != nil || !reflect.DeepEqual(got, &want) {
		t.Errorf("it was read as %.100v…, %v", got, err)
	}
}

func TestSuccessiveClaimsShareMemoryThatIsNotKept(t *testing.T) {
	var d RequestDecoder
	more, last := largestClaim(true).Append(nil)[prefix:], largestClaim(false).Append(nil)[prefix:]
	if n := testing.AllocsPerRun(10, func() { d.Decode(more) }); n != 0 {
		t.Errorf("reading a claim after another allocates %v times", n)
	}
	if _, err := d.Decode(last); err != nil || len(d.claim.Holds) != MaxClaims {
		t.Fatalf("%d holds, %v", len(d.claim.Holds), err)
	}
	if _, err := d.Decode(Ping{ID: 1}.Append(nil)[prefix:]); err != nil || d.claim.Holds != nil || d.numbers != nil {
		t.Errorf("after the last one, memory for %d holds is kept, %v", cap(d.claim.Holds), err)
	}
}

// Also if a header claims far more than the frame has, or a frame is nothing but structure,
// decoding allocates no more than a few times the size of a frame.
func TestHostileFramesCostAtMostTheirSize(t *testing.T) {
	start := []byte("\x83\xa2op\xa4ping\xa2id\x01\xa1x")
	claim := []byte("\x83\xa2op\xa5claim\xa2id\x01\xa5holds")
	fill := func(s string) []byte {
		return append(bytes.Clone(start), bytes.Repeat([]byte(s), (MaxFrame-len(start))/len(s))...)
	}
	manyKeys := func(n int, key func(i int) string) []byte {
		b := append([]byte{0xdf}, binary.BigEndian.AppendUint32(nil, uint32(n+2))...)
		b = append(b, start[1:len(start)-2]...)
		for i := range n {
			b = append(b, key(i)...)
		}
		return b
	}
	frames := map[string][]byte{
		"array32 of 64 M":       append(bytes.Clone(start), 0xdd, 4, 0, 0, 0),
		"map32 of 64 M":         append(bytes.Clone(start), 0xdf, 4, 0, 0, 0),
		"bin32 of 512 MiB":      append(bytes.Clone(start), 0xc6, 0x20, 0, 0, 0),
		"str32 of 4 GiB":        append(bytes.Clone(start), 0xdb, 0xff, 0xff, 0xff, 0xff),
		"ext32 of 4 GiB":        append(bytes.Clone(start), 0xc9, 0xff, 0xff, 0xff, 0xff, 1),
		"arrays without end":    fill("\x91"),
		"maps without end":      fill("\x81\xa1a"),
		"empty arrays":          fill("\x90"),
		"body is map32 of 64 M": {0xdf, 4, 0, 0, 0},
		"a name of 60 KB":       append([]byte("\x83\xa2op\xa4info\xa2id\x01\xa4name\xda\xee\x00"), make([]byte, 0xee00)...),
		"one key 30,000 times":  manyKeys(30_000, func(int) string { return "\xa0\xc0" }),
		"12,000 different keys": manyKeys(12_000, func(i int) string {
			return "\xa3" + string([]byte{'a' + byte(i>>10), 'a' + byte(i>>5&31), 'A' + byte(i&31)}) + "\xc0"
		}),
		"a claim of 64 M integers":    append(bytes.Clone(claim), 0xdd, 4, 0, 0, 0),
		"a claim of 60,000 integers":  append(append(bytes.Clone(claim), 0xdc, 0xea, 0x60), bytes.Repeat([]byte{1}, 60_000)...),
		"a claim of 8,192 arrays":     append(append(bytes.Clone(claim), 0xdc, 0x20, 0), bytes.Repeat([]byte{0x90}, 8_192)...),
		"a claim of one hold, 4,096×": append(append(bytes.Clone(claim), 0xdc, 0x20, 0), bytes.Repeat([]byte{1}, 8_192)...),
		"a reply of 64 M rows":        []byte("\x82\xa2id\x01\xa5locks\xdd\x04\x00\x00\x00"),
		"a reply of empty arrays":     append([]byte("\x82\xa2id\x01\xa5locks\xdc\xf0\x00"), bytes.Repeat([]byte{0x90}, 0xf000)...),
	}
	for name, body := range frames {
		t.Run(name, func(t *testing.T) {
			if len(body) > MaxFrame {
				t.Fatalf("the frame has %d bytes", len(body))
			}
			if n := allocated(func() { new(RequestDecoder).Decode(body) }); n > 4*MaxFrame {
				t.Errorf("reading it as a request allocates %d bytes", n)
			}
			if n := allocated(func() { decodeReply(body, "list") }); n > 4*MaxFrame {
				t.Errorf("reading it as a reply allocates %d bytes", n)
			}
		})
	}
	t.Run("frames of 4 GiB", func(t *testing.T) {
		if n := allocated(func() { NewReader(strings.NewReader("\xff\xff\xff\xff")).Next() }); n > 2*bufferSize {
			t.Errorf("a length of 4 GiB allocates %d bytes", n)
		}
		if n := allocated(func() { NewReader(strings.NewReader("\x00\x01\x00\x00")).Next() }); n > 2*bufferSize {
			t.Errorf("a length of 64 KiB without the body allocates %d bytes", n)
		}
	})
}

// allocated returns how many bytes do allocates: the least of some runs, because the runtime and
// the testing package allocate now and then, too.
func allocated(do func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

func TestReaderSplitsAStreamIntoFrames(t *testing.T) {
	var stream []byte
	var bodies [][]byte
	for i, n := range []int{1, 2, 100, bufferSize - prefix, bufferSize - prefix + 1, 1, MaxFrame, 3, 30_000, MaxFrame, 1} {
		body := bytes.Repeat([]byte{byte(i)}, n)
		bodies = append(bodies, body)
		stream = append(binary.BigEndian.AppendUint32(stream, uint32(n)), body...)
	}
	for name, src := range map[string]io.Reader{
		"whole":             bytes.NewReader(stream),
		"byte by byte":      iotest.OneByteReader(bytes.NewReader(stream)),
		"halves":            iotest.HalfReader(bytes.NewReader(stream)),
		"data with the EOF": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(src)
		for i, want := range bodies {
			got, err := r.Next()
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: frame %d: %d bytes, %v", name, i, len(got), err)
			}
		}
		for range 2 {
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("%s: at the end: %v", name, err)
			}
		}
		if len(r.buf) > prefix+MaxFrame {
			t.Errorf("%s: the buffer has %d bytes", name, len(r.buf))
		}
	}
}

func TestReaderReportsWhetherAnotherFrameIsBuffered(t *testing.T) {
	ping := Ping{ID: 1}.Append(nil)
	r := NewReader(bytes.NewReader(append(append(bytes.Clone(ping), ping...), ping[:len(ping)-1]...)))
	if r.Buffered() != 0 {
		t.Errorf("before the first read: %d", r.Buffered())
	}
	for _, want := range []int{len(ping), 0} {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if r.Buffered() != want {
			t.Errorf("%d bytes, want %d", r.Buffered(), want)
		}
	}
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Errorf("at the end inside a frame: %v", err)
	}

	r = NewReader(bytes.NewReader(append(bytes.Clone(ping), 0, 0, 0, 0)))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if r.Buffered() == 0 {
		t.Error("a bad length is not reported before the next read")
	}
	var conn *ConnError
	for range 2 {
		if _, err := r.Next(); !errors.As(err, &conn) {
			t.Errorf("a length of 0: %v", err)
		}
	}
}

func TestReaderGoesOnAfterATimeout(t *testing.T) {
	ping := Ping{ID: 1}.Append(nil)
	r := NewReader(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(ping))))
	if _, err := r.Next(); err != iotest.ErrTimeout {
		t.Fatalf("the stream's error: %v", err)
	}
	if body, err := r.Next(); err != nil || !bytes.Equal(body, ping[prefix:]) {
		t.Errorf("after it: %x, %v", body, err)
	}
}

func TestEveryFieldIsFoundByItsName(t *testing.T) {
	for f := field(1); f < fields; f++ {
		if got := fieldOf([]byte(f.String())); f.String() == "" || got != f {
			t.Errorf("field %d has the name %q, which finds field %d", f, f, got)
		}
	}
	if f := fieldOf([]byte("x")); f != 0 {
		t.Errorf("x is field %d", f)
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", " ", "~", "\u00a0", "Größe/锁/🔒 {a}", strings.Repeat("n", 512), "\ufffd"} {
		if err := CheckName(name); err != nil {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                       "is empty",
		strings.Repeat("n", 513): "513 bytes",
		"\xff":                   "not UTF-8",
		"a\x00":                  "U+0000 at byte 1",
		"\x1f":                   "U+001F",
		"\x7f":                   "U+007F",
		"\u0080":                 "U+0080",
		"\u009f":                 "U+009F",
	} {
		if err := CheckName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", name, err, want)
		}
	}
}

func TestRefusalsNameTheFieldAndTheRange(t *testing.T) {
	for body, want := range map[string]string{
		"\x84\xa2op\xa7acquire\xa2id\x01\xa4name\xa1n\xa8lease_ms\x31":                "lease_ms is 49; it must be from 50 to 2592000000",
		"\x84\xa2op\xa7acquire\xa2id\x01\xa4name\xa1n\xa7wait_ms\xff":                 "wait_ms is -1; it must be from 0 to 2592000000",
		"\x84\xa2op\xa7acquire\xa2id\x01\xa4name\xa1n\xa7wait_ms\xa1x":                "wait_ms must be an integer",
		"\x82\xa2op\xa7acquire\xa2id\x01":                                             "name is missing",
		"\x83\xa2op\xa7release\xa2id\x01\xa4hold\xcf\x80\x00\x00\x00\x00\x00\x00\x00": "hold is 9223372036854775808; it must be from 0 to 9223372036854775807",
		"\x84\xa2op\xa7acquire\xa2id\x01\xa4name\xa1n\xa9reentrant\xa5false":          "reentrant must be true or false",
		"\x83\xa2op\xa5claim\xa2id\x01\xa5holds\x93\x01\x01\x02":                      "holds has 3 elements; it must be pairs, of a hold and its entries",
		"\x83\xa2op\xa5claim\xa2id\x01\xa5holds\x92\x00\x01":                          "a hold in holds is 0; it must be from 1 to 9223372036854775807",
		"\x83\xa2op\xa5claim\xa2id\x01\xa5holds\x92\x07\x00":                          "an entry count in holds is 0; it must be from 1 to 4294967295",
		"\x83\xa2op\xa5claim\xa2id\x01\xa5holds\x92\x07\xc0":                          "an entry count in holds must be an integer",
		"\x84\xa2op\xa5hello\xa2id\x01\xa1v\x01\xa6resume\xa1t":                       "resume needs resumable to be true: a session is resumed by a client that will do so again",
	} {
		_, err := new(RequestDecoder).Decode([]byte(body))
		var refused *RequestError
		if !errors.As(err, &refused) || refused.Msg != want {
			t.Errorf("%q: %v, want %q", body, err, want)
		}
	}
}

func TestNowNeverGoesBack(t *testing.T) {
	last := Now()
	for range 1000 {
		now := Now()
		if now < last || now <= 0 {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
}

var raceEnabled bool

func TestCodecAllocations(t *testing.T) {
	buf := make([]byte, 0, 1024)
	acquire := Acquire{ID: 1, Name: "invoice:42", WaitMS: Forever}
	granted := AcquireOK{ID: 1, Token: 1 << 50, Hold: 3, Count: 1, DeadlineNS: 1 << 40}
	if n := testing.AllocsPerRun(100, func() { acquire.Append(buf); granted.Append(buf) }); n != 0 && !raceEnabled {
		t.Errorf("writing allocates %v times", n)
	}
	var rq RequestDecoder
	body := acquire.Append(nil)[prefix:]
	if n := testing.AllocsPerRun(100, func() { rq.Decode(body) }); n > 1 {
		t.Errorf("reading an acquire allocates %v times; the name needs one", n)
	}
	release := Release{Hold: 1}.Append(nil)[prefix:]
	if n := testing.AllocsPerRun(100, func() { rq.Decode(release) }); n != 0 {
		t.Errorf("reading a release allocates %v times", n)
	}
	var rp ReplyDecoder
	answer := granted.Append(nil)[prefix:]
	var ok AcquireOK
	if n := testing.AllocsPerRun(100, func() {
		m, _ := rp.Decode(answer)
		_ = m.(*Answer).Unpack(&ok)
	}); n != 0 {
		t.Errorf("reading an answer allocates %v times", n)
	}
}
