//go:build linux

// Command systemd installs the package under a real systemd, and tries what the units and the
// package promise. tests/systemd/boot boots that systemd; make test-systemd runs both.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	service  = "locksidecar.service"
	socket   = "locksidecar.socket"
	settings = "/etc/locksidecar/locksidecar.toml"
	confD    = "/etc/locksidecar/conf.d"
	dropIn   = confD + "/50-host.toml" // of the administrator
	binary   = "/usr/bin/locksidecar"

	// commandLimit bounds each command. None takes more than a few seconds unless it hangs.
	commandLimit = 90 * time.Second
)

func main() {
	var (
		isTraffic = flag.Bool("traffic", false, "be the clients")
		deb       = flag.String("deb", "", "the package")
		runbooks  = flag.String("runbooks", "docs/runbooks", "the directory of the runbooks")
		next      = flag.String("next", "", "a package of a later version")
		restarts  = flag.Int("restarts", 50, "restarts under traffic")
		kills     = flag.Int("kills", 20, "kills under traffic")
	)
	flag.Parse()
	if *isTraffic {
		if err := runTraffic(); err != nil {
			fmt.Fprintln(os.Stderr, "traffic:", err)
			os.Exit(1)
		}
		return
	}
	// The test writes below /etc and /usr. Only boot gives it a copy of them.
	if init, err := os.ReadFile("/proc/1/comm"); err != nil || string(init) != "systemd\n" || os.Getenv("LOCKSIDECAR_BOOTED") == "" {
		fmt.Fprintln(os.Stderr, "error: tests/systemd/boot runs this program")
		os.Exit(1)
	}
	t := &test{deb: *deb, next: *next, runbooks: *runbooks, restarts: *restarts, kills: *kills, start: time.Now()}
	if err := t.run(); err != nil {
		fmt.Printf("FAILED after %v: %v\n", time.Since(t.start).Round(time.Millisecond), err)
		log, _ := exec.Command("journalctl", "--no-pager", "--quiet", "--lines=100", "--unit="+service, "--unit="+socket).CombinedOutput()
		fmt.Printf("%s", log)
		os.Exit(1)
	}
	fmt.Printf("all of it in %v\n", time.Since(t.start).Round(time.Second))
}

type test struct {
	deb, next       string
	runbooks        string
	restarts, kills int
	start           time.Time

	traffic *traffic
	seen    report // by the clients, at the end of the last step with traffic
	errors  int    // that the clients have got, and that were expected
}

func (t *test) run() error {
	for _, step := range []struct {
		name string
		run  func() (string, error)
	}{
		{"install", t.install},
		{"security", t.security},
		{"enable", t.enable},
		{"LoadCredential", t.loadCredential},
		{"users", t.users},
		{"fields of the journal", t.journalFields},
		{"restart", t.restart},
		{"kill", t.kill},
		{"runbooks", t.runRunbooks},
		{"WatchdogSec", t.watchdog},
		{"reload", t.reload},
		{"reload with a setting that is refused", t.reloadRefused},
		{"upgrade", t.upgrade},
		{"upgrade with a setting that is refused", t.upgradeRefused},
		{"socket activation", t.socketActivation},
		{"exit 64", t.exitUsage},
		{"remove", t.remove},
		{"purge", t.purge},
	} {
		start := time.Now()
		line, err := step.run()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("ok  %-40s %5.1fs  %s\n", step.name, time.Since(start).Seconds(), line)
	}
	return nil
}

// run executes a command and returns what it prints.
func run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "SYSTEMD_PAGER=")
	return runCommand(cmd)
}

func runCommand(cmd *exec.Cmd) (string, error) {
	timer := time.AfterFunc(commandLimit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, text)
	}
	return text, nil
}

