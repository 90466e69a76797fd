package main

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// win is a window of one second in which 1 is a millisecond after its beginning.
var win = window{from: 10_000e6, to: 11_000e6, stopped: 11_010e6}

// pair is a sample in milliseconds after the beginning of win; 0 means that it
// did not happen.
func pair(process int, asked, granted, leaving, done float64) sample {
	at0 := func(t float64) int64 {
		if t == 0 {
			return 0
		}
		return win.from + int64(t*1e6)
	}
	return sample{record{at0(asked), at0(granted), at0(leaving), at0(done)}, at{process: process, host: process / 2}}
}

func expect(t *testing.T, f Figures, want Figures) {
	t.Helper()
	for m, v := range want {
		got, ok := f[m]
		if !ok || math.Abs(got-v) > 1e-6 {
			t.Errorf("%s is %v (there: %t), want %v", m, got, ok, v)
		}
	}
}

func TestPairsCountByWhenTheyWereGranted(t *testing.T) {
	f, _ := pairFigures([]sample{
		pair(0, -5, -1, 1, 2),      // before
		pair(0, -1, 1, 2, 4),       // first to count
		pair(0, 900, 999, 1005, 0), // last; its release was cut off
		pair(1, 999, 1000, 1001, 1002),
		pair(1, 1003, 0, 0, 0),
	}, win, 2)
	expect(t, f, Figures{PairsPerSecond: 2, PairMS: 1000, PairP50MS: 5, PairMaxMS: 5, ReleaseP50MS: 2})
}

func TestAWaitCountsIfSomeOfItWasWithinTheWindow(t *testing.T) {
	f, waits := pairFigures([]sample{
		pair(0, -50, -10, -5, -4), // over before
		pair(0, -30, 20, 21, 22),  // 50, of which 20 within
		pair(0, 100, 110, 111, 112),
		pair(1, 700, 1005, 1006, 1007), // granted behind the end: 300 were seen
		pair(2, 600, 0, 0, 0),          // never granted: 400 were seen
		pair(3, 1001, 1002, 1003, 1004),
	}, win, 4)
	expect(t, f, Figures{WaitMaxMS: 400, WaitP50MS: 50, WaitP99MS: 400})
	if len(waits) != len(plotted) || waits[0].MS != 10 || waits[len(waits)-1].MS != 400 {
		t.Errorf("the distribution is %v", waits)
	}
}

func TestAChangeOfOwnerIsANextGrantToAnotherProcess(t *testing.T) {
	f := oneLockFigures([]sample{
		// Not in the order in which they happened: files come process by process.
		pair(0, -20, -10, -9, -8), // outside: neither counts nor is changed from
		pair(0, 31, 40, 41, 42),
		pair(0, 1, 10, 11, 12),
		pair(0, 13, 20, 21, 22),
		pair(1, 1, 30, 31, 32), // 0 to 1
		pair(2, 1, 50, 51, 52), // 1 to 0, then 0 to 2: another host
		pair(1, 60, 1500, 1501, 1502),
	}, win, 3, 1)
	expect(t, f, Figures{OwnerChangesPerSecond: 3, HostChangesPerSecond: 1, GrantsMin: 1, GrantsMax: 3, Fairness: 3, Violations: 0})
}

func TestAProcessWithoutAGrantHasNoFairness(t *testing.T) {
	f := oneLockFigures([]sample{pair(0, 1, 2, 3, 4), pair(1, 1, 0, 0, 0)}, win, 2, 1)
	expect(t, f, Figures{GrantsMin: 0, GrantsMax: 1})
	if v, ok := f[Fairness]; ok {
		t.Errorf("fairness is %v", v)
	}
}

func TestTwoWithOneLockAreAViolation(t *testing.T) {
	for _, c := range []struct {
		name    string
		samples []sample
		want    float64
	}{
		{"one after the other", []sample{pair(0, 1, 10, 20, 21), pair(1, 1, 20, 30, 31)}, 0},
		{"granted while release is under way", []sample{pair(0, 1, 10, 20, 25), pair(1, 1, 21, 30, 31)}, 0},
		{"granted before the other left", []sample{pair(0, 1, 10, 20, 21), pair(1, 1, 19, 30, 31)}, 1},
		{"two within a long one", []sample{pair(0, 1, 10, 90, 91), pair(1, 1, 20, 30, 31), pair(1, 32, 40, 50, 51)}, 2},
		{"before the window", []sample{pair(0, -100, -90, -70, -69), pair(1, -100, -80, -60, -59)}, 1},
		{"the other was stopped with the lock, and died", []sample{pair(0, 900, 990, 0, 0), pair(1, 1, 1020, 1030, 0)}, 0},
		{"the other has it until it is stopped", []sample{pair(0, 900, 990, 0, 0), pair(1, 1, 1005, 1006, 1007)}, 1},
		{"waiting is not having", []sample{pair(0, 1, 10, 20, 21), pair(1, 1, 0, 0, 0)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, oneLockFigures(c.samples, win, 2, 1), Figures{Violations: c.want})
		})
	}
}

func TestRecordsAreReadAsWorkersWriteThem(t *testing.T) {
	for _, c := range []struct {
		name  string
		words []int64
		extra int // bytes behind them
		wrong string
	}{
		{"whole", []int64{1, 2, 3, 4, 5, 6, 7, 8}, 0, ""},
		{"stopped in acquire", []int64{1, 0, 0, 0}, 0, ""},
		{"stopped in the section", []int64{1, 2, 0, 0}, 0, ""},
		{"empty", nil, 0, ""},
		{"cut", []int64{1, 2, 3, 4}, 7, "not whole records"},
		{"backwards", []int64{1, 2, 3, 4, 5, 4, 6, 7}, 0, "record 1"},
		{"a hole", []int64{1, 0, 3, 4}, 0, "record 0"},
		{"nothing", []int64{0, 0, 0, 0}, 0, "never asked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "records")
			var raw []byte
			for _, w := range c.words {
				raw = binary.LittleEndian.AppendUint64(raw, uint64(w))
			}
			if err := os.WriteFile(path, append(raw, make([]byte, c.extra)...), 0o600); err != nil {
				t.Fatal(err)
			}
			records, err := readRecords(path)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("the error is %v, want one with %q", err, c.wrong)
				}
				return
			}
			if err != nil || len(records) != len(c.words)/4 {
				t.Errorf("%d records, %v", len(records), err)
			}
		})
	}
}

func TestMorePermitsThanThereAreAreCounted(t *testing.T) {
	samples := []sample{
		pair(0, 1, 10, 30, 31), pair(1, 1, 11, 40, 41), // two at a time
		pair(2, 1, 30, 50, 51), pair(3, 1, 39, 60, 61), // the second is a third one
	}
	expect(t, oneLockFigures(samples, win, 4, 2), Figures{Violations: 1, GrantsMin: 1})
	expect(t, oneLockFigures(samples, win, 4, 3), Figures{Violations: 0})
}

func TestIdealIsThatNoPermitIsEverFree(t *testing.T) {
	f := Scenario{Of: 10, WorkUS: 1000}.permitFigures(Figures{PairsPerSecond: 8000, WaitMaxMS: 15, WaitMeanMS: 6})
	expect(t, f, Figures{IdealShare: 0.8, WaitMaxOfMean: 2.5})
}
