package state

import (
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Session is an open session and the process of its client.
type Session struct {
	locktable.SessionRecord
	Peer      locktable.Peer // PID 0: it cannot be watched
	Process   Process
	Resumable bool
}

// Process distinguishes a process from later ones that have its pid, and the program that it executes
// from later ones. 0: not known.
type Process struct {
	Pidfd   uint64  // inode number of its pidfd: no two processes of one boot have the same
	Start   uint64  // when it started, in ticks since boot, less than 2^40
	Program Program // stored only with a Pidfd
}

// Program has what exec changes, and nothing else. Two programs may have the same values.
type Program struct {
	Origin Origin
	Text   uint16 // sum of the size of the program's text, less than 2^10; 0: not known
	Stack  uint16 // sum of the random addresses of its text and stack, less than 2^12; 0: not known
}

// Origin is how a process came to its program.
type Origin uint8

const (
	UnknownOrigin Origin = iota
	Forked               // it executes the program of the process that forked it
	Executed             // it has executed it
)

// startBits is how many bits of a word have the start of a process. The other ones have its program, if
// there is a pidfd: then no daemon of an earlier version looks at the word.
const startBits = 40

// startWord returns the word that has the start and the program of a process.
func (p Process) startWord() uint64 {
	if p.Pidfd == 0 {
		return p.Start
	}
	r := p.Program
	return p.Start&(1<<startBits-1) | (uint64(r.Origin)|uint64(r.Text)<<2|uint64(r.Stack)<<12)<<startBits
}

// processIn returns the process that is stored in two words.
func processIn(pidfd, start uint64) Process {
	if pidfd == 0 {
		return Process{Start: start}
	}
	r := start >> startBits
	return Process{
		Pidfd: pidfd, Start: start & (1<<startBits - 1),
		Program: Program{Origin: Origin(r & 3), Text: uint16(r >> 2 & 0x3ff), Stack: uint16(r >> 12)},
	}
}

// PutLastSessionID stores the largest id that a session ever had.
func (f *File) PutLastSessionID(id uint64) { f.update(&f.img[hLastSessionID], id) }

// maxCommand is how many bytes of a command line are stored. A daemon of an earlier version refuses a
// record with more. A client that comes back has its command line read again.
const maxCommand = 64

// storedCommand returns what is stored of a command line. An ellipsis says that it was cut.
func storedCommand(cmd string) string {
	if len(cmd) <= maxCommand {
		return strings.ToValidUTF8(cmd, "")
	}
	const ellipsis = "…"
	return truncate(cmd, maxCommand-len(ellipsis)) + ellipsis
}

// OpenSession stores a session before its client is answered. If it is open already, this
// is what is known of it now. A session for which there is no room is stored by Retry when
// there is.
func (f *File) OpenSession(s Session) {
	cmd, client := storedCommand(s.Peer.Cmd), truncate(s.Peer.Client, protocol.MaxClient)
	if f.reopenSession(s, cmd, client) {
		return
	}
	old := f.sessions[s.ID]
	if f.addSession(s, cmd, client) {
		if old != 0 {
			f.remove(old)
		}
		return
	}
	if old != 0 {
		// What is stored is not true any more. Its cells may be room enough.
		delete(f.sessions, s.ID)
		f.remove(old)
		if f.addSession(s, cmd, client) {
			return
		}
	}
	f.unstored[s.ID] = s
}

// addSession stores a session in a new record; false: there is no room.
func (f *File) addSession(s Session, cmd, client string) bool {
	slot, word, sum := f.newRecord(kindSession, sessionText, cmd+client)
	if slot == 0 {
		return false
	}
	c := f.img.cell(slot)
	f.write(&c[sessionID], uint64(s.ID))
	f.write(&c[sessionLeaseSent], uint64(s.LeaseSent))
	f.write(&c[sessionLease], packSession(s.SessionRecord, s.Resumable))
	f.write(&c[sessionPID], uint64(s.Peer.PID))
	f.write(&c[sessionUID], uint64(s.Peer.UID))
	f.write(&c[sessionPidfd], s.Process.Pidfd)
	f.write(&c[sessionStart], s.Process.startWord())
	f.write(&c[sessionCmd], pack(uint32(len(cmd)), sum))
	f.publish(&c[0], word)
	f.sessions[s.ID] = slot
	delete(f.unstored, s.ID)
	return true
}

// reopenSession stores a session that is resumed in its old record; false: something about
// its process has changed, and it needs a new record.
func (f *File) reopenSession(s Session, cmd, client string) bool {
	slot := f.sessions[s.ID]
	if slot == 0 {
		return false
	}
	c := f.img.cell(slot)
	if c[sessionPID] != uint64(s.Peer.PID) || c[sessionPidfd] != s.Process.Pidfd || c[sessionStart] != s.Process.startWord() || c[sessionUID] != uint64(s.Peer.UID) ||
		int(uint32(c[sessionCmd])) != len(cmd) || !f.hasText(c, sessionText, cmd+client) {
		return false
	}
	f.update(&c[sessionLeaseSent], uint64(s.LeaseSent))
	f.update(&c[sessionLease], packSession(s.SessionRecord, s.Resumable))
	return true
}

func packSession(r locktable.SessionRecord, isResumable bool) uint64 {
	w := uint64(r.LeaseSeq) | uint64(r.Phase)<<flagSessionPhase
	if isResumable {
		w |= flagResumable
	}
	return w
}

// PutSession implements locktable.Journal. A session that is not open is ignored.
func (f *File) PutSession(r locktable.SessionRecord) {
	slot := f.sessions[r.ID]
	if slot == 0 {
		if s, ok := f.unstored[r.ID]; ok {
			s.SessionRecord = r
			f.unstored[r.ID] = s
		}
		return
	}
	c := f.img.cell(slot)
	f.update(&c[sessionLeaseSent], uint64(r.LeaseSent))
	f.update(&c[sessionLease], packSession(r, c[sessionLease]&flagResumable != 0))
}

// CloseSession deletes a session. Its holds are deleted, or orphans, before: a successor
// restores a hold of a session that is not open until its deadline.
func (f *File) CloseSession(id locktable.SessionID) {
	delete(f.unstored, id)
	if slot := f.sessions[id]; slot != 0 {
		delete(f.sessions, id)
		f.remove(slot)
	}
}

// Redis is the server that the sidecar was connected to last.
type Redis struct {
	RunID, ReplID  string // truncated to 64 bytes
	ClientID       int64
	Floor, FloorAt int64
}

// PutRedis stores which server the sidecar is connected to.
func (f *File) PutRedis(r Redis) {
	which, at := uint64(1), hRedis1
	if f.img[hRedis] == 1 {
		which, at = 2, hRedis2
	}
	run, repl := truncate(r.RunID, maxID), truncate(r.ReplID, maxID)
	to := f.img[at : at+rWords]
	f.write(&to[rClientID], uint64(r.ClientID))
	f.write(&to[rFloor], uint64(r.Floor))
	f.write(&to[rFloorAt], uint64(r.FloorAt))
	f.write(&to[rLens], pack(uint32(len(run)), uint32(len(repl))))
	f.writeText(to[rRunID:rReplID], run, 0)
	f.writeText(to[rReplID:rWords], repl, 0)
	f.publish(&f.img[hRedis], which)
}
