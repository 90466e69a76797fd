package locktable_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The scenarios in testdata/scenarios show what one table does: a command, "----", and every effect of
// it. testdata/scenarios/README.md has the commands. They use only what the package exports.
//
//	go test ./sidecar/locktable -run '^TestScenarios$' -update
//
// writes the effects of a change that is meant; the difference in the files is what to review.
var update = flag.Bool("update", false, "write the effects into testdata/scenarios")

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scenarios (%v)", len(files), err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			ran := newScenario(t).run(string(text))
			switch {
			case *update:
				if err := os.WriteFile(path, []byte(ran), 0o644); err != nil {
					t.Fatal(err)
				}
			case ran != string(text):
				t.Errorf("%s: %s", path, firstDifference(string(text), ran))
			}
		})
	}
}

// firstDifference describes the first line in which two texts differ, with the lines before it.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	i := 0
	for i < min(len(w), len(g)) && w[i] == g[i] {
		i++
	}
	from := max(0, i-6)
	return fmt.Sprintf("line %d differs\n  after\n%s\n  the file has\n%s\n  and the table does\n%s", i+1,
		strings.Join(w[from:i], "\n"), strings.Join(w[i:min(i+6, len(w))], "\n"), strings.Join(g[i:min(i+6, len(g))], "\n"))
}

// A scenario is one table, and what the commands of a file have done to it.
type scenario struct {
	*testing.T
	table    *locktable.Table
	conn     redisop.Conn
	journal  *recordJournal
	now      int64
	inFlight []redisop.Op
	requests uint64                                 // the last id
	waiting  map[string]uint64                      // client and lock → id of its last acquire
	holds    map[string]uint64                      // client and lock → hold
	peers    map[locktable.SessionID]locktable.Peer // of open sessions
	peerNo   map[string]locktable.SessionID         // name of a client → its session
	out      bytes.Buffer                           // effects of the command
	cfg      locktable.Config
}

const startOfScenario = int64(time.Hour)

func newScenario(t *testing.T) *scenario {
	s := &scenario{T: t, now: startOfScenario, conn: redisop.NewConn(1)}
	// No delay is random, so that a change of what is drawn changes no scenario.
	s.cfg = locktable.Config{Chance: noChance{}, NoRenewalOffsets: true}
	s.waiting, s.holds = map[string]uint64{}, map[string]uint64{}
	s.peers, s.peerNo = map[locktable.SessionID]locktable.Peer{}, map[string]locktable.SessionID{}
	return s
}

// noChance always draws the same number: about the middle of each range.
type noChance struct{}

func (noChance) Uint64() uint64 { return 0x7f4a_7c15_7f4a_7c15 }

// run runs the commands of a file, and returns the file with the effects that they have now.
func (s *scenario) run(text string) string {
	var ran strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		ran.WriteString(lines[i] + "\n")
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			continue
		}
		s.command(lines[i])
		for i+1 < len(lines) && lines[i+1] != "" { // what the file has of it
			i++
		}
		ran.WriteString("----\n")
		if s.out.Len() == 0 {
			ran.WriteString("nothing\n")
		}
		ran.WriteString(s.out.String())
		s.out.Reset()
	}
	return ran.String()
}

// arguments are those of a command: words, and words with a value.
type arguments struct {
	*scenario
	line  string
	words []string
	value map[string]string
}

func (a *arguments) fail(format string, args ...any) {
	a.Helper()
	a.Fatalf("%s: %s", a.line, fmt.Sprintf(format, args...))
}

// next is the next word.
func (a *arguments) next() string {
	if len(a.words) == 0 {
		a.fail("it lacks an argument")
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// has reports whether a word is among the rest, and removes it.
func (a *arguments) has(word string) bool {
	i := slices.Index(a.words, word)
	if i < 0 {
		return false
	}
	a.words = slices.Delete(a.words, i, i+1)
	return true
}

// text, number and duration return a value, and remove it. Without it, they return the zero value.
func (a *arguments) text(key string) string {
	v := a.value[key]
	delete(a.value, key)
	return v
}

func (a *arguments) number(key string) uint64 {
	v := a.text(key)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		a.fail("%v", err)
	}
	return n
}

func (a *arguments) duration(key string) time.Duration { return a.parse(a.text(key)) }

func (a *arguments) parse(v string) time.Duration {
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		a.fail("%v", err)
	}
	return d
}