// runAll executes commands until one fails.
func runAll(commands ...string) error {
	for _, c := range commands {
		words := strings.Fields(c)
		if _, err := run(words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// property returns a property of a unit.
func property(unit, name string) (string, error) {
	return run("systemctl", "show", "--property="+name, "--value", unit)
}

// properties returns an error if a property of the service has another value.
func properties(want map[string]string) error {
	for name, value := range want {
		got, err := property(service, name)
		if err != nil {
			return err
		}
		if got != value {
			return fmt.Errorf("%s of the service is %q; want %q", name, got, value)
		}
	}
	return nil
}

func mainPID() (int, error) {
	text, err := property(service, "MainPID")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// await returns when the condition holds, within a limit.
func await(what string, limit time.Duration, condition func() (bool, error)) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		ok, err := condition()
		if err != nil || ok {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s", limit, what)
		}
	}
}

// awaitSuccessor returns the pid of the daemon that serves after the one given has ended.
func awaitSuccessor(before int) (int, error) {
	var pid int
	err := await("a daemon serves after another one", time.Minute, func() (bool, error) {
		state, err := property(service, "ActiveState")
		if err != nil || state != "active" {
			return false, err
		}
		pid, err = mainPID()
		return pid != 0 && pid != before, err
	})
	return pid, err
}

// noErrors returns what the clients have seen since the last call, or an error if one of
// them got one. They must have made some pairs.
func (t *test) noErrors(dial bool) (string, error) {
	var r report
	err := await("the clients acquire and release", time.Minute, func() (bool, error) {
		var err error
		r, err = t.traffic.report(dial)
		if err != nil {
			return false, err
		}
		if n := len(r.Errors) - t.errors; n > 0 {
			return false, fmt.Errorf("clients got %d errors; the first: %s", n, r.Errors[t.errors])
		}
		if r.Lost != "" {
			return false, fmt.Errorf("a lock is lost: %s", r.Lost)
		}
		return r.Pairs >= t.seen.Pairs+1000, nil
	})
	if err != nil {
		return "", err
	}
	if t.seen.Token != 0 && r.Token != t.seen.Token {
		return "", fmt.Errorf("the lock that is held has the token %d; it had %d", r.Token, t.seen.Token)
	}
	line := fmt.Sprintf("%d pairs, 0 errors, 0 locks lost, longest wait so far %v", r.Pairs-t.seen.Pairs, r.LongestWait.Round(time.Millisecond))
	t.seen = r
	return line, nil
}

func (t *test) install() (string, error) {
	if err := runAll("dpkg --install " + t.deb); err != nil {
		return "", err
	}
	group, err := user.LookupGroup("locksidecar")
	if err != nil {
		return "", err
	}
	if _, err := user.Lookup("locksidecar"); err != nil {
		return "", err
	}
	for path, mode := range map[string]os.FileMode{settings: 0o640, confD: 0o750 | os.ModeDir} {
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		if stat := info.Sys().(*syscall.Stat_t); info.Mode() != mode || stat.Uid != 0 || strconv.Itoa(int(stat.Gid)) != group.Gid {
			return "", fmt.Errorf("%s has the mode %v and belongs to %d:%d", path, info.Mode(), stat.Uid, stat.Gid)
		}
	}
	for _, unit := range []string{service, socket} {
		// is-enabled exits with 1 for "disabled".
		if state, _ := run("systemctl", "is-enabled", unit); state != "disabled" {
			return "", fmt.Errorf("%s is %s after the installation", unit, state)
		}
	}
	if err := properties(map[string]string{"ActiveState": "inactive"}); err != nil {
		return "", err
	}
	// sysusers.d and postinst make one and the same user.
	if out, err := run("systemd-sysusers", "--dry-run", "/usr/lib/sysusers.d/locksidecar.conf"); err != nil || out != "" {
		return "", fmt.Errorf("sysusers.d would change the user: %s (%w)", out, err)
	}
	if err := runAll("systemd-analyze verify --man=no /usr/lib/systemd/system/" + service + " /usr/lib/systemd/system/" + socket); err != nil {
		return "", err
	}
	version, err := run(binary, "--version")
	return version + "; disabled, and not started", err
}

func (t *test) security() (string, error) {
	out, err := run("systemd-analyze", "security", "--no-pager", "--threshold=20", service)
	if err != nil {
		return "", err
	}
	lines := strings.Split(out, "\n")
	return lines[len(lines)-1], nil
}

// enable starts Redis with a password, and the daemon without it.
func (t *test) enable() (string, error) {
	if err := runAll(
		"systemd-run --quiet --unit=test-redis --property=DynamicUser=yes redis-server --port 6379 --requirepass secret --save --appendonly no",
		"systemctl enable --now "+service); err != nil {
		return "", err
	}
	if err := properties(map[string]string{"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0", "User": "locksidecar"}); err != nil {
		return "", err
	}
	info, err := os.Stat("/run/locksidecar/locksidecar.sock")
	if err != nil {
		return "", err
	}
	if info.Mode() != fs.ModeSocket|0o660 {
		return "", fmt.Errorf("the socket has the mode %v", info.Mode())
	}
	var status string
	err = await("the status names the trouble with Redis", 30*time.Second, func() (bool, error) {
		var err error
		status, err = property(service, "StatusText")
		return strings.Contains(status, "wants a password"), err
	})
	return "active; status: " + status, err
}

// loadCredential gives the daemon the URL with the password, which only root can read.
func (t *test) loadCredential() (string, error) {
	if err := os.WriteFile("/etc/locksidecar/redis-url", []byte("redis://:secret@127.0.0.1:6379/0\n"), 0o600); err != nil {
		return "", err
	}
	dropIn := "/etc/systemd/system/" + service + ".d"
	if err := errors.Join(os.MkdirAll(dropIn, 0o755),
		os.WriteFile(dropIn+"/redis.conf", []byte("[Service]\nLoadCredential=redis-url:/etc/locksidecar/redis-url\n"), 0o644)); err != nil {
		return "", err
	}
	if err := runAll("systemctl daemon-reload", "systemctl restart "+service); err != nil {
		return "", err
	}
	out, err := run(binary, "ping")
	return strings.ReplaceAll(out, "\n", "; "), err
}

// users tries the socket's group, and starts the clients as a member of it.
func (t *test) users() (string, error) {
	if err := runAll("useradd --groups locksidecar app", "useradd outsider"); err != nil {
		return "", err
	}
	// boot gives this program a path that other users may not reach.
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(exe)
	if err != nil {
		return "", err
	}
	const traffic = "/usr/local/bin/locksidecar-traffic"
	if err := os.WriteFile(traffic, text, 0o755); err != nil {
		return "", err
	}
	if _, err := run("runuser", "-u", "app", "--", binary, "run", "users", "--", "true"); err != nil {
		return "", err
	}
	refused, err := run("runuser", "-u", "outsider", "--", binary, "run", "users", "--", "true")
	if err == nil {
		return "", errors.New("a user outside of the group has locked")
	}
	ids := make([]uint32, 3)
	for i, of := range [][]string{{"-u", "app"}, {"-g", "app"}, {"-g", "locksidecar"}} {
		id, err := run("id", of...)
		if err != nil {
			return "", err
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return "", err
		}
		ids[i] = uint32(n)
	}
	if t.traffic, err = startTraffic(traffic, ids[0], ids[1], ids[2]); err != nil {
		return "", err
	}
	return fmt.Sprintf("a member of the group locks; another user: %q", refused), nil
}

// journalFields checks that the journal finds what the daemon logs about a lock by the field of its name.
func (t *test) journalFields() (string, error) {
	const name = "journal:42"
	if _, err := run(binary, "run", name, "--", binary, "force-release", name); err == nil {
		return "", errors.New("a job whose lock was forced free has ended with exit code 0")
	}
	if err := runAll("journalctl --sync"); err != nil {
		return "", err
	}
	log, err := run("journalctl", "--no-pager", "--output=cat", "--unit="+service, "LOCKSIDECAR_LOCK="+name, "LOCKSIDECAR_CLIENT_UID=0")
	if err != nil {
		return "", err
	}
	lines := strings.Split(log, "\n")
	for _, line := range lines {
		if !strings.Contains(line, " lock="+name+" ") {
			return "", fmt.Errorf("the journal has a line of another lock: %s", log)
		}
	}
	if !strings.Contains(log, "client forced the release of a lock") {
		return "", fmt.Errorf("the journal does not find the forced release: %s", log)
	}
	return fmt.Sprintf("%d lines about one lock", len(lines)), nil
}

func (t *test) restart() (string, error) {
	for range t.restarts {
		before, err := mainPID()
		if err != nil {
			return "", err
		}
		if err := runAll("systemctl restart " + service); err != nil {
			return "", err
		}
		// Type=notify: restart returns when the daemon serves.
		if after, err := mainPID(); err != nil || after == before {
			return "", fmt.Errorf("the daemon is still %d (%w)", after, err)
		}
		if err := properties(map[string]string{"ActiveState": "active"}); err != nil {
			return "", err
		}
	}
	line, err := t.noErrors(false)
	return fmt.Sprintf("%d times: %s", t.restarts, line), err
}

func (t *test) kill() (string, error) {
	for range t.kills {
		before, err := mainPID()
		if err != nil {
			return "", err
		}
		if err := runAll("systemctl kill --signal=KILL " + service); err != nil {
			return "", err
		}
		if _, err := awaitSuccessor(before); err != nil {
			return "", err
		}
	}
	line, err := t.noErrors(false)
	return fmt.Sprintf("%d times: %s", t.kills, line), err
}

// systemCommand matches what a page of the runbooks has that needs the systemd of the host, or its
// file systems: as a line of its own, or in a sentence.
var systemCommand = regexp.MustCompile("(?m)(?:^|`)((?:systemctl|journalctl|df) [^`\n]+)")

// runRunbooks runs the commands of the runbooks that tests/cli cannot run. None of them costs a
// client its lock.
func (t *test) runRunbooks() (string, error) {
	pages, err := filepath.Glob(filepath.Join(t.runbooks, "*.md"))
	if err != nil {
		return "", err
	}
	ran := make(map[string]bool)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return "", err
		}
		for _, m := range systemCommand.FindAllStringSubmatch(string(text), -1) {
			command := m[1]
			if command == "systemctl status" || ran[command] { // the former names what shows something
				continue
			}
			ran[command] = true
			out, err := run("sh", "-c", command)
			if err != nil {
				return "", fmt.Errorf("%s: %w", page, err)
			}
			shows := map[string]string{"systemctl status": "Active: active (running)", "journalctl": "msg=serving", "df": "Mounted on"}
			for begin, words := range shows {
				if strings.HasPrefix(command, begin) && !strings.Contains(out, words) {
					return "", fmt.Errorf("%s: %s does not show %q: %s", page, command, words, out)
				}
			}
			if strings.HasPrefix(command, "systemctl stop") {
				if err := runAll("systemctl start " + service); err != nil {
					return "", err
				}
			}
			if err := properties(map[string]string{"ActiveState": "active"}); err != nil {
				return "", fmt.Errorf("after %s: %w", command, err)
			}
		}
	}
	if len(ran) < 5 {
		return "", fmt.Errorf("%d pages have only the commands %v", len(pages), ran)
	}
	line, err := t.noErrors(false)
	return fmt.Sprintf("%d commands: %s", len(ran), line), err
}

