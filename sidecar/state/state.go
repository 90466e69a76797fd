// Package state stores in a file what a successor needs when this process dies: the uuid of
// the sidecar, its sessions, each lock for which Redis may have a field of this sidecar, and
// each hold. The file is mapped into memory. A change is a few stores; what has been stored
// is in the kernel's page cache, and the death of the process, however sudden, loses nothing
// of it. The death of the host does: the file is valid for one boot only, and says for which.
//
// # Layout
//
// A page of header, then cells of 128 bytes, in words of 64 bits in the host's byte order
// (the file never leaves its host). The first word of a cell says what it is: free (0), a
// lock, a hold, a session, or a part, which has more of the text that did not fit into the
// cell of its lock or session.
//
// The number of the cell of a record is its slot. The cell of a lock has room for one hold,
// in the same words as a hold in a cell of its own. That is enough for a lock that is held
// exclusively. Each further hold of a lock, each hold with a keep, and each hold of a lock of another kind
// has a cell of its own, with the slot of the lock and the sum of its name. A session is referred to by its id.
//
// # What a sudden end leaves
//
// A process that is killed between two instructions has made all stores before, and none
// after. Every change is therefore a sequence of stores after each of which the file is true:
//
//   - New lock, session, or hold in a cell of its own: its parts and its fields are written
//     into free cells. Then one store, of the first word, makes the whole record appear.
//     Parts to which no lock or session refers are free cells.
//   - New hold in the cell of its lock: its fields are written first, its number is stored last.
//     Until then the lock has no hold.
//   - Deleted lock, session, or hold in a cell of its own: one store, of the first word. That
//     word is 0 until the cell is whole again, so nothing of what it had comes back.
//   - Deleted hold in the cell of its lock: one store, its number becomes 0.
//   - A lock that stays: its largest hold number changes, before a hold with that number is
//     stored, and before an operation with it is sent. Then what is to end by force does; an earlier version
//     of the sidecar does not look at that. Then its kind does, if it has no hold.
//   - A hold that stays: its fields change one by one, in this order: Deadline, End, LeaseSeq
//     and LeaseMS in one, Entries and CrashDelayMS in one, Phase and InDoubt in one. So a
//     hold that is not renewed any more never has an old deadline, and an orphan is never
//     without its end.
//   - A session that stays: LeaseSent before LeaseSeq and Phase. Redis has confirmed the
//     former for all holds by then.
//   - Redis: what is known of it is written into the one of two places that does not count,
//     then one store makes it count.
//   - A session that is opened again under its id: the new record appears, then the old one
//     is deleted. Of two sessions with one id, the newer one counts.
//   - Taking over moves records to the front, cell by cell: the copy appears, what refers to
//     the original is made to refer to the copy, then the original is deleted. Of two locks
//     with one name, or two holds with one number, either counts: they are the same.
//
// The caller keeps the order between records (see locktable.Journal), so that a successor
// finds one of these:
//
//   - A lock without a hold: what Redis has under its name is dropped. That is true before
//     the first hold, during a handoff, when the old hold is deleted and the new one is not
//     stored yet, and after the last hold. No client has been notified of a new hold then.
//   - A hold with its lock. A hold without its lock is never restored: its lock is deleted
//     after it, so the file is damaged.
//
// # Copies
//
// A copy of the file was true once. A sidecar that restored it under the same uuid would use
// hold numbers again, and grant a lock that a client holds. So the changes are made in
// rounds, each with a number, and Commit stores the number twice after the last change of a
// round and before its first effect leaves the process: in the header, then in the sequence
// file, path + ".seq". A successor accepts a state file with the number of the sequence file,
// or with the next one, because the process may have died between the two stores.
//
//   - A copy from before the last committed round has a smaller number, and is refused.
//   - What a copy has, or lacks, of a round that was not committed does not matter: no effect
//     of it has reached a client or Redis.
//   - A copy of the sequence file alone is refused too, unless it is one round old; then the
//     state file beside it is the true one.
//   - Without the sequence file the state file is refused: it may be any copy.
//   - Both files together are refused if the copies are in other inodes. Inode numbers are
//     used again, so the header also has the birth time of the inode and a sum of its file
//     handle, which contains a generation number.
//
// Copies of both that are written over both, on the same boot, are not detected.
//
// # What a later version adds
//
// A daemon may be replaced by one of an earlier version, and no hold ends. So a later version adds
// records of kinds of its own, or words of the header that had no meaning:
//
//   - An optional record, and such a word, may be missing: the rest is true without. A version
//     that does not know them deletes them when it takes over, before it changes anything else.
//     So none is out of date when the later version comes back.
//   - A required record (kindRequired) is there only while its feature is in use. The same is
//     true of a flag, a mode or a phase that is new. A version that does not know them resets the file.
//   - The last word of the first cell of an optional record is its sum, so that no damaged cell passes
//     for one. It is never changed: another one replaces it. Its text may have parts.
//
// Locks of another kind than redisop.KindLock are required records. An earlier version leaves lockForced as it is: what it
// does not end by force ends when a later one is back.
//
// # When the file system is full
//
// A record that finds no room makes the file incomplete: a successor that restored the rest
// under the same uuid could grant a lock that a living client holds. So a mark is stored
// first, and a successor that finds it starts with a new uuid. The mark is cleared as soon as
// nothing is missing any more: each missing record was stored after all, or is not needed any
// more.
//
// Put the file on a tmpfs (/run) if there is one. On a disk the kernel writes the changed
// pages back from time to time, and a store may wait for it.
package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/settings"
)

