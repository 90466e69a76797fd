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
)

// fuzzHost has an identity that a corpus can have too.
func fuzzHost() host {
	h := thisHost()
	h.boot, h.timeNS, h.pidNS = [16]byte{1}, 2, 3
	return h
}

// goodFile is what stands in a file after some work, up to the last used cell.
func goodFile(f *testing.F) []byte {
	path := filepath.Join(f.TempDir(), "state")
	file := mustOpen(f, path, fuzzHost())
	w, at := emptyWorld(), slots{}
	g := newSource(1, w)
	for range 300 {
		d := g.deed(w)
		d.doIn(file, at)
		d.apply(&w)
	}
	used := int(file.next) * cellSize
	file.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	return b[:used]
}

// mustMakeSense checks that a table can go on with what was left in a file of so
// many bytes.
func mustMakeSense(t *testing.T, left Left, size int) world {
	t.Helper()
	if n := len(left.Sessions) + len(left.Memory.Locks); n > max(0, size-pageSize)/cellSize {
		t.Fatalf("%d records in %d bytes", n, size)
	}
	w, err := worldOf(left)
	if err != nil {
		t.Fatal(err)
	}
	nums := map[uint64]bool{0: true}
	for _, r := range left.Memory.Locks {
		h := r.Hold
		if protocol.CheckName(r.Name) != nil || r.Top > left.Memory.Last || h.Num > r.Top ||
			h.Num != 0 && (nums[h.Num] || h.Count == 0) || h.Deadline < 0 || h.Granted < 0 || h.End < 0 {
			t.Fatalf("%+v", r)
		}
		nums[h.Num] = true
	}
	for _, s := range left.Sessions {
		if s.ID == 0 || s.Peer.PID < 0 || s.Told < 0 || !utf8.ValidString(s.Peer.Cmd+s.Peer.Client) {
			t.Fatalf("%+v", s)
		}
	}
	if !w.equal(w.remembered()) {
		t.Fatal(w.diff(w.remembered()))
	}
	return w
}

// FuzzRead reads damaged cells: what is taken over makes sense.
func FuzzRead(f *testing.F) {
	good := goodFile(f)
	f.Add(good)
	f.Add(good[:pageSize])
	for range 20 {
		b := bytes.Clone(good)
		for range 5 {
			b[rand.IntN(len(b))] = byte(rand.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pageSize {
			return
		}
		own := fuzzHost().identity
		mustMakeSense(t, image(words(b)).read(own).left, len(b))
		_ = image(words(b)).unusable(own, make(image, pageWords))
	})
}

// FuzzOpen puts damage into a state file and its sequence file: whatever is in them, the
// state is restored or starts again with a new uuid, what is left makes sense, and they
// are good files from then on.
func FuzzOpen(f *testing.F) {
	good := goodFile(f)
	used := len(good)
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
			i := firstCell + rand.IntN(used/cellSize-firstCell)
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
			put(hSum, sumOf(words(b[8*hFormat:8*hSum])))
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !ours(b, magic) || !ours(seq, sequenceMagic) {
			if f, err := open(path, h); err == nil {
				f.Close()
				t.Fatal("a file of something else was taken for one of a state")
			}
			return
		}
		begun := len(seq) == pageSize && seq[0] != 0
		file := mustOpen(t, path, h)
		left := file.Left()
		if left.Fresh && (left.Why == "") != (len(b) == 0 && !begun) || !left.Fresh && !begun {
			t.Fatalf("%d and %d bytes: fresh %v, %q", len(b), len(seq), left.Fresh, left.Why)
		}
		w := mustMakeSense(t, left, len(b))
		at := slots{}
		for _, r := range left.Memory.Locks {
			at[r.Name] = r.Slot
		}
		far := w.last > 1<<61 // then there are no numbers and times left to go on with
		for _, s := range w.sessions {
			far = far || s.Told > 1<<61
		}
		if !far {
			g := newSource(2, w)
			for range 50 {
				d := g.deed(w)
				if !d.doIn(file, at) {
					t.Fatal(file.gap.reason)
				}
				d.apply(&w)
				file.Commit(0)
			}
		}
		file.Close()
		mustBe(t, mustOpen(t, path, h), w.remembered())
	})
}

// ours reports whether a file may be one that begins with this word.
func ours(b []byte, magic uint64) bool {
	word := binary.NativeEndian.AppendUint64(nil, magic)
	n := min(8, len(b))
	return bytes.Equal(b[:n], word[:n]) || bytes.Equal(b[:n], make([]byte, n))
}
