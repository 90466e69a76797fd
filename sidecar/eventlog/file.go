package eventlog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/state"
)

// Events survive a restart of the daemon in a file beside the state, its path and ".events". The file
// has a line that names the format and the boot, and then a frame of the protocol for each event: an
// EventsOK with one row, whose Next is the number of the event. When the file is full it is renamed to
// ".events.old", in place of the one before, and a new one begins.
//
// The file is history and nothing more: one that is torn, full, removed or foreign never stops the
// daemon. A torn file ends before the event that is not whole. The times of events are those of one
// boot, so events of another boot are not read. A file of another program is not changed.
//
// A new file begins with the incidents of the old one, so that a storm of other events leaves the
// last maxCarried of them.
//
// Events of contention are not in the file: there may be a hundred thousand of them in a second.

const (
	eventFileMagic = "locksidecar events "

	// maxEventFile bounds the file, in bytes. With the old one there is room for each event that is
	// not of contention, unless they are unusually long.
	maxEventFile = 512 << 10

	// maxUnwritten is how many events wait for the writer. Others are not written. For incidents there
	// is as much room again.
	maxUnwritten = maxEvents

	// maxCarried is how many bytes of incidents a new file has from the one before.
	maxCarried = maxEventFile / 4

	// writeSize is how many bytes are written at a time, about.
	writeSize = 16 << 10

	// lengthPrefix is what a frame has before its body, in bytes.
	lengthPrefix = 4

	// closeEventsWithin bounds how long a stop of the daemon waits for a file system that hangs.
	closeEventsWithin = time.Second
)

// eventFile writes events to the file. Its goroutine writes, so that the loop never waits for the
// file system.
type eventFile struct {
	path   string
	header string
	log    *slog.Logger

	mu      sync.Mutex
	waiting []event
	wake    chan struct{} // has room for one
	stop    chan struct{}
	stopped chan struct{}

	// Of the goroutine.
	file     *os.File // nil: it cannot be written any more
	size     int64
	buf      []byte
	carried  []event // the newest incidents, which the next file begins with
	episodes loglimit.Episodes
}

// openEventFile reads the events that the predecessor left, in their order, and begins to write. The
// numbers of the events are at most last. nil: events are kept in memory only.
func openEventFile(statePath string, last uint64, log *slog.Logger) (*eventFile, []event) {
	f := &eventFile{
		path: statePath + ".events", header: eventFileMagic + "1 " + state.Boot() + "\n", log: log,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}), episodes: make(loglimit.Episodes),
	}
	older, _, err := f.read(f.oldPath(), os.O_RDONLY, last)
	var events []event
	var file *os.File
	if err == nil || errors.Is(err, os.ErrNotExist) {
		events, file, err = f.read(f.path, os.O_RDWR|os.O_CREATE, last)
	}
	if err == nil {
		f.file = file
		err = f.begin()
	}
	if err != nil {
		f.end()
		log.Warn("a restart of the sidecar will forget its events; locks are not affected", "file", f.path, "error", err)
		return nil, nil
	}
	// A file may begin with events that the one before has, too.
	all := append(older, events...)
	slices.SortFunc(all, func(a, b event) int { return cmp.Compare(a.number, b.number) })
	all = slices.CompactFunc(all, func(a, b event) bool { return a.number == b.number })
	for i := range all {
		f.carry(&all[i])
	}
	go f.run()
	return f, all
}

func (f *eventFile) oldPath() string { return f.path + ".old" }

// read returns the events of a file whose numbers are not after last. It opens the file with the flags,
// and returns it if they permit to write: at the end of the last whole event.
func (f *eventFile) read(path string, flags int, last uint64) ([]event, *os.File, error) {
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, nil, err
	}
	keep := false
	defer func() {
		if !keep {
			file.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != unix.Geteuid() || st.Mode&0o077 != 0 {
		return nil, nil, fmt.Errorf("%s is not a file that only this user may read and write; remove it", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxEventFile))
	if err != nil {
		return nil, nil, err
	}
	if n := min(len(text), len(eventFileMagic)); string(text[:n]) != eventFileMagic[:n] {
		return nil, nil, fmt.Errorf("%s has something else than events, and was not changed; remove it", path)
	}
	var events []event
	size := 0
	if rest, isOurs := bytes.CutPrefix(text, []byte(f.header)); isOurs && state.Boot() != "" {
		var whole int
		events, whole = decodeEvents(rest, last)
		size = len(f.header) + whole
	}
	if flags&os.O_RDWR == 0 {
		return events, nil, nil
	}
	if err := file.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	keep = true
	f.size = int64(size)
	return events, file, nil
}

// decodeEvents returns the events of a file, and how many bytes they have. What comes after the first
// event that is not whole, or that has no larger number than the one before, is not read.
func decodeEvents(text []byte, last uint64) (events []event, whole int) {
	after := uint64(0)
	frames := protocol.NewReader(bytes.NewReader(text))
	var d protocol.ReplyDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			return events, whole
		}
		m, err := d.Decode(body)
		if err != nil {
			return events, whole
		}
		var page protocol.EventsOK
		answer, isAnswer := m.(*protocol.Answer)
		if !isAnswer || answer.Unpack(&page) != nil || len(page.Events) != 1 || page.Next <= after || page.Next > last {
			return events, whole
		}
		after = page.Next
		whole += lengthPrefix + len(body)
		events = append(events, event{number: after, row: page.Events[0]})
	}
}