func (s *scenario) command(line string) {
	a := &arguments{scenario: s, line: line, value: map[string]string{}}
	for _, w := range strings.Fields(line)[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.value[k] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	switch name := strings.Fields(line)[0]; name {
	case "table":
		s.start(a)
	case "up":
		s.table.Up(s.now, 0, a.has("data-lost"), true)
	case "down":
		s.table.Down(s.now, 0, "Redis is down")
	case "acquire":
		s.acquire(a)
	case "release":
		s.requests++
		s.table.Release(s.now, s.session(a.words[0]), protocol.Release{ID: s.requests, Hold: s.holds[a.next()+" "+a.next()]})
	case "cancel":
		s.table.Cancel(s.now, s.session(a.words[0]), protocol.Cancel{Target: s.waiting[a.next()+" "+a.next()]})
	case "exit":
		s.exit(a.next())
	case "claim":
		s.claim(a)
	case "result":
		s.result(a)
	case "message":
		s.message(a)
	case "subscribed":
		s.table.Subscribed(s.now, 0, a.next())
	case "advance":
		s.advance(a.parse(a.next()))
	case "restart":
		s.restart(a.has("data-lost"))
	case "show":
		s.show(a.next())
	case "print":
		s.out.WriteString(s.table.Text(s.now, a.next()))
	default:
		a.fail("there is no such command")
	}
	if len(a.words)+len(a.value) > 0 {
		a.fail("it has no use for %v %v", a.words, a.value)
	}
	s.collect()
}

// start makes the table.
func (s *scenario) start(a *arguments) {
	s.cfg.Contest.Linger, s.cfg.Lease = moment.SpanOf(a.duration("linger")), a.duration("lease")
	s.journal = newRecordJournal()
	s.cfg.Journal = s.journal
	s.table = locktable.New(s.cfg, s.now)
	s.table.Up(s.now, 0, false, true)
}

// session returns the session of a client. It is opened when the client is first named.
func (s *scenario) session(client string) locktable.SessionID {
	if s.peerNo[client] == 0 {
		id := locktable.SessionID(len(s.peers) + 1)
		s.peerNo[client], s.peers[id] = id, locktable.Peer{PID: int64(100 + id), UID: 1000, Cmd: client}
		s.table.Open(s.now, id, s.peers[id])
	}
	return s.peerNo[client]
}

func (s *scenario) clientOf(id locktable.SessionID) string { return s.peers[id].Cmd }

func (s *scenario) acquire(a *arguments) {
	client, lock := a.next(), a.next()
	s.requests++
	req := protocol.Acquire{ID: s.requests, Name: lock, WaitMS: protocol.Forever, Fair: a.has("fair"), LeaseMS: a.duration("lease").Milliseconds()}
	switch {
	case a.has("try"):
		req.WaitMS = 0
	case a.value["wait"] != "":
		req.WaitMS = a.duration("wait").Milliseconds()
	}
	s.waiting[client+" "+lock] = req.ID
	s.table.Acquire(s.now, s.session(client), req)
}

// exit ends the process of a client.
func (s *scenario) exit(client string) {
	s.table.Close(s.now, s.session(client))
	s.settle()
}

// claim has the client of an absent session come back with its hold.
func (s *scenario) claim(a *arguments) {
	client, lock := a.next(), a.next()
	id := s.session(client)
	s.table.Resume(id, s.peers[id])
	s.requests++
	claim := protocol.Claim{ID: s.requests, Holds: []protocol.ClaimedHold{{Hold: s.holds[client+" "+lock], Entries: 1}}}
	if fault := s.table.Claim(s.now, id, &claim); fault != "" {
		a.fail("%s", fault)
	}
}

var outcomes = map[string]redisop.Outcome{
	"done": redisop.Done, "held-by-other": redisop.HeldByOther, "missing": redisop.KeyMissing, "differs": redisop.Differs,
	"not-a-lock": redisop.NotALock, "not-sent": redisop.NotSent, "unknown": redisop.Unknown, "refused": redisop.Refused, "retryable": redisop.Retryable, "not-synced": redisop.NotSynced,
}

// result brings the result of the oldest operation in flight of a kind.
func (s *scenario) result(a *arguments) {
	kind := a.next()
	i := slices.IndexFunc(s.inFlight, func(op redisop.Op) bool { return op.Kind.String() == kind })
	if i < 0 {
		a.fail("no %s is in flight", kind)
	}
	op := s.inFlight[i]
	s.inFlight = slices.Delete(s.inFlight, i, i+1)
	outcome, ok := outcomes[a.next()]
	if !ok {
		a.fail("there is no such outcome")
	}
	r := redisop.Result{
		Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: s.now, Conn: s.conn,
		Token: a.number("token"), Field: a.text("field"), TTLMS: a.duration("ttl").Milliseconds(),
		Waiting: uint32(a.number("waiting")), Arrived: a.number("arrived"), FirstArrived: a.number("first"), Passed: a.has("passed"),
		Listeners: redisop.CountedListeners(0),
	}
	if a.value["rank"] != "" {
		r.IsQueued, r.Rank, r.Recall = true, uint32(a.number("rank")), redisop.RecallReceived
		if a.has("not-a-sidecar") {
			r.Recall = redisop.RecallMissed
		}
		if r.Ticket = op.Ticket; r.Ticket == 0 {
			r.Ticket = op.HoldID
		}
	}
	if outcome != redisop.Done && outcome != redisop.HeldByOther {
		r.Msg = "Redis returned an error"
	}
	s.table.Result(s.now, r)
}

func (s *scenario) message(a *arguments) {
	kinds := map[string]redisop.MessageKind{
		"unlocked": redisop.Unlocked, "transferred": redisop.Transferred, "recalled": redisop.Recalled,
		"freed": redisop.Freed, "requeue": redisop.Requeue,
	}
	kind, ok := kinds[a.next()]
	if !ok {
		a.fail("there is no such message")
	}
	m := redisop.Message{Kind: kind, Name: a.next(), Conn: s.conn, PauseMS: uint32(a.duration("pause").Milliseconds())}
	if kind == redisop.Transferred {
		m.Ticket, m.LastToken, m.Tokens, m.LeaseMS = a.number("ticket"), a.number("token"), 32, 30_000
		m.Waiting = uint32(a.number("waiting"))
	}
	s.table.Message(s.now, m)
}

// advance lets time pass.
func (s *scenario) advance(d time.Duration) {
	end := s.now + int64(d)
	for at, ok := s.table.Next(); ok && at <= end; at, ok = s.table.Next() {
		s.now = max(s.now, at)
		s.settle()
		s.collect()
	}
	s.now = end
}

// settle does what is due, and what the table has left for later.
func (s *scenario) settle() {
	for s.table.Advance(s.now); s.table.Busy(); s.table.Work(s.now) {
	}
}

// restart replaces the table by one that is restored from the journal, as a new daemon does.
func (s *scenario) restart(dataLost bool) {
	s.inFlight = nil
	snapshot := s.journal.snapshot(s.peers)
	s.table = locktable.New(s.cfg, s.now)
	s.table.Restore(s.now, snapshot)
	s.conn = redisop.NewConn(2)
	s.table.Up(s.now, 0, dataLost, true)
}

func (s *scenario) show(lock string) {
	row, ok := s.table.Info(s.now, lock)
	if !ok {
		fmt.Fprintf(&s.out, "%s is not known\n", lock)
		return
	}
	fmt.Fprintf(&s.out, "%s is %s", lock, row.State)
	if row.State == protocol.StateHeld {
		fmt.Fprintf(&s.out, " by %s with hold %d, valid for %v", row.Cmd, row.Hold, s.left(row.DeadlineNS))
	}
	if row.State == protocol.StateRemote {
		fmt.Fprintf(&s.out, " by %s", row.RemoteField)
	}
	fmt.Fprintf(&s.out, "; %d waiting\n", row.Waiting)
}
