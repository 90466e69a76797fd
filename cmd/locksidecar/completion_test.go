package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// nestedCLI has what the program itself does not have yet: commands below a command.
type nestedCLI struct {
	Host struct {
		Add struct {
			Level string `enum:"low,high" default:"low" help:"It's [one] of: low, high."`
			Quiet bool   `short:"q" help:"Print nothing."`
			Kind  string `arg:"" enum:"cat,cow" help:"What."`
		} `cmd:"" help:"Add a host."`
		Drop struct{} `cmd:"" help:"Drop a host."`
	} `cmd:"" help:"Change hosts."`
	Exec struct {
		Name    string   `arg:"" help:"A name."`
		Command []string `arg:"" passthrough:"partial" help:"A command."`
	} `cmd:"" help:"Execute a command."`
	Free struct {
		Force bool   `help:"Do it."`
		Name  string `arg:"" complete:"locks" help:"A lock."`
	} `cmd:"" help:"Free a lock."`
	Secret struct{} `cmd:"" hidden:"" help:"Not listed."`
}

// reader returns the path of a program that reads what a test makes, and skips without it.
func reader(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("LOCKSIDECAR_REQUIRE_READERS") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	return path
}

func nestedModel(t *testing.T) *kong.Node {
	t.Helper()
	parser, err := kong.New(new(nestedCLI), kong.Name("locksidecar"))
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model.Node
}