// watchdog stops the daemon, as a hung loop does.
func (t *test) watchdog() (string, error) {
	before, err := mainPID()
	if err != nil {
		return "", err
	}
	start := time.Now()
	if err := syscall.Kill(before, syscall.SIGSTOP); err != nil {
		return "", err
	}
	after, err := awaitSuccessor(before)
	if err != nil {
		return "", err
	}
	took := time.Since(start)
	log, err := run("journalctl", "--no-pager", "--output=cat", "--unit="+service)
	if err != nil {
		return "", err
	}
	if !strings.Contains(log, "Watchdog timeout") {
		return "", errors.New("the journal has no watchdog timeout")
	}
	// While it stood still, requests that wait were refused, and the SDK says why.
	var r report
	err = await("the clients acquire and release again", time.Minute, func() (bool, error) {
		r, err = t.traffic.report(false)
		return r.Pairs >= t.seen.Pairs+1000, err
	})
	if err != nil {
		return "", err
	}
	for _, e := range r.Errors {
		if !strings.Contains(e, "it is not held, and nothing needs to be cleaned up") {
			return "", fmt.Errorf("a client got the error: %s", e)
		}
	}
	t.errors = len(r.Errors)
	line, err := t.noErrors(false)
	return fmt.Sprintf("a daemon that stood still (pid %d) was replaced (%d) after %.1f s; %d requests were refused meanwhile; then: %s", before, after, took.Seconds(), t.errors, line), err
}

