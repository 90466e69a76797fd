// Command locksidecar is the daemon that holds this host's distributed locks,
// and the tools to use and inspect it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
)

type cli struct {
	Serve        serveCmd        `cmd:"" help:"Serve locks to the processes of this host."`
	Run          runCmd          `cmd:"" help:"Run a command while holding a lock, or permits of a semaphore."`
	Lock         lockCmd         `cmd:"" help:"Hold a lock or permits until standard input ends, for scripts."`
	Pipe         pipeCmd         `cmd:"" help:"Speak the protocol in JSON lines, for other languages."`
	Who          whoCmd          `cmd:"" help:"Say who has a lock and who waits for it, on all hosts."`
	Ls           lsCmd           `cmd:"" help:"List locks with their holders and waiters."`
	Hosts        hostsCmd        `cmd:"" help:"Show every host that uses the same Redis, those in trouble first."`
	Status       statusCmd       `cmd:"" help:"Show how the sidecar, its Redis and its locks are."`
	Top          topCmd          `cmd:"" help:"Watch the locks for which processes wait."`
	Events       eventsCmd       `cmd:"" help:"Print what happened to locks, and what happens."`
	ForceRelease forceReleaseCmd `cmd:"" help:"End a lock that a process of this host holds."`
	Metrics      metricsCmd      `cmd:"" help:"Print the metrics of the sidecar."`
	Ping         pingCmd         `cmd:"" help:"Ask whether the sidecar and its Redis answer."`
	RedisCLI     redisCLICmd     `cmd:"" name:"redis-cli" help:"Run redis-cli with the Redis of the daemon's settings."`
	Conform      conformCmd      `cmd:"" help:"Test a client of the protocol: play the sidecar, and judge."`
	Demo         demoCmd         `cmd:"" help:"Watch a flash sale without and with locks."`
	Completion   completionCmd   `cmd:"" help:"Print completions for a shell."`
	Names        namesCmd        `cmd:"" hidden:"" help:"Print the names of locks, for completions."`
	Prepare      prepareCmd      `cmd:"" help:"Make the directory of the socket for a daemon in a container."`
	Man          manCmd          `cmd:"" help:"Write the manual pages into a directory."`
	Version      versionCmd      `cmd:"" help:"Print the version."`

	PrintVersion versionFlag `name:"version" help:"Print the version."`
}

// socketFlag is the flag of every command that sends requests to a running sidecar.
type socketFlag struct {
	Socket string `help:"The sidecar's socket (default: $$LOCKSIDECAR_SOCKET, then /run/locksidecar/locksidecar.sock)." placeholder:"PATH"`
}

// requestTimeout bounds who, ls, metrics, status, ping and force-release. A sidecar that works answers their
// requests at once.
const requestTimeout = 10 * time.Second

// connect connects to the sidecar for requests within requestTimeout: the context that it returns
// ends then. end closes the connection.
func (f *socketFlag) connect(ctx context.Context) (_ context.Context, sidecar *locksidecar.Client, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	if sidecar, err = locksidecar.Dial(ctx, f.Socket); err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return ctx, sidecar, func() { sidecar.Close(); cancel() }, nil
}

func main() {
	switch os.Args[0] {
	case launcher:
		runLauncher(os.Args)
	case guardName:
		runGuard()
	}
	os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr))
}

// dispatch runs one command line and returns the exit code.
func dispatch(args []string, stdout, stderr io.Writer) int {
	args = socketLast(args)
	if len(args) == 0 { // the list of commands is the most helpful error
		_, _ = newParser(&cli{}, stderr, stderr, kong.Exit(func(int) {})).Parse([]string{"--help"})
		return exitUsage
	}
	if args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	parser := newParser(&cli{}, stdout, stderr)
	parsed, err := parser.Parse(args)
	if err != nil {
		err = explainNoCommand(args, err)
		printMessage(stderr, "%v (see locksidecar --help)", err)
		return exitUsage
	}
	err = parsed.Run()
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	if err != nil {
		printMessage(stderr, "%v", err)
	}
	return exitCode(err)
}

