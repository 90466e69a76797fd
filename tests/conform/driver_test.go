package conform

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// driverProcess is a driver beside a real daemon.
type driverProcess struct {
	t     *testing.T
	stdin io.Writer
	lines chan string
}

func startDriver(t *testing.T, argv ...string) *driverProcess {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = harness.PlainEnv()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &driverProcess{t: t, stdin: stdin, lines: make(chan string, 16)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range p.lines { // until the output has ended
		}
		_ = cmd.Wait()
	})
	p.want(`"driver":`)
	return p
}

func (p *driverProcess) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// want reads the next line, which must contain the text.
func (p *driverProcess) want(text string) {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok || !strings.Contains(line, text) {
			p.t.Fatalf("the driver printed %q; want %s", line, text)
		}
	case <-time.After(harness.Patience):
		p.t.Fatalf("the driver printed nothing; want %s", text)
	}
}