// setSettings replaces the lines that the test adds to the settings.
func setSettings(lines string) error {
	text, err := os.ReadFile(settings)
	if err != nil {
		return err
	}
	shipped, _, _ := strings.Cut(string(text), "\n# of this host\n")
	return os.WriteFile(settings, []byte(shipped+"\n# of this host\n"+lines), 0)
}

// setDropIn replaces the administrator's file in conf.d.
func setDropIn(text string) error {
	if err := os.WriteFile(dropIn, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Chmod(dropIn, 0o644)
}

func (t *test) reload() (string, error) {
	before, err := mainPID()
	if err != nil {
		return "", err
	}
	if err := setSettings("lease = \"31s\"\n"); err != nil {
		return "", err
	}
	// A file in conf.d overrides it.
	if err := setDropIn("lease = \"29s\"\n"); err != nil {
		return "", err
	}
	if err := runAll("systemctl reload " + service); err != nil {
		return "", err
	}
	after, err := awaitSuccessor(before)
	if err != nil {
		return "", err
	}
	if err := checkHash(); err != nil {
		return "", err
	}
	log, err := run("journalctl", "--no-pager", "--output=cat", fmt.Sprintf("_PID=%d", after))
	if err != nil {
		return "", err
	}
	if !strings.Contains(log, "lease=29s") {
		return "", fmt.Errorf("the daemon after the reload does not log the new setting: %s", log)
	}
	line, err := t.noErrors(false)
	return fmt.Sprintf("a reload is a restart (pid %d, then %d, with the new setting): %s", before, after, line), err
}

// checkHash checks that root finds the settings of the daemon by the command of docs/metrics.md.
func checkHash() error {
	printed, err := run("env", "CREDENTIALS_DIRECTORY=/run/credentials/"+service, binary, "serve", "--print", "--config", settings)
	if err != nil {
		return err
	}
	metrics, err := run(binary, "metrics")
	if err != nil {
		return err
	}
	_, hash, _ := strings.Cut(printed, "locksidecar_settings_info: ")
	hash, _, _ = strings.Cut(hash, "\n")
	if hash == "" || !strings.Contains(metrics, `locksidecar_settings_info{hash="`+hash+`"} 1`) {
		return fmt.Errorf("the metrics of the daemon do not have the hash of its settings:\n%s", printed)
	}
	return nil
}

// refused checks that a daemon continues after a reload that was refused.
func (t *test) refused(before int) (string, error) {
	if after, err := mainPID(); err != nil || after != before {
		return "", fmt.Errorf("the daemon was %d and is %d (%w)", before, after, err)
	}
	if err := properties(map[string]string{"ActiveState": "active", "SubState": "running"}); err != nil {
		return "", err
	}
	line, err := t.noErrors(false)
	return fmt.Sprintf("the daemon continues (pid %d): %s", before, line), err
}

func (t *test) reloadRefused() (string, error) {
	before, err := mainPID()
	if err != nil {
		return "", err
	}
	if err := setDropIn("leese = \"29s\"\n"); err != nil {
		return "", err
	}
	if err := runAll("systemctl reload " + service); err == nil {
		return "", errors.New("the reload succeeded")
	}
	log, err := run("journalctl", "--no-pager", "--output=cat", "--lines=50", "--unit="+service)
	if err != nil {
		return "", err
	}
	if !strings.Contains(log, dropIn+", line 1 has the unknown key") {
		return "", fmt.Errorf("the journal does not name the place of the fault: %s", log)
	}
	line, err := t.refused(before)
	if err != nil {
		return "", err
	}
	return line, setDropIn("lease = \"28s\"\n")
}

// upgrade is unattended: the administrator has edited the settings, standard input is /dev/null, and
// no option says what to do with settings. dpkg would fail if it had to ask.
func (t *test) upgrade() (string, error) {
	before, err := mainPID()
	if err != nil {
		return "", err
	}
	edited, err := os.ReadFile(settings)
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(edited), "lease = \"31s\"\n") {
		return "", errors.New("the settings are not edited")
	}
	if err := runAll("dpkg --install " + t.next); err != nil {
		return "", err
	}
	after, err := awaitSuccessor(before)
	if err != nil {
		return "", err
	}
	running, err := run(fmt.Sprintf("/proc/%d/exe", after), "--version")
	if err != nil {
		return "", err
	}
	installed, err := run(binary, "--version")
	if err != nil {
		return "", err
	}
	if running != installed || !strings.Contains(running, "upgraded") {
		return "", fmt.Errorf("the daemon that runs is %s; installed is %s", running, installed)
	}
	if text, err := os.ReadFile(settings); err != nil || string(text) != string(edited) {
		return "", fmt.Errorf("the upgrade has changed the settings (%w): %s", err, text)
	}
	if text, err := os.ReadFile(dropIn); err != nil || string(text) != "lease = \"28s\"\n" {
		return "", fmt.Errorf("the upgrade has changed %s (%w): %s", dropIn, err, text)
	}
	log, err := run("journalctl", "--no-pager", "--output=cat", fmt.Sprintf("_PID=%d", after))
	if err != nil {
		return "", err
	}
	if !strings.Contains(log, "lease=28s") {
		return "", fmt.Errorf("the new version does not use %s: %s", dropIn, log)
	}
	line, err := t.noErrors(false)
	return fmt.Sprintf("pid %d, then %d of the new version; settings kept: %s", before, after, line), err
}

