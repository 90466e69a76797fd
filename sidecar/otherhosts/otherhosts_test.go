package otherhosts

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const someUUID = "99999999-8888-7777-6666-555555555555"

// Messages do not wait for the name of a host: it is looked up once, for the next message.
func TestHostNameIsLookedUpOnce(t *testing.T) {
	var pending []func(lookup.Host, bool, error)
	n := names{lookUp: func(_ string, done func(lookup.Host, bool, error)) { pending = append(pending, done) }}
	answer := func(h lookup.Host, known bool, err error) {
		t.Helper()
		if len(pending) != 1 {
			t.Fatalf("%d names are looked up", len(pending))
		}
		done := pending[0]
		pending = nil
		done(h, known, err)
	}
	expect := func(field, want string) {
		t.Helper()
		if got := n.of(field); got != want {
			t.Errorf("the host of %s is %q, want %q", field, got, want)
		}
	}

	expect(someUUID+":1", "")
	expect(someUUID+":2", "") // and not looked up twice
	answer(lookup.Host{}, false, errors.New("Redis is away"))
	expect(someUUID+":1", "")
	answer(lookup.Host{Name: "db-7"}, true, nil)
	expect(someUUID+":1", "db-7")
	expect(someUUID+":3", "db-7")

	program := strings.Replace(someUUID, "9", "1", 1)
	expect(program+":1", "")
	answer(lookup.Host{}, false, nil)
	expect(program+":1", "") // not at each message
	for _, field := range []string{"", "a", "a:1", someUUID} {
		expect(field, "")
	}
	if len(pending) != 0 {
		t.Errorf("%d names are looked up without need", len(pending))
	}
	// A sidecar that has just started has no name for a moment only. A name may change, and seldom does.
	n.byUUID[program].lookedUp -= int64(nameRetry)
	n.byUUID[someUUID].lookedUp -= int64(nameRetry)
	expect(someUUID+":1", "db-7")
	expect(program+":1", "")
	answer(lookup.Host{Name: "db-8"}, true, nil)
	n.byUUID[someUUID].lookedUp -= int64(nameRefresh)
	expect(someUUID+":1", "db-7")
	answer(lookup.Host{Name: "db-9"}, true, nil)
	expect(someUUID+":1", "db-9")
	expect(program+":1", "db-8")
}

func TestHostNamesAreBounded(t *testing.T) {
	n := names{lookUp: func(_ string, done func(lookup.Host, bool, error)) { done(lookup.Host{Name: "h"}, true, nil) }}
	for i := range 2 * maxHostNames {
		n.of(fmt.Sprintf("99999999-8888-7777-6666-%012d:1", i))
	}
	if len(n.byUUID) > maxHostNames {
		t.Errorf("%d names are kept", len(n.byUUID))
	}
}

// Another host knows only which sidecar asks. So that sidecar decides which users may ask it to end
// a hold.
func TestOnlyAdministratorsForceLocksOfOtherHostsFree(t *testing.T) {
	for user, isRefused := range map[int64]bool{4711: true, 0: false, int64(os.Geteuid()): false} {
		for _, setting := range []Setting{Show, ForceRelease} {
			h := New(Config{Setting: setting})
			// The user has all its questions, so that a request that is permitted goes no further.
			for h.asker.begin(user) == nil {
			}
			c := &Client{UID: user}
			want := protocol.Limit
			if isRefused {
				want = protocol.Denied
			}
			if _, refusal := h.try(t.Context(), c, &protocol.HostForceRelease{ID: 1, Host: someUUID, Name: "a"}); refusal == nil || refusal.Code != want {
				t.Errorf("user %d, other_hosts %s: %+v, want %s", user, setting, refusal, want)
			}
			if _, refusal := h.try(t.Context(), c, &protocol.ForceReleaseOrphaned{ID: 1, Name: "a"}); refusal == nil || refusal.Code != want {
				t.Errorf("orphaned, user %d, other_hosts %s: %+v, want %s", user, setting, refusal, want)
			}
			if _, refusal := h.try(t.Context(), c, &protocol.HostInfo{ID: 1, Host: someUUID, Name: "a"}); refusal == nil || refusal.Code != protocol.Limit {
				t.Errorf("user %d may not look at locks of other hosts: %+v", user, refusal)
			}
		}
	}
}

// One user cannot take all the questions to other hosts.
func TestOneUserLeavesRoomForQuestions(t *testing.T) {
	var a asker
	const user, other = 4711, 4712
	n := 0
	var refusal *protocol.Err
	for ; refusal == nil; n++ {
		refusal = a.begin(user)
	}
	if n--; n == 0 || n >= maxQuestions || refusal.Code != protocol.Limit {
		t.Errorf("one user has %d questions of %d, then %v", n, maxQuestions, refusal)
	}
	if refusal := a.begin(other); refusal != nil {
		t.Errorf("another user is refused: %s", refusal.Msg)
	}
	a.end(user)
	if refusal := a.begin(user); refusal != nil {
		t.Errorf("after the end of a question, the user is refused: %s", refusal.Msg)
	}
	for range 2 * maxQuestions {
		a.end(other)
		if refusal := a.begin(other); refusal != nil {
			t.Fatalf("questions that ended keep their room: %s", refusal.Msg)
		}
	}
}

