package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLogLinesHaveThePriorityOfTheirLevel(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		c := &serveCmd{settings: settings{LogLevel: "debug", LogFormat: format}}
		log := c.logger(&out, true).With("redis", "r").WithGroup("g")
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError, slog.LevelError + 4} {
			log.Log(t.Context(), level, "it happened", "n", 1)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		for i, want := range []string{"<7>", "<6>", "<4>", "<3>", "<3>"} {
			if !strings.HasPrefix(lines[i], want) || !strings.Contains(lines[i], "it happened") || !strings.Contains(lines[i], "redis") {
				t.Errorf("%s: line %d is %q, want it to begin with %s", format, i, lines[i], want)
			}
		}
	}
	var out strings.Builder
	(&serveCmd{settings: settings{LogLevel: "warn"}}).logger(&out, true).Info("left out")
	if out.Len() != 0 {
		t.Errorf("logged %q", out.String())
	}
}

// The journal is recognized by the inode of stderr. $JOURNAL_STREAM may be inherited by a
// program whose stderr is another file.
func TestOnlyTheJournalGetsPriorities(t *testing.T) {
	cleanEnv(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]string{
		fmt.Sprintf("%d:%d", st.Dev, st.Ino): "<3>locksidecar: ", "1:1": "locksidecar: ", "": "locksidecar: ",
	} {
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		cmd := command(&fakeSidecar{}, "serve", "--lease", "0s")
		cmd.Env = append(cmd.Env, "JOURNAL_STREAM="+stream)
		cmd.Stderr, err = os.OpenFile(file.Name(), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if code := exitCodeOf(t, cmd.Run()); code != exitUsage {
			t.Errorf("exit code %d", code)
		}
		cmd.Stderr.(*os.File).Close()
		text, err := os.ReadFile(file.Name())
		if err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("JOURNAL_STREAM=%q: printed %q, want %q first", stream, text, want)
		}
	}
}