// upgradeRefused installs a version that refuses the settings: the running daemon continues.
func (t *test) upgradeRefused() (string, error) {
	before, err := mainPID()
	if err != nil {
		return "", err
	}
	if err := setSettings("leese = \"28s\"\n"); err != nil {
		return "", err
	}
	out, err := run("dpkg", "--install", t.next)
	if err != nil {
		return "", err
	}
	if !strings.Contains(out, "continues. Correct the settings") {
		return "", fmt.Errorf("the upgrade does not print that the old daemon continues: %s", out)
	}
	line, err := t.refused(before)
	if err != nil {
		return "", err
	}
	if err := setSettings("lease = \"31s\"\n"); err != nil {
		return "", err
	}
	if err := runAll("systemctl reload " + service); err != nil {
		return "", err
	}
	_, err = awaitSuccessor(before)
	return line, err
}

// socketActivation has systemd make the socket: clients connect while no daemon runs.
func (t *test) socketActivation() (string, error) {
	if err := runAll("systemctl stop "+service, "systemctl enable --now "+socket); err != nil {
		return "", err
	}
	// The clients that were connected connect again, which starts the service.
	if _, err := awaitSuccessor(0); err != nil {
		return "", err
	}
	const restarts = 10
	if _, err := t.traffic.report(true); err != nil {
		return "", err
	}
	for range restarts {
		if err := runAll("systemctl restart " + service); err != nil {
			return "", err
		}
	}
	before := t.seen.Dials
	line, err := t.noErrors(false)
	if err == nil && t.seen.Dials < before+restarts {
		err = fmt.Errorf("only %d clients connected", t.seen.Dials-before)
	}
	return fmt.Sprintf("started by a client; %d restarts while %d new clients connected: %s", restarts, t.seen.Dials-before, line), err
}

