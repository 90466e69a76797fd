package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Each command of a runbook runs as it is written there, on a host where a lock is held and
// another one waits for it. Those of systemd are what `make test-systemd` runs.
func TestRunbooksHaveCommandsThatRun(t *testing.T) {
	redisCLI, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("redis-cli is needed")
	}
	pages, err := filepath.Glob(filepath.Join(harness.Root(), "docs/runbooks/*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("there are %d pages: %v", len(pages), err)
	}
	index, err := os.ReadFile(filepath.Join(harness.Root(), "docs/runbooks/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(page)
		if name == "README.md" {
			continue
		}
		if !strings.Contains(string(index), "("+name+")") {
			t.Errorf("README.md does not name %s", name)
		}
		r := harness.StartRedis(t)
		here, there := harness.NewDaemon(t, r.TCPURL()), harness.NewDaemon(t, r.TCPURL())
		here.Start("--host-name=db-7", "--other-hosts=force-release")
		there.Start("--host-name=db-8")
		for _, d := range []*harness.Daemon{here, there} {
			d.AwaitSocket()
			d.AwaitRedis("ok")
		}
		for _, command := range commandsOf(string(text)) {
			program, _, _ := strings.Cut(command, " ")
			switch program {
			case "systemctl", "journalctl", "df":
				continue
			case "locksidecar", "redis-cli":
			default:
				t.Errorf("%s: which test runs %q?", name, command)
				continue
			}
			holder := harness.Dial(t, here)
			if _, err := holder.Lock(t.Context(), "invoice:42"); err != nil {
				t.Fatal(err)
			}
			on := here
			if strings.Contains(command, "--host db-7") {
				on = there
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
			cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+on.Socket, "REDIS="+r.TCPURL(),
				"PATH="+filepath.Dir(harness.Program(t))+":"+filepath.Dir(redisCLI)+":/usr/bin:/bin")
			if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
				t.Errorf("%s: %s: %v\n%s", name, command, err, out)
			}
			holder.Close()
			ran++
		}
	}
	if ran < 20 {
		t.Errorf("only %d commands were run", ran)
	}
}

// commandsOf returns the lines of the blocks of shell commands in a page.
func commandsOf(page string) (commands []string) {
	blocks := strings.Split(page, "```")
	for i := 1; i < len(blocks); i += 2 {
		lines, is := strings.CutPrefix(blocks[i], "sh\n")
		if !is {
			continue
		}
		for line := range strings.Lines(lines) {
			commands = append(commands, strings.TrimSpace(line))
		}
	}
	return commands
}
