package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// isJournal reports whether a file is a stream to systemd's journal: $JOURNAL_STREAM has the
// device and inode of the stream.
func isJournal(f *os.File) bool {
	stream := os.Getenv("JOURNAL_STREAM")
	if stream == "" {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// priority returns the prefix by which the journal knows the priority of a line; the numbers
// are those of syslog(3).
func priority(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "<3>"
	case level >= slog.LevelWarn:
		return "<4>"
	case level >= slog.LevelInfo:
		return "<6>"
	}
	return "<7>"
}

// withErrorPriority returns the text with the priority of an error before each line.
func withErrorPriority(text string) string {
	return "<3>" + strings.ReplaceAll(text, "\n", "\n<3>")
}

// journalHandler writes entries: each has a line of another handler, with its priority in front, and then the
// attributes as fields of the journal.
type journalHandler struct {
	line   slog.Handler // writes to text
	text   *lineText
	out    io.Writer
	prefix string // of the names of fields
	fields []byte // of WithAttrs
}

// lineText is where a handler writes a line. Handlers that are made of one another have one.
type lineText struct {
	sync.Mutex
	bytes.Buffer
}

// newJournalHandler returns a handler that writes to out, with the lines of the handler that line makes.
func newJournalHandler(out io.Writer, line func(io.Writer) slog.Handler) *journalHandler {
	text := new(lineText)
	return &journalHandler{line: line(&text.Buffer), text: text, out: out, prefix: "LOCKSIDECAR_"}
}

func (h *journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.line.Enabled(ctx, level)
}

func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	h.text.Lock()
	defer h.text.Unlock()
	h.text.Reset()
	h.text.WriteString(priority(r.Level))
	if err := h.line.Handle(ctx, r); err != nil {
		return err
	}
	entry := append(slices.Clone(h.text.Bytes()), h.fields...)
	r.Attrs(func(a slog.Attr) bool {
		entry = h.appendField(entry, a)
		return true
	})
	_, err := h.out.Write(entry)
	return err
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.line, with.fields = h.line.WithAttrs(attrs), slices.Clone(h.fields)
	for _, a := range attrs {
		with.fields = h.appendField(with.fields, a)
	}
	return &with
}

func (h *journalHandler) WithGroup(name string) slog.Handler {
	with := *h
	with.line, with.prefix = h.line.WithGroup(name), h.prefix+fieldName(name)+"_"
	return &with
}

// appendField appends the field of an attribute in the native protocol of the journal, in the form that has the length
// of the value: no value, such as the name of a lock, makes another field.
func (h *journalHandler) appendField(b []byte, a slog.Attr) []byte {
	value := a.Value.Resolve().String()
	b = append(append(append(b, h.prefix...), fieldName(a.Key)...), '\n')
	b = binary.LittleEndian.AppendUint64(b, uint64(len(value)))
	return append(append(b, value...), '\n')
}

// fieldName returns the name of an attribute as a field may have it. The process that a line is about is a client;
// the journal itself has that of the daemon, in _PID.
func fieldName(key string) string {
	switch key {
	case "pid", "uid", "cmd":
		key = "client_" + key
	}
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(key))
}

// journalSocket is where the journal takes entries in its native protocol.
var journalSocket = "/run/systemd/journal/socket"

// journalWriter sends the entries of a journalHandler to the journal. One that it cannot send becomes a line of the
// stream, without fields. One goroutine uses it.
//
// The journal package of go-systemd sends from a socket that is not connected: while the journal's queue is full, a
// send takes a whole processor. A connected one waits.
type journalWriter struct {
	stream io.Writer
	conn   *net.UnixConn // nil: not connected
}

// Write returns the length of an entry, or an error of the stream.
func (w *journalWriter) Write(entry []byte) (int, error) {
	end := bytes.IndexByte(entry, '\n') + 1
	line, fields := entry[:end], entry[end:]
	// With the stream, systemd sets the identifier.
	datagram := fmt.Appendf(nil, "SYSLOG_IDENTIFIER=locksidecar\nPRIORITY=%c\nMESSAGE=%s%s", line[1], line[len("<6>"):], fields)
	for range 2 { // the journal may have been restarted
		if w.send(datagram) == nil {
			return len(entry), nil
		}
	}
	if _, err := w.stream.Write(line); err != nil {
		return 0, err
	}
	return len(entry), nil
}

func (w *journalWriter) send(datagram []byte) error {
	if w.conn == nil {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: journalSocket, Net: "unixgram"})
		if err != nil {
			return err
		}
		w.conn = conn
	}
	_, err := w.conn.Write(datagram)
	if err != nil {
		_ = w.conn.Close() // it has nothing that is not sent
		w.conn = nil
	}
	return err
}
