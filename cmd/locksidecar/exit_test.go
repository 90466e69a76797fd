package main

import (
	"errors"
	"fmt"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

func TestExitCodesAreThoseOfTheHelp(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{coded{exitUsage, errors.New("x")}, 64},
		{locksidecar.ErrUnavailable, 69},
		{locksidecar.ErrClosed, 69},
		{locksidecar.ErrHeld, 75},
		{locksidecar.ErrTimeout, 75},
		{locksidecar.ErrDeadlock, 75},
		{locksidecar.ErrDenied, 77},
		{locksidecar.ErrLost, 79},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exitCode(%v) = %d, want %d", tt.err, got, tt.want)
		}
		if tt.err == nil {
			continue
		}
		if got := exitCode(fmt.Errorf("more words: %w", tt.err)); got != tt.want {
			t.Errorf("exitCode of wrapped %v = %d, want %d", tt.err, got, tt.want)
		}
	}
}