// exitUsage starts the daemon with a setting that it refuses.
func (t *test) exitUsage() (string, error) {
	if err := t.traffic.stop(); err != nil {
		return "", err
	}
	if err := runAll("systemctl disable --now "+socket, "systemctl stop "+service); err != nil {
		return "", err
	}
	if err := setSettings("leese = \"30s\"\n"); err != nil {
		return "", err
	}
	if err := runAll("systemctl start " + service); err == nil {
		return "", errors.New("the daemon has started with a setting that it refuses")
	}
	// Until a service is started again, it is not failed, but activating (auto-restart).
	failed := map[string]string{"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "64", "NRestarts": "0"}
	if err := properties(failed); err != nil {
		return "", err
	}
	reason, err := run("journalctl", "--no-pager", "--output=cat", "--lines=1", "--identifier=locksidecar", "--unit="+service)
	if err != nil {
		return "", err
	}
	if !strings.Contains(reason, "leese") {
		return "", fmt.Errorf("the journal does not have the reason: %s", reason)
	}
	if err := setSettings(""); err != nil {
		return "", err
	}
	if err := runAll("systemctl start "+service, binary+" ping"); err != nil {
		return "", err
	}
	reason, _, _ = strings.Cut(reason, ";")
	return "not started again: " + reason, nil
}

func (t *test) remove() (string, error) {
	if err := runAll("systemctl enable "+socket, "dpkg --remove locksidecar"); err != nil {
		return "", err
	}
	for _, gone := range []string{binary, "/usr/lib/systemd/system/" + service, "/run/locksidecar/locksidecar.sock",
		"/etc/systemd/system/multi-user.target.wants/" + service, "/etc/systemd/system/sockets.target.wants/" + socket} {
		if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s is still there (%v)", gone, err)
		}
	}
	if out, err := exec.Command("pidof", "locksidecar").Output(); err == nil {
		return "", fmt.Errorf("the daemon still runs: %s", out)
	}
	for _, kept := range []string{settings, "/run/locksidecar/locksidecar.sock.state"} {
		if _, err := os.Stat(kept); err != nil {
			return "", err
		}
	}
	return "stopped and disabled; settings and state are kept", nil
}

func (t *test) purge() (string, error) {
	if err := runAll("dpkg --purge locksidecar"); err != nil {
		return "", err
	}
	left, err := filepath.Glob("/etc/locksidecar/*")
	if err != nil {
		return "", err
	}
	if want := []string{"/etc/locksidecar/redis-url"}; !slices.Equal(left, want) {
		return "", fmt.Errorf("/etc/locksidecar has %v; want the administrator's file only, %v", left, want)
	}
	if _, err := os.Stat("/run/locksidecar"); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the state is still there (%v)", err)
	}
	if _, err := user.Lookup("locksidecar"); err != nil {
		return "", err
	}
	return "settings and state are gone; the administrator's other file and the user stay", nil
}