// File is the state file of one sidecar: a locktable.Journal, and what else a successor must
// know. One goroutine owns it.
type File struct {
	path string
	host host
	fd   int
	mem  []byte // the mapping: longer than the file, so that its address does not change
	img  image  // the same

	next, end uint32 // cells from next to end have never been used; the file has no more
	free      uint32 // first of the used and free ones, linked by their second word; 0: none
	sessions  map[locktable.SessionID]uint32

	seq     sequence
	changed bool // since the last Commit

	locations    [2]location // of the two files
	completeness completeness
	unstored     map[locktable.SessionID]Session // open sessions that found no room

	recovered Recovered
}

// Recovered is what the predecessor left.
type Recovered struct {
	UUID string
	Key  [32]byte // of the tickets

	// Reset: nothing was taken over; UUID and Key are new. ResetReason is one sentence, or
	// "" if there was neither file.
	Reset       bool
	ResetReason string

	LastSessionID uint64
	Redis         Redis // zero: Redis was never reached
	Sessions      []Session
	Snapshot      locktable.Snapshot // Snapshot.Sessions are the same sessions, in the same order
}

// Open makes the state file, and the sequence file beside it, or takes them over, and
// keeps other processes from them until Close or the end of the process. A state file that
// cannot be used, because it is from another boot or another version, a copy or damaged, is
// made again with a new uuid: Recovered has the reason. A file of another program is not
// changed, and is an error.
func Open(path string) (*File, error) { return OpenOf(Sidecar{}, path) }

// Sidecar is what is known of the sidecar that opens its state. A state with other values
// is not used.
type Sidecar struct {
	// UUID is that of the sidecar which served the socket last; "": it is not known. Since
	// the state of another one was written, clients may have released what it says they
	// hold.
	UUID string
	// KeyPrefix is what the keys of locks in Redis have before the names. Under the keys of
	// another prefix, the field of the sidecar would be looked for where it never was, and
	// not renewed where it is.
	KeyPrefix string
}

// OpenOf is Open for a sidecar of which more is known.
func OpenOf(of Sidecar, path string) (*File, error) {
	h := thisHost()
	h.sidecar = of
	return open(path, h)
}

func open(path string, h host) (*File, error) {
	if n := len(h.sidecar.KeyPrefix); n > MaxKeyPrefix {
		return nil, fmt.Errorf("state file %s: the key prefix has %d bytes; at most %d can be stored", path, n, MaxKeyPrefix)
	}
	fd, st, err := openPrivate("state file", path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, host: h, fd: fd,
		sessions: make(map[locktable.SessionID]uint32), unstored: make(map[locktable.SessionID]Session)}
	if err := f.begin(st); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *File) begin(st unix.Stat_t) error {
	if err := f.lock(); err != nil {
		return err
	}
	// The process that had the lock may have changed the size in the meantime.
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("state file %s: %w", f.path, err)
	}
	mem, err := unix.Mmap(f.fd, 0, maxSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping the state file %s: %w; choose a path on another file system, best of all a tmpfs", f.path, err)
	}
	f.mem, f.img = mem, wordsOf(mem)

	if st.Size > 0 && !hasMagic(f.fd, magic) {
		return fmt.Errorf("%s is not a state file, and nothing of it was changed; remove it, or choose another path for the state", f.path)
	}
	if f.seq, err = openSequence(f.path+".seq", &f.host); err != nil {
		return err
	}
	own := f.host.identity
	own.ofFile(f.fd, &st)
	f.locations = [2]location{{f.path, own.dev, own.inode}, {f.seq.path, f.seq.dev, f.seq.inode}}
	if st.Size == 0 {
		reason := ""
		if f.seq.img[qMagic] == sequenceMagic {
			reason = "the state file was removed or emptied; the sequence file beside it is still there"
		}
		return f.reset(own, reason)
	}
	// The file ends with a page, unless it is damaged. What is after that would be in cells
	// that count as never used.
	size := min(st.Size, maxSize) &^ (pageSize - 1)
	if reason := f.img[:size/8].unusable(own, f.seq.img); reason != "" {
		return f.reset(own, reason)
	}
	of := &f.host.sidecar
	if had := f.img.keyPrefix(); had != of.KeyPrefix {
		return f.reset(own, fmt.Sprintf("the key prefix was %q when the state was written, and is %q now: Redis has those locks under other keys, where they exclude none of this prefix", had, of.KeyPrefix))
	}
	if of.UUID != "" && of.UUID != f.img.uuid() {
		return f.reset(own, "a sidecar without this state has served the socket since, and clients may have released what the state says they hold")
	}
	if err := f.shorten(st.Size, size); err != nil {
		return err
	}
	return f.takeOver(own, size)
}