// runShell returns what a shell prints.
func runShell(t *testing.T, path string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a shell that hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TERM=dumb")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

func writeCompletion(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "locksidecar.completion")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// completions are words of a command line, and what completes the last one: all of it, in any
// order. They hold in bash and in fish.
var completions = []struct {
	words []string
	want  []string
}{
	{[]string{"h"}, []string{"host"}},
	{[]string{"sec"}, nil},
	{[]string{"host", ""}, []string{"add", "drop"}},
	{[]string{"host", "add", "--l"}, []string{"--level"}},
	{[]string{"host", "add", "c"}, []string{"cat", "cow"}},
	{[]string{"host", "add", "--level", ""}, []string{"high", "low"}},
	{[]string{"host", "add", "--level", "high", "ca"}, []string{"cat"}},
	{[]string{"host", "add", "--quiet", "ca"}, []string{"cat"}},
	{[]string{"host", "add", "cat", "--q"}, []string{"--quiet"}},
	{[]string{"host", "drop", "--l"}, nil},
	{[]string{"free", "inv"}, []string{"invoice:42", "invoice:7", "invoices"}},
	{[]string{"free", "--force", "ni"}, []string{"nightly"}},
	{[]string{"free", "--f"}, []string{"--force"}},
	{[]string{"exec", "host", ""}, nil}, // a name, not the command of the same name: see below
	{[]string{"exec", "add", "--", "locksidecar-test-comm"}, []string{"locksidecar-test-command"}},
	{[]string{"exec", "add", "locksidecar-test-comm"}, []string{"locksidecar-test-command"}},
}

// commandOnPath puts a program on the path that only this test has.
func commandOnPath(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "locksidecar-test-command"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	names := "#!/bin/sh\n[ \"$*\" = names ] && printf 'invoice:42\\ninvoice:7\\ninvoices\\nnightly\\n'\n"
	if err := os.WriteFile(filepath.Join(dir, "locksidecar"), []byte(names), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func checkCompletions(t *testing.T, complete func(words []string) []string) {
	t.Helper()
	for _, c := range completions {
		got := complete(c.words)
		slices.Sort(got)
		if len(c.words) == 3 && c.words[1] == "host" {
			// Any command of this host may follow; those of the grammar must not.
			if slices.Contains(got, "drop") || !slices.Contains(got, "locksidecar-test-command") {
				t.Errorf("%q completes to %d words, with drop or without the commands of the host", c.words, len(got))
			}
			continue
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q completes to %q; want %q", c.words, got, c.want)
		}
	}
}

func TestBashCompletes(t *testing.T) {
	bash := reader(t, "bash")
	commandOnPath(t)
	file := writeCompletion(t, bashCompletion(nestedModel(t)))
	complete := func(words []string) []string {
		const script = `source "$1"; shift; compopt() { :; }
COMP_WORDS=(locksidecar "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}
[ -z "$LINE" ] || { COMP_LINE=$LINE; COMP_POINT=${#LINE}; }
_locksidecar; printf '%s\n' "${COMPREPLY[@]}"`
		return strings.Fields(runShell(t, bash, append([]string{"--norc", "-c", script, "bash", file}, words...)...))
	}
	checkCompletions(t, complete)
	// bash splits a word at "=".
	if got := complete([]string{"host", "add", "--level", "=", "h"}); !slices.Equal(got, []string{"high"}) {
		t.Errorf("--level=h completes to %q", got)
	}
	// And at ":", after which only the last part is replaced.
	t.Setenv("LINE", "locksidecar free invoice:4")
	if got := complete([]string{"free", "invoice", ":", "4"}); !slices.Equal(got, []string{"42"}) {
		t.Errorf("invoice:4 completes to %q", got)
	}
}

func TestFishCompletes(t *testing.T) {
	fish := reader(t, "fish")
	commandOnPath(t)
	file := writeCompletion(t, fishCompletion(nestedModel(t)))
	checkCompletions(t, func(words []string) []string {
		var found []string
		out := runShell(t, fish, "--no-config", "-c", "source $argv[1]; complete -C \"$argv[2]\"", file, "locksidecar "+strings.Join(words, " "))
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			found = append(found, word)
		}
		return found
	})
}

// A person types a part of a line into an interactive zsh, and presses Tab.
func TestZshCompletes(t *testing.T) {
	zsh := reader(t, "zsh")
	commandOnPath(t)
	file := writeCompletion(t, zshCompletion(nestedModel(t)))
	lines := [][2]string{
		{"locksidecar h", "locksidecar host "},
		{"locksidecar host d", "locksidecar host drop "},
		{"locksidecar host add --lev", "locksidecar host add --level="},
		{"locksidecar host add --level=h", "locksidecar host add --level=high "},
		{"locksidecar host add --quiet ca", "locksidecar host add --quiet cat "},
		{"locksidecar host add --level low --quiet --hel", "locksidecar host add --level low --quiet --help "},
		{"locksidecar free night", "locksidecar free nightly "},
		{"locksidecar free invoice:4", "locksidecar free invoice:42 "},
		{"locksidecar exec host -- locksidecar-test-comm", "locksidecar exec host -- locksidecar-test-command "},
		{"locksidecar exec drop locksidecar-test-comm", "locksidecar exec drop locksidecar-test-command "},
	}
	// A widget shows the line after the completion, without what the terminal adds.
	const script = `
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; bindkey -e; autoload -Uz compinit; compinit -u -D; source '${(q)1}
zpty -w z 'show() { print -r -- "LINE=[$BUFFER]"; BUFFER= }; zle -N show; bindkey "^X" show; print REA""DY'
zpty -r z out '*READY*'
shift
for line; do
	zpty -n -w z "$line"$'\t\x18'
	zpty -r z out '*LINE=\[*\]*'
	print -r -- ${${out##*LINE=\[}%%\]*}
done
zpty -d z`
	args := []string{"-f", "-c", script, "zsh", file}
	for _, line := range lines {
		args = append(args, line[0])
	}
	got := strings.Split(runShell(t, zsh, args...), "\n")
	for i, line := range lines {
		if i >= len(got) || got[i] != line[1] {
			t.Errorf("%q completes to line %d of %q; want %q", line[0], i, got, line[1])
		}
	}
}

// Each command and each flag that --help shows is in the completions of each shell.
func TestCompletionsHaveEveryCommand(t *testing.T) {
	root := newParser(&cli{}, io.Discard, io.Discard).Model.Node
	for name, text := range map[string]string{"bash": bashCompletion(root), "zsh": zshCompletion(root), "fish": fishCompletion(root)} {
		for _, node := range allNodes(root) {
			if !strings.Contains(text, node.Name) {
				t.Errorf("the completions of %s do not have the command %s", name, node.Name)
			}
			for _, f := range visibleFlags(node) {
				if !strings.Contains(text, "--"+f.Name) && !strings.Contains(text, "-l "+f.Name) {
					t.Errorf("the completions of %s do not have --%s", name, f.Name)
				}
			}
		}
		path, err := exec.LookPath(name)
		if err != nil {
			continue // the tests above require the shells
		}
		if out := runShell(t, path, "-n", writeCompletion(t, text)); out != "" {
			t.Errorf("%s -n: %s", name, out)
		}
	}
}
