//go:build linux

package locksidecar

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// leftOut are the fields of rows that the API does not have, each with the reason.
var leftOut = map[string]string{
	"StatusRow.NowNS": "Started is a time of the wall clock, for which it is the reference",
}

// renamed are the fields whose name in the API is not that of the row without its unit.
var renamed = map[string]string{
	"LockRow.AbsentMS": "AbsentFor",
	"LockRow.Held":     "Holds",
	"OwnerRow.Held":    "Holds",
	"EventRow.Msg":     "Message",
	"WhoRow.Msg":       "Message",
}

func TestEveryFieldOfARowIsConverted(t *testing.T) {
	now := clockReading{boot: 1_000, wall: time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)}
	unseen := make(map[string]bool)
	for field := range leftOut {
		unseen[field] = true
	}
	for field := range renamed {
		unseen[field] = true
	}
	checkConversion(t, unseen, now, newLockInfo, "RemotePersistent")
	checkConversion(t, unseen, now, newHolderInfo)
	checkConversion(t, unseen, now, newWaiterInfo)
	checkConversion(t, unseen, now, newEvent)
	checkConversion(t, unseen, now, newStatus)
	checkConversion(t, unseen, now, newLossCount)
	checkConversion(t, unseen, now, newShardStatus)
	checkConversion(t, unseen, now, newHostInfo)
	checkConversion(t, unseen, now, newOwnership, "Persistent")
	checkConversion(t, unseen, now, newLockOwner)
	checkConversion(t, unseen, now, func(row *protocol.AgeRow, _ clockReading) Oldest { return *newOldest(row) })
	checkConversion(t, unseen, now, func(row *protocol.RestartRow, _ clockReading) RestartInfo { return *newRestartInfo(row) })
	for field := range unseen {
		t.Errorf("%s is not a field of a row", field)
	}
}

// checkConversion sets one field of a row after the other. Each must change the field of the same
// name, and only that one. derived are fields that a special value of another field changes.
func checkConversion[Row, Info any](t *testing.T, unseen map[string]bool, now clockReading, convert func(*Row, clockReading) Info, derived ...string) {
	t.Helper()
	rowType := reflect.TypeFor[Row]()
	zero := reflect.ValueOf(convert(new(Row), now))
	converted := make(map[string]bool)
	for _, name := range derived {
		converted[name] = true
	}
	for i := range rowType.NumField() {
		field := rowType.Name() + "." + rowType.Field(i).Name
		delete(unseen, field)
		var row Row
		setValue(reflect.ValueOf(&row).Elem().Field(i))
		got := reflect.ValueOf(convert(&row, now))
		var changed []string
		for j := range got.NumField() {
			if !reflect.DeepEqual(got.Field(j).Interface(), zero.Field(j).Interface()) {
				changed = append(changed, got.Type().Field(j).Name)
			}
		}
		want := strings.TrimSuffix(strings.TrimSuffix(rowType.Field(i).Name, "NS"), "MS")
		if name, isRenamed := renamed[field]; isRenamed {
			want = name
		}
		if leftOut[field] != "" {
			if len(changed) != 0 {
				t.Errorf("%s is in leftOut, but changes %v", field, changed)
			}
			continue
		}
		converted[want] = true
		if len(changed) != 1 || changed[0] != want {
			t.Errorf("%s changes %v of %v, want %s: convert it, or name in leftOut why not", field, changed, got.Type(), want)
		}
	}
	for j := range zero.NumField() {
		if name := zero.Type().Field(j).Name; !converted[name] {
			t.Errorf("no field of %v sets %v.%s", rowType, zero.Type(), name)
		}
	}
}

// setValue sets a value that is not zero.
func setValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("set")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		v.SetInt(7)
	}
}

func TestRowsHaveUnitsOfGo(t *testing.T) {
	wall := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	now := clockReading{boot: int64(time.Hour), wall: wall}
	lock := newLockInfo(&protocol.LockRow{
		State: protocol.StateHeld, HeldMS: 1_500, LeaseMS: 50, DeadlineNS: now.boot + int64(3*time.Second),
		Waiters: []protocol.WaiterRow{{WaitedMS: 12}},
	}, now)
	if lock.State != LockHeld || lock.Held != 1500*time.Millisecond || lock.Lease != 50*time.Millisecond ||
		!lock.Deadline.Equal(wall.Add(3*time.Second)) || lock.Waiters[0].Waited != 12*time.Millisecond {
		t.Errorf("a held lock: %+v", lock)
	}
	if free := newLockInfo(&protocol.LockRow{State: protocol.StateFree}, now); !free.Deadline.IsZero() || free.Waiters != nil {
		t.Errorf("a free lock: %+v", free)
	}
	if event := newEvent(&protocol.EventRow{AtNS: now.boot - int64(time.Minute), WaitedMS: 10}, now); !event.At.Equal(wall.Add(-time.Minute)) || event.Waited != 10*time.Millisecond {
		t.Errorf("an event: %+v", event)
	}
	status := newStatus(&protocol.StatusRow{NowNS: int64(5 * time.Second), StartedNS: int64(time.Second), RoundTripNS: 213_400}, now)
	if !status.Started.Equal(wall.Add(-4*time.Second)) || status.RoundTrip != 213_400 {
		t.Errorf("a status: %+v", status)
	}
	if host := newHostInfo(&protocol.HostRow{Started: wall.UnixMilli()}, now); !host.Started.Equal(wall) {
		t.Errorf("a host: %+v", host)
	}
	if longest := durationOf(1 << 62); longest < 290*365*24*time.Hour {
		t.Errorf("a duration that does not fit is %v", longest)
	}
}

func TestAKeyWithoutATimeToLiveIsPersistent(t *testing.T) {
	for ms, want := range map[int64]LockInfo{
		-1:  {RemotePersistent: true},
		0:   {},
		700: {RemoteTTL: 700 * time.Millisecond},
	} {
		if got := newLockInfo(&protocol.LockRow{RemoteTTLMS: ms}, clockReading{}); !reflect.DeepEqual(got, want) {
			t.Errorf("of %d ms: %+v", ms, got)
		}
	}
}

// The constants have the values of the protocol, and the protocol has no other ones.
func TestEveryValueOfTheProtocolHasAConstant(t *testing.T) {
	known := map[string]bool{}
	for _, s := range []LockState{LockHeld, LockRemote, LockBusy, LockLingering, LockFree} {
		known["State "+string(s)] = true
	}
	for _, k := range []EventKind{EventGranted, EventReleased, EventCrashed, EventLost, EventForced, EventRefused, EventDeadlock, EventTakeover, EventRedisDown, EventRedisDegraded, EventRedisUp, EventDataLost, EventSlotsOpen, EventSlotsClosed} {
		known["Event "+string(k)] = true
	}
	for _, r := range []Reason{ReasonExpired, ReasonDeleted, ReasonStolen, ReasonForced, ReasonMaxHold, ReasonForgotten, ReasonCutShort} {
		known["Reason "+string(r)] = true
	}
	file, err := parser.ParseFile(token.NewFileSet(), "../../protocol/protocol.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		kind := ""
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Reason" {
			kind = "Reason "
		} else if strings.HasPrefix(spec.Names[0].Name, "State") {
			kind = "State "
		} else if strings.HasPrefix(spec.Names[0].Name, "Event") {
			kind = "Event "
		} else {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || !known[kind+value] {
			t.Errorf("protocol.%s has no constant of the API (%v)", spec.Names[0].Name, err)
		}
		found++
		return true
	})
	if found != len(known) {
		t.Errorf("the protocol has %d of these values, the API %d", found, len(known))
	}
}