// openPrivate opens a file that only this user may read and write, or makes it. It refuses
// one that others may have written or read: the key in a state file decides which client may
// resume which session.
func openPrivate(what, path string) (fd int, st unix.Stat_t, err error) {
	return openOwn(what, path, unix.O_RDWR|unix.O_CREAT)
}

// openOwn is openPrivate with other flags.
func openOwn(what, path string, flags int) (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, st, fmt.Errorf("%s %s is a symbolic link: its maker would choose where the sidecar's key is kept; remove it, or choose another path", what, path)
	case err != nil:
		return -1, st, fmt.Errorf("%s %s: %w; run as the user who owns its directory, or choose another path", what, path, err)
	}
	switch err = unix.Fstat(fd, &st); {
	case err != nil:
		err = fmt.Errorf("%s %s: %w", what, path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fmt.Errorf("%s %s is not a regular file; remove it, or choose another path", what, path)
	case int(st.Uid) != unix.Geteuid():
		err = fmt.Errorf("%s %s belongs to uid %d, and the sidecar runs as uid %d; run it as that user, remove the file, or choose another path", what, path, st.Uid, unix.Geteuid())
	case st.Mode&0o077 != 0:
		err = fmt.Errorf("%s %s has mode %04o: others may have read or changed what is in it; remove it, so that a new one is made with 0600", what, path, st.Mode&0o777)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// wordsOf returns mapped memory as words.
func wordsOf(mem []byte) image {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}

// hasMagic reports whether a file begins with the first word of a state or sequence file, or
// with what a sudden end left of it, and is not a file of another program.
func hasMagic(fd int, magic uint64) bool {
	var first [8]byte
	n, err := unix.Pread(fd, first[:], 0)
	if err != nil {
		return false
	}
	var ours [8]byte
	binary.NativeEndian.PutUint64(ours[:], magic)
	return bytes.Equal(first[:n], ours[:n]) || first == [8]byte{}
}

// lock keeps other processes from the file. The lock ends with this process.
func (f *File) lock() error {
	err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("locking the state file %s: %w; choose a path on another file system", f.path, err)
	}
	who := "another sidecar"
	words := make(image, pageWords)
	if n, _ := unix.Pread(f.fd, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), pageSize), 0); n == pageSize &&
		words[hPIDNS] == f.host.pidNS && words[hPID] != 0 {
		who += fmt.Sprintf(" (pid %d)", words[hPID])
	}
	return settings.InUse("%s has the state file %s; stop it, or choose another path", who, f.path)
}

// Recovered is what the predecessor left. The sessions, locks and holds are handed over:
// only the first call returns them.
func (f *File) Recovered() Recovered {
	r := f.recovered
	m := &f.recovered.Snapshot
	f.recovered.Sessions, m.Sessions, m.Locks, m.Holds = nil, nil, nil, nil
	return r
}

// Close leaves everything as it is for the successor.
func (f *File) Close() error {
	var err error
	if f.mem != nil {
		err = unix.Munmap(f.mem)
		f.mem, f.img = nil, nil
	}
	err = errors.Join(err, f.seq.close())
	if f.fd >= 0 {
		err = errors.Join(err, unix.Close(f.fd))
		f.fd = -1
	}
	if err != nil {
		return fmt.Errorf("closing the state file %s: %w", f.path, err)
	}
	return nil
}