// An answer reaches the question with its number, once. Others are ignored, and block nothing.
func TestAnswersReachTheirQuestions(t *testing.T) {
	var a asker
	if refusal := a.begin(int64(os.Getuid())); refusal != nil {
		t.Fatal(refusal)
	}
	number, answers := a.expect()
	answer := func(id uint64, hold uint64) []byte {
		return frameBody(protocol.ForceReleaseOK{ID: id, Hold: hold}.Append(nil))
	}
	a.answer(answer(number^1, 1))
	a.answer([]byte("no answer"))
	a.answer(nil)
	a.answer(answer(number, 2))
	a.answer(answer(number, 3))
	var ok protocol.ForceReleaseOK
	if refusal := unpackAnswer(<-answers, &ok); refusal != nil || ok.Hold != 2 {
		t.Errorf("the answer is %+v, %v", ok, refusal)
	}
	if len(answers) != 0 {
		t.Error("a question is answered twice")
	}
	if refusal := unpackAnswer([]byte{0x81}, &ok); refusal == nil {
		t.Error("an answer that is truncated is accepted")
	}
}

// A question that gets no answer is forgotten: otherwise each one would cost memory for good.
func TestQuestionWithoutAnswerIsForgotten(t *testing.T) {
	h := New(Config{})
	var err error
	if h.Store, err = store.Open(store.Config{URL: "unix:///nonexistent/redis", UUID: someUUID}); err != nil {
		t.Fatal(err)
	}
	defer h.Store.Close(t.Context())
	if refusal := h.asker.begin(0); refusal != nil {
		t.Fatal(refusal.Msg)
	}
	question := func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: "a"} }
	if err := h.askSidecar(t.Context(), someUUID, question, new(protocol.HostInfoOK)); err == nil {
		t.Error("a sidecar answered without Redis")
	}
	if n := len(h.asker.waiting); n != 0 {
		t.Errorf("%d questions wait for an answer", n)
	}
}

// A flood of questions is not answered: neither in one step, nor in a second.
func TestFloodOfQuestionsIsDropped(t *testing.T) {
	var q questions
	taken := 0
	for range 2 * maxUnansweredQuestions {
		if q.take(5) {
			taken++
		}
	}
	if taken != maxUnansweredQuestions {
		t.Errorf("%d questions wait for a step", taken)
	}
	for range taken {
		q.done()
	}
	for range 2 * maxAnswers {
		if q.take(5) {
			taken++
			q.done()
		}
	}
	if taken != maxAnswers {
		t.Errorf("%d questions are answered in a second", taken)
	}
	if !q.take(5 + 1e9) {
		t.Error("a question of the next second is dropped")
	}
}

// A deadline passes between hosts as the time that is left.
func TestDeadlineOfAnotherHostIsATimeOfThisOne(t *testing.T) {
	row := protocol.LockRow{State: protocol.StateHeld, DeadlineNS: 1e18 + 5e9}
	toRelative(1e18, &row)
	before := protocol.Now()
	toOwnClock(&row)
	if left := row.DeadlineNS - before; left < 5e9 || left > 5e9+int64(10e9) {
		t.Errorf("5 s are left there, and %d ns here", left)
	}
	far := protocol.LockRow{State: protocol.StateHeld, DeadlineNS: math.MaxInt64}
	if toOwnClock(&far); far.DeadlineNS < before {
		t.Errorf("the latest deadline there has passed here: %d", far.DeadlineNS)
	}
	free := protocol.LockRow{State: protocol.StateFree}
	toRelative(1e18, &free)
	if toOwnClock(&free); free.DeadlineNS != 0 {
		t.Errorf("a free lock has the deadline %d", free.DeadlineNS)
	}
}

// Whatever can publish in Redis can answer a question, with rows that no sidecar makes.
func TestAnswerThatDoesNotFitIsRefused(t *testing.T) {
	rows := make([]*protocol.LockRow, 3500)
	for i := range rows {
		rows[i] = &protocol.LockRow{Name: "a", State: protocol.StateHeld}
	}
	if refusal := acceptRows("db-7", rows[:10]...); refusal != nil {
		t.Errorf("ten rows: %s", refusal.Msg)
	}
	for what, refusal := range map[string]*protocol.Err{
		"too many rows":      acceptRows("db-7", rows...),
		"a row without name": acceptRows("db-7", &protocol.LockRow{State: protocol.StateHeld}),
	} {
		if refusal == nil || refusal.Code != protocol.Unavailable || !strings.Contains(refusal.Msg, "db-7") {
			t.Errorf("%s: %+v", what, refusal)
		}
	}
}
