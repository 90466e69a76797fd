package link

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestSentinelMessages(t *testing.T) {
	for _, tt := range []struct{ text, named, moved string }{
		{"mymaster 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.2:6380", "10.0.0.2:6380"},
		{"mymaster 10.0.0.1 6379 fe80::1 6380", "[fe80::1]:6380", "[fe80::1]:6380"},
		{"mymaster 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.1:6379", ""}, // no Sentinel confirms it
		{"another 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.2:6380", ""},
		{"mymaster 10.0.0.1 6379 10.0.0.2 x", "10.0.0.2:6380", ""},
		{"mymaster 10.0.0.1 6379 10.0.0.2", "10.0.0.2:6380", ""},
		{"", "10.0.0.2:6380", ""},
	} {
		f := harness.StartFakeSentinel(t, func(int) (string, int) { return tt.named, 1 })
		s := newSentinels(group(t, f.URL()), slog.New(slog.DiscardHandler))
		moved := ""
		s.onMoved = func(address string) { moved = address }
		if s.onMessage(t.Context(), sentinel.SwitchMaster, tt.text); moved != tt.moved {
			t.Errorf("%q, and the Sentinels name %s: moved to %q, want %q", tt.text, tt.named, moved, tt.moved)
		}
		s.close()
	}
}

func TestPermissionsThatASentinelWantsAreNamed(t *testing.T) {
	denied := errors.New("NOPERM User app has no permissions to run the 'sentinel|sentinels' command")
	if why := new(sentinelGroup).reason(denied); !strings.Contains(why, "let its ACL have +sentinel|myid +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels") {
		t.Error(why)
	}
}

func TestSentinelWithoutTLSIsNamed(t *testing.T) {
	for _, err := range []error{tls.RecordHeaderError{}, io.EOF, context.DeadlineExceeded} {
		if why := (&sentinelGroup{Sentinel: redisurl.Sentinel{TLS: true}}).reason(err); !strings.Contains(why, "remove sentinel_tls=true") {
			t.Error(why)
		}
	}
}

func group(t *testing.T, raw string) *sentinelGroup {
	t.Helper()
	d, err := Parse(Settings{URL: raw, UUID: ourUUID, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	return d.group
}

// A master that its Sentinels see down is none to move to: the connection to the server before stays.
func TestAddressOfAMasterThatIsDownIsNotMovedTo(t *testing.T) {
	for _, tt := range []struct {
		flags, row string
		want       bool
	}{
		{"", "", true},
		{",s_down,o_down", "", false},
		{",s_down,o_down", "127.0.0.1:1", true}, // in a failover, the row is of the old master, and the address of the new one
	} {
		flags, want := tt.flags, tt.want
		s := harness.StartFakeSentinel(t, func(int) (string, int) { return "127.0.0.1:2", 1 })
		s.Set(harness.FakeAnswers{Flags: flags, Leads: tt.row})
		d, err := Parse(Settings{URL: s.URL(), Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		all := newSentinels(d.group, slog.New(slog.DiscardHandler))
		defer all.close()
		all.behindMu.Locate(protocol.Now(), sentinel.Verdict{Master: "127.0.0.1:1"})
		if address, isOther := all.other(t.Context()); address != "127.0.0.1:2" || isOther != want {
			t.Errorf("%q: at %s, and another one to move to: %v", flags, address, isOther)
		}
	}
}

// If the message is lost, two rounds of questions find the new master. One is not enough: Sentinels may
// differ for a moment.
func TestSentinelsAreAskedAgain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other int // as many rounds name another address
		moved bool
	}{{"one round", 1, false}, {"two rounds", 2, true}} {
		t.Run(tt.name, func(t *testing.T) {
			const enough = 8
			over := make(chan bool)
			f := harness.StartFakeSentinel(t, func(round int) (string, int) {
				if round == enough {
					select {
					case <-over:
					default:
						close(over)
					}
				}
				if round >= 2 && round < 2+tt.other {
					return "10.0.0.2:1", 2
				}
				return "10.0.0.1:1", 1
			})
			f.NoSubs.Store(true) // the rounds that follow a subscription would come between two of watch
			s := newSentinels(group(t, f.URL()), slog.New(slog.DiscardHandler))
			defer s.close()
			s.interval = time.Millisecond
			moved := make(chan string, 1)
			s.onMoved = func(address string) {
				select {
				case moved <- address:
				default:
				}
			}
			if address, _, err := s.locate(t.Context()); err != nil || address != "10.0.0.1:1" {
				t.Fatal(address, err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() { s.watch(ctx) })
			recvClosed(t, over)
			stop()
			watching.Wait()
			select {
			case address := <-moved:
				if !tt.moved || address != "10.0.0.2:1" {
					t.Errorf("moved to %s", address)
				}
			default:
				if tt.moved {
					t.Error("the move was not noticed")
				}
			}
		})
	}
}

func recvClosed(t *testing.T, c chan bool) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("the Sentinel was not asked again")
	}
}
