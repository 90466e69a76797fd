// Package readme runs the README, as a person does who tries it.
package readme

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }

var block = regexp.MustCompile("(?ms)^```(sh|go|python)\n(.*?)^```$")

// What stands around the lines of Go: a program that has ctx, and charges.
const goBegin, goEnd = `package main

import (
	"context"
	"fmt"
	"time"
)

func chargeUnlessPaid(ctx context.Context, token uint64) error { fmt.Println("go charged"); return ctx.Err() }

func work(ctx context.Context) error {
`, `}

func main() {
	if err := work(context.Background()); err != nil {
		panic(err)
	}
}
`

// goProgram makes a program of the lines of Go: the import goes to the other ones.
func goProgram(t *testing.T, lines string) string {
	t.Helper()
	imported, body, found := strings.Cut(lines, "\n\n")
	name, isImport := strings.CutPrefix(imported, "import ")
	if !found || !isImport {
		t.Fatalf("the lines of Go begin with no import:\n%s", lines)
	}
	return strings.Replace(goBegin, "\"time\"\n", "\"time\"\n\n\t"+name+"\n", 1) + body + goEnd
}

// Every block runs, from top to bottom, in one shell. Only git clone is replaced, which needs the network, and the demo
// is a short one.
func TestEveryBlockOfTheREADMERuns(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(harness.Root())
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(root, ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("make venv makes the Python that runs the lines of Python: ", err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.ShortDir(t)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "'" + path + "'"
	}
	script := "set -e\ntrap 'kill $(jobs -p)' EXIT\n"
	kinds := make(map[string]int)
	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		kinds[b[1]]++
		switch b[1] {
		case "go":
			script += "go run " + write("main.go", goProgram(t, b[2])) + "\n"
		case "python":
			script += "'" + python + "' " + write("main.py", "def charge_unless_paid(fence: int) -> None:\n    print('python charged')\n\n"+b[2]) + "\n"
		default:
			script += b[2]
		}
	}
	if kinds["sh"] < 3 || kinds["go"] != 1 || kinds["python"] != 1 {
		t.Errorf("the README has the blocks %v", kinds)
	}
	for _, r := range [][2]string{
		{"git clone https://github.com/locksidecar/locksidecar && cd locksidecar\n", "cd '" + root + "'\n"},
		{"locksidecar demo ", "locksidecar demo --stock 100 --tills 2 --pay 50ms "},
		{"LOCKSIDECAR_SOCKET=/tmp/locks.sock", "LOCKSIDECAR_SOCKET='" + filepath.Join(dir, "s.sock") + "'"},
		// A person takes longer from one line to the next than a daemon to start.
		{"serve --embedded &", "serve --embedded & until locksidecar ping >/dev/null 2>&1; do sleep 0.1; done;"},
	} {
		if !strings.Contains(script, r[0]) {
			t.Errorf("the README has no %q", r[0])
		}
		script = strings.Replace(script, r[0], r[1], 1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Env = append(harness.PlainEnv(), "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\nof\n%s", err, out, script)
	}
	for _, want := range []string{"oversold: ", "100 customers paid for 100 units", "one process of all hosts at a time", "go charged", "python charged", "STATE   free", "redis     serves"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing printed %q:\n%s", want, out)
		}
	}
}
