package sidecar

import (
	"testing"
	"time"
)

func TestOverflowUIDForcesNoRelease(t *testing.T) {
	host, private := &loop{overflowUID: -1}, &loop{overflowUID: 65534}
	for _, tt := range []struct {
		what           string
		s              *loop
		caller, holder int64
		want           bool
	}{
		{"the holder's user", host, 1000, 1000, true},
		{"another user", host, 1001, 1000, false},
		{"uid 65534, on a host that has it", host, 65534, 65534, true},
		{"one of many", private, 65534, 65534, false},
		{"root", private, 0, 65534, true},
		{"a user of the namespace", private, 998, 998, true},
	} {
		if got := tt.s.mayForceRelease(tt.caller, tt.holder); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
}

func TestResumeTimeoutOfAnUnwatchedClientIsConfigurable(t *testing.T) {
	for _, tt := range []struct {
		unseen, want time.Duration
	}{{0, 20 * time.Second}, {2 * time.Hour, 2 * time.Hour}} {
		s := &loop{cfg: Config{Lease: 20 * time.Second, ResumeUnseen: tt.unseen}}
		if err := s.cfg.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if got := s.resumeTimeout(&session{pidfd: -1}); got != tt.want {
			t.Errorf("resume-unseen %v: %v, want %v", tt.unseen, got, tt.want)
		}
		if got := s.resumeTimeout(&session{pidfd: 3}); got != DefaultResumeWithin {
			t.Errorf("a client that is watched: %v", got)
		}
	}
}
