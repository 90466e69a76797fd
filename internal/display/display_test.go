package display_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
)

func TestPrintableReplacesWhatControlsATerminal(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "",
		"python3 -m worker": "python3 -m worker",
		"größe 大小 ×2":       "größe 大小 ×2",
		"a\tb\nc\x00":       "a?b?c?",
		"report\x1b[2J":     "report?[2J",
		"\u202egnp":         "?gnp",
		"a\xffb":            "a\ufffdb",
	} {
		if got := display.Printable(text); got != want {
			t.Errorf("Printable(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestDurationsShowTheirTwoLargestUnits(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		-5 * time.Second: "-5000ms", 0: "0ms", time.Second - 1: "999ms", time.Second: "1.0s", time.Minute - 1: "59.9s",
		time.Minute: "1m00s", time.Hour - 1: "59m59s", time.Hour: "1h00m", day - 1: "23h59m", day: "1d00h", 30 * day: "30d00h",
	} {
		if got := display.Duration(d); got != want {
			t.Errorf("Duration(%d ns) = %q, want %q", d, got, want)
		}
	}
}

func TestOneThingHasNoPlural(t *testing.T) {
	if got := display.Count(0, "host") + ", " + display.Count(1, "host") + ", " + display.Count(12, "host"); got != "0 hosts, 1 host, 12 hosts" {
		t.Error(got)
	}
}

func TestKeyWithoutExpiryIsShownAsSuch(t *testing.T) {
	for left, want := range map[time.Duration]string{-time.Millisecond: "no expiry", 0: "0ms", 12 * time.Second: "12.0s"} {
		if got := display.Expiry(left); got != want {
			t.Errorf("Expiry(%v) = %q, want %q", left, got, want)
		}
	}
}

func TestPermitsAreCountedIfTheirNumberIsNotKnown(t *testing.T) {
	if got := display.Permits(7, 10) + ", " + display.Permits(1, 0) + ", " + display.Permits(7, 0); got != "7 of 10, 1 permit, 7 permits" {
		t.Error(got)
	}
}