// socketLast moves --socket from before the command, where people write it, to after it, where it belongs. Without a
// command it returns nothing.
func socketLast(args []string) []string {
	n := 0
	for n < len(args) {
		if args[n] == "--socket" && n+1 < len(args) {
			n += 2
		} else if strings.HasPrefix(args[n], "--socket=") {
			n++
		} else {
			break
		}
	}
	if n == 0 || n == len(args) {
		return args[n:]
	}
	return slices.Concat(args[n:n+1], args[:n], args[n+1:])
}

// explainNoCommand says what is missing in "locksidecar run NAME".
func explainNoCommand(args []string, err error) error {
	if args[0] == "run" && (len(args) == 1 || strings.HasPrefix(err.Error(), `expected "<`)) {
		return fmt.Errorf("run takes a lock and a command: locksidecar run invoice:42 -- ./report.sh; %w", err)
	}
	return err
}

// printMessage prints one line for people, which begins with the program's name. The errors of
// the SDK begin with it, too, so it is removed from them. An error may have the text of another host,
// which any program that may publish in Redis can send: it does not control the terminal.
func printMessage(w io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			text = removeName(text, err)
		}
	}
	text = programName + printableLines(text)
	if f, ok := w.(*os.File); ok && isJournal(f) {
		text = withErrorPriority(text)
	}
	fmt.Fprintln(w, text)
}

// printableLines is display.Printable for a text that may have several lines. Those after the first are
// indented: a part of the text may come from another host, and must not look like a message of its own.
func printableLines(text string) string {
	var lines strings.Builder
	for line := range strings.Lines(text) {
		line, end := strings.CutSuffix(line, "\n")
		if lines.Len() > 0 && line != "" {
			lines.WriteString("  ")
		}
		lines.WriteString(display.Printable(strings.ReplaceAll(line, "\t", " ")))
		if end {
			lines.WriteByte('\n')
		}
	}
	return lines.String()
}

// programName begins each message.
const programName = "locksidecar: "

// removeName removes the program's name from a text where err, or an error that it wraps, begins
// with it. The same characters in a path or a name stay.
func removeName(text string, err error) string {
	if message := err.Error(); strings.HasPrefix(message, programName) {
		text = strings.Replace(text, message, message[len(programName):], 1)
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		if inner := err.Unwrap(); inner != nil {
			text = removeName(text, inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range err.Unwrap() {
			text = removeName(text, inner)
		}
	}
	return text
}

func printErr(format string, args ...any) { printMessage(os.Stderr, format, args...) }

// newParser returns a parser of command lines; its help texts show the defaults.
func newParser(c *cli, stdout, stderr io.Writer, extra ...kong.Option) *kong.Kong {
	options := []kong.Option{
		kong.Name("locksidecar"),
		kong.Description("Distributed locks for the processes of one host, kept in Redis by one daemon."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ValueFormatter(showEnv),
		settingVars(),
		kong.BindTo(context.Background(), (*context.Context)(nil)),
		kong.BindTo(stdout, (*io.Writer)(nil)),
	}
	return kong.Must(c, append(options, extra...)...)
}

// settingVars are the defaults that are not constants in the tags of settings.
func settingVars() kong.Vars {
	return kong.Vars{
		"socket":        sidecar.DefaultSocket(),
		"socket_mode":   fileMode(sidecar.DefaultSocketMode).String(),
		"redis":         sidecar.DefaultRedis,
		"lease":         sidecar.DefaultLease.String(),
		"linger":        sidecar.DefaultLinger.String(),
		"resume_within": sidecar.DefaultResumeWithin.String(),
		"max_sessions":  fmt.Sprint(sidecar.DefaultMaxSessions),
		"max_locks":     fmt.Sprint(sidecar.DefaultMaxLocks),
		"max_holds":     fmt.Sprint(sidecar.DefaultMaxHolds),
		"max_new_names": fmt.Sprint(sidecar.DefaultMaxNewNames),
		"max_waiters":   fmt.Sprint(sidecar.DefaultMaxWaiters),
	}
}
