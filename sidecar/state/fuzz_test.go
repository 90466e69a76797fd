package state

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// fuzzHost has an identity that a corpus can have too.
func fuzzHost() host {
	h := thisHost()
	h.boot, h.timeNS, h.pidNS = [16]byte{1}, 2, 3
	return h
}

// goodFile is what a file has after some work, up to the last used cell.
func goodFile(f *testing.F) []byte {
	path := filepath.Join(f.TempDir(), "state")
	file := mustOpen(f, path, fuzzHost())
	w, at := emptyWorld(), noSlots()
	g := newSource(1, w)
	for range 300 {
		c := g.call(w)
		c.on(file, at)
		c.apply(&w)
	}
	putLater(f, file, kindHold+1, 1)
	used := int(file.next) * cellSize
	file.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	return b[:used]
}

// mustMakeSense checks that a table can continue with what was recovered from a file of so
// many bytes.
func mustMakeSense(t *testing.T, r Recovered, size int) world {
	t.Helper()
	m := &r.Snapshot
	if n := len(r.Sessions) + len(m.Locks); n > max(0, size-pageSize)/cellSize || len(m.Holds) > max(0, size-pageSize)/cellSize {
		t.Fatalf("%d records and %d holds in %d bytes", n, len(m.Holds), size)
	}
	w, err := worldOf(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range m.Locks {
		if protocol.CheckName(l.Name) != nil || l.MaxHoldID > m.LastHoldID {
			t.Fatalf("%+v", l)
		}
	}
	for _, h := range m.Holds {
		if h.ID == 0 || h.ID > m.Locks[h.Lock].MaxHoldID || h.Entries == 0 || h.Permits == 0 ||
			!isModeOf(m.Locks[h.Lock].Kind, h.Mode) ||
			h.Phase > lastPhase(&h.HoldRecord) || h.Lease == locktable.FixedLease && h.LeaseMS == 0 ||
			h.Deadline < 0 || h.Granted < 0 || h.End < 0 {
			t.Fatalf("%+v", h)
		}
	}
	for _, s := range r.Sessions {
		if s.ID == 0 || s.Peer.PID < 0 || s.LeaseSent < 0 || s.Phase != locktable.SessionServing && !s.Phase.IsOver() || !utf8.ValidString(s.Peer.Cmd+s.Peer.Client) {
			t.Fatalf("%+v", s)
		}
	}
	if !w.equal(w.recovered()) {
		t.Fatal(w.diff(w.recovered()))
	}
	return w
}

// FuzzRead reads damaged cells: what is taken over makes sense.
func FuzzRead(f *testing.F) {
	good := goodFile(f)
	random := rand.New(rand.NewPCG(1, 2))
	f.Add(good)
	f.Add(good[:pageSize])
	for range 20 {
		b := bytes.Clone(good)
		for range 5 {
			b[random.IntN(len(b))] = byte(random.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pageSize {
			return
		}
		own := fuzzHost().identity
		mustMakeSense(t, image(words(b)).read(own).recovered, len(b))
		_ = image(words(b)).unusable(own, make(image, pageWords))
	})
}

// FuzzOpen puts damage into a state file and its sequence file: whatever is in them, the
// state is recovered or reset with a new uuid, what is recovered makes sense, and they are
// good files from then on.
func FuzzOpen(f *testing.F) {
	good := goodFile(f)
	used := len(good)
	random := rand.New(rand.NewPCG(3, 4))
	h := fuzzHost()
	sequence := make([]byte, pageSize)
	copy(sequence, "lockseq1")
	copy(sequence[8*qUUID:], good[8*hUUID:8*hKey])
	copy(sequence[8*qNumber:], good[8*hSequence:8*hSequence+8])
	f.Add(good, sequence, true)
	f.Add(good[:used/2], sequence, true)
	f.Add(good[:used/2], sequence[:pageSize-1], true)
	f.Add(good[:pageSize], sequence[:8], false)
	f.Add([]byte{}, sequence, false)
	f.Add([]byte{}, []byte{}, false)
	for range 20 { // the header, and a few cells of the kinds there are
		b := bytes.Clone(good[:pageSize])
		for range 6 {
			i := firstCell + random.IntN(used/cellSize-firstCell)
			b = append(b, good[i*cellSize:(i+1)*cellSize]...)
		}
		f.Add(b, sequence, true)
	}

	path := filepath.Join(f.TempDir(), "damaged")
	f.Fuzz(func(t *testing.T, b, seq []byte, mine bool) {
		for name, b := range map[string][]byte{path: b, path + ".seq": seq} {
			if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if mine && len(b) >= pageSize {
			// Get past the header.
			b = bytes.Clone(b)
			own := ownIdentity(t, path, h)
			put := func(at int, v uint64) { binary.LittleEndian.PutUint64(b[8*at:], v) }
			put(hMagic, magic)
			put(hFormat, format)
			copy(b[8*hBoot:], own.boot[:])
			put(hDev, own.dev)
			put(hInode, own.inode)
			put(hHandle, own.handle)
			put(hBorn, own.born)
			put(hTimeNS, own.timeNS)
			put(hSum, image(words(b[:pageSize])).headerSum())
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !ours(b, magic) || !ours(seq, sequenceMagic) {
			if f, err := open(path, h); err == nil {
				f.Close()
				t.Fatal("a file of another program was taken for one of a state")
			}
			return
		}
		begun := len(seq) == pageSize && seq[0] != 0
		file := mustOpen(t, path, h)
		r := file.recovered
		if r.Reset && (r.ResetReason == "") != (len(b) == 0 && !begun) || !r.Reset && !begun {
			t.Fatalf("%d and %d bytes: reset %v, %q", len(b), len(seq), r.Reset, r.ResetReason)
		}
		mustMakeSense(t, r, len(b))
		w, at, err := recoverFrom(file)
		if err != nil {
			t.Fatal(err)
		}
		far := w.lastHoldID > 1<<61 // then there are no ids and times left to continue with
		for _, s := range w.sessions {
			far = far || s.LeaseSent > 1<<61
		}
		if !far {
			g := newSource(2, w)
			for range 50 {
				c := g.call(w)
				if !c.on(file, at) {
					t.Fatal(file.completeness.reason)
				}
				c.apply(&w)
				file.Commit(0)
			}
		}
		file.Close()
		mustBe(t, mustOpen(t, path, h), w.recovered())
	})
}

// ours reports whether a file may be one that begins with this word.
func ours(b []byte, magic uint64) bool {
	word := binary.NativeEndian.AppendUint64(nil, magic)
	n := min(8, len(b))
	return bytes.Equal(b[:n], word[:n]) || bytes.Equal(b[:n], make([]byte, n))
}