// begin writes the header of an empty file.
func (f *eventFile) begin() error {
	if f.size > 0 {
		return nil
	}
	return f.write([]byte(f.header))
}

// write appends to the file, all or nothing.
func (f *eventFile) write(text []byte) error {
	if err := state.CheckFileSize(f.size + int64(len(text))); err != nil {
		return err
	}
	return f.onWritten(f.file.WriteAt(text, f.size))
}

// onWritten takes the result of a write. What was written of a text that has no room is removed, so
// that the file ends with a whole event.
func (f *eventFile) onWritten(n int, err error) error {
	if err == nil {
		f.size += int64(n)
		return nil
	}
	if n > 0 && f.file.Truncate(f.size) != nil {
		f.end()
	}
	return err
}

// end ends the writing.
func (f *eventFile) end() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// add has an event written, soon.
func (f *eventFile) add(e event) {
	f.mu.Lock()
	if n := len(f.waiting); n < maxUnwritten || n < 2*maxUnwritten && classOf(&e.row) == incidents {
		f.waiting = append(f.waiting, e)
	}
	isFirst := len(f.waiting) == 1
	f.mu.Unlock()
	if isFirst {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// run writes what was added until close.
func (f *eventFile) run() {
	defer close(f.stopped)
	for {
		select {
		case <-f.wake:
			f.writeWaiting()
		case <-f.stop:
			f.writeWaiting()
			f.end()
			return
		}
	}
}

func (f *eventFile) writeWaiting() {
	f.mu.Lock()
	events := f.waiting
	f.waiting = nil
	f.mu.Unlock()
	for len(events) > 0 && f.file != nil {
		f.buf = f.buf[:0]
		n := 0
		for ; n < len(events) && len(f.buf) < writeSize; n++ {
			f.buf = events[n].append(f.buf)
		}
		err := f.rotate(len(f.buf))
		if err == nil {
			err = f.write(f.buf)
		}
		for i := range n {
			f.carry(&events[i])
		}
		events = events[n:]
		if err != nil && f.episodes.Begins(time.Now(), err.Error()) {
			f.log.Warn("events are not written, and a restart of the sidecar will forget them; locks are not affected", "file", f.path, "error", err)
		}
	}
}

// rotate begins a new file if the present one has no room, or if another program has shortened or removed it:
// what is written behind its end would not be read.
func (f *eventFile) rotate(room int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.file.Fd()), &st); err != nil {
		return err
	}
	switch {
	case st.Nlink == 0:
		return f.renew()
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size < f.size:
		if err := f.file.Truncate(0); err != nil {
			return err
		}
		f.size = 0
		return f.beginAgain()
	}
	if f.size+int64(room) <= maxEventFile {
		return f.begin() // the disk may have had no room for the header
	}
	if err := os.Rename(f.path, f.oldPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return f.renew()
}

// renew makes a new file.
func (f *eventFile) renew() error {
	file, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	f.end()
	if err != nil {
		return err
	}
	f.file, f.size = file, 0
	return f.beginAgain()
}

// beginAgain writes the header of an empty file, and the incidents of the one before.
func (f *eventFile) beginAgain() error {
	if err := f.begin(); err != nil {
		return err
	}
	text, first := []byte(nil), len(f.carried) // the oldest that has room
	for size := 0; first > 0; first-- {
		if size += f.carried[first-1].row.Size() + lengthPrefix; size > maxCarried {
			break
		}
	}
	for i := range f.carried[first:] {
		text = f.carried[first+i].append(text)
	}
	return f.write(text)
}

// carry notes an event that was written, if the next file is to have it, too.
func (f *eventFile) carry(e *event) {
	if classOf(&e.row) != incidents {
		return
	}
	if len(f.carried) == maxEvents {
		f.carried = slices.Delete(f.carried, 0, maxEvents/2)
	}
	f.carried = append(f.carried, *e)
}

// append appends the frame of an event in a file.
func (e *event) append(text []byte) []byte {
	return protocol.EventsOK{ID: 1, Events: []protocol.EventRow{e.row}, Next: e.number}.Append(text)
}

// close writes what was added, unless the file system hangs.
func (f *eventFile) close() {
	close(f.stop)
	select {
	case <-f.stopped:
	case <-time.After(closeEventsWithin):
	}
}
