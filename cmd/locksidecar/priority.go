package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

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

var levels = [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

// priorities is a handler that begins each line with its priority. It has a handler for
// each level, with a writer that adds the prefix.
type priorities [len(levels)]slog.Handler

func newPriorities(w io.Writer, handler func(io.Writer) slog.Handler) *priorities {
	var p priorities
	for i, level := range levels {
		p[i] = handler(prefixed{w, priority(level)})
	}
	return &p
}

// handlerFor returns the handler of a level, or of the next one below it.
func (p *priorities) handlerFor(level slog.Level) slog.Handler {
	at := 0
	for i := range levels {
		if level >= levels[i] {
			at = i
		}
	}
	return p[at]
}

func (p *priorities) Enabled(ctx context.Context, level slog.Level) bool {
	return p.handlerFor(level).Enabled(ctx, level)
}

func (p *priorities) Handle(ctx context.Context, r slog.Record) error {
	return p.handlerFor(r.Level).Handle(ctx, r)
}

func (p *priorities) WithAttrs(attrs []slog.Attr) slog.Handler {
	var with priorities
	for i := range p {
		with[i] = p[i].WithAttrs(attrs)
	}
	return &with
}

func (p *priorities) WithGroup(name string) slog.Handler {
	var with priorities
	for i := range p {
		with[i] = p[i].WithGroup(name)
	}
	return &with
}

// prefixed adds a prefix to each line that it is given.
type prefixed struct {
	w      io.Writer
	prefix string
}

func (p prefixed) Write(line []byte) (int, error) {
	if _, err := p.w.Write(append([]byte(p.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// withErrorPriority returns the text with the priority of an error before each line.
func withErrorPriority(text string) string {
	return "<3>" + strings.ReplaceAll(text, "\n", "\n<3>")
}
