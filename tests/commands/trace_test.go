package commands

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// maxAttempts bounds how often a scene is played until it takes its usual course.
const maxAttempts = 40

// A scene is something that clients of two hosts do with a lock, and the traces of it.
type scene struct {
	lease time.Duration // a hold is renewed after a third of it; 0: not while the scene lasts

	unusual []course // the scene is then played again
	play    func(s *stage)
}

// A course is another course of a scene: Redis executes a command that is not in its usual one.
type course struct {
	heading string // of the trace; "": any
	command string // a part of its line
	why     string
}

// What differs on a machine that is busy: a host subscribes to the channel of a lock for which a
// client has waited for 100 ms; the subscribers of a lock are counted when it has passed from owner to
// owner for 50 ms; and after 100 ms it is left free for a moment, which is published.
var slow = []course{
	{"", "subscribe ", "the machine was slow: a client waited for 100 ms"},
	{"", "PUBLISH redisson_lock__channel:{invoice}", "the machine was slow: the lock was left free"},
	{"Transfer", "PUBSUB NUMSUB", "the machine was slow: the lock had passed on for 50 ms"},
}

// Of eight renewals of a hold, one looks for fields of others.
var looking = []course{{"", "HLEN", "the renewal looked for fields of others"}}

var scenes = []scene{
	{play: func(s *stage) {
		l := s.lock(s.a)
		s.trace("Acquire of a name that was never used", 1)
		s.end(l)
	}},
	{play: func(s *stage) {
		s.useOn(s.b)
		l := s.lock(s.a)
		s.trace("Acquire of a free lock", 1)
		s.unlock(l)
		s.trace("Release", 1)
	}},
	{unusual: slow, play: func(s *stage) {
		s.useOn(s.b)
		l := s.lock(s.a)
		s.trace("", 1)
		second := s.wait(s.a2)
		s.trace("A second client of the host waits", 1)
		s.unlock(l)
		l = <-second
		s.trace("Handoff", 1)
		s.end(l)
	}},
	{play: func(s *stage) {
		l := s.lock(s.a)
		s.trace("", 1)
		s.try(s.b)
		s.trace("A try that is refused", 1)
		s.try(s.a2)
		s.trace("A try that is refused on the holder's host", 0)
		s.end(l)
	}},
	{unusual: slow, play: func(s *stage) {
		l := s.lock(s.a)
		s.trace("", 1)
		second := s.wait(s.b)
		s.trace("A client of another host waits", 1)
		s.unlock(l)
		l = <-second
		s.trace("Transfer", 1)
		s.end(l)
	}},
	{lease: 6 * time.Second, unusual: looking, play: func(s *stage) {
		l := s.lock(s.a)
		s.trace("", 1)
		s.trace("Renewal", 1)
		s.end(l)
	}},
	{play: func(s *stage) {
		s.permits(s.a, 2)
		s.trace("Permits of a free semaphore", 1)
		p := s.permits(s.b, 1)
		s.trace("Permits beside another host", 1)
		if err := p.Release(); err != nil {
			s.Fatal(err)
		}
		s.trace("Permits go back", 1)
	}},
}

// A stage is two hosts, the lock of a scene, and what the scene has recorded.
type stage struct {
	*testing.T
	*monitor
	lease    string              // ms
	hosts    map[string]string   // uuid → A or B
	a, a2, b *locksidecar.Client // two of A and one of B
	name     string              // of the lock
	traces   map[string][]string // by heading
	holds    map[string]int      // field → which one of its host it is, among those of the scene
	counts   map[string]int      // host → how many of its holds the scene has
	more     string              // Redis executed more scripts than the trace has; "": it did not
}

// newStage starts two hosts, whose watchdog lease this is.
func newStage(t *testing.T, lease time.Duration) *stage {
	t.Helper()
	r := harness.StartRedis(t)
	s := &stage{T: t, monitor: startMonitor(t, r), lease: strconv.FormatInt(lease.Milliseconds(), 10), hosts: map[string]string{}}
	for _, host := range []string{"A", "B"} {
		d := harness.StartDaemon(t, r.TCPURL(), "--lease="+lease.String())
		uuid, err := os.ReadFile(d.Socket + ".uuid")
		if err != nil {
			t.Fatal(err)
		}
		s.hosts[strings.TrimSpace(string(uuid))] = host
		if host == "A" {
			s.a, s.a2 = harness.Dial(t, d), harness.Dial(t, d)
		} else {
			s.b = harness.Dial(t, d)
		}
	}
	return s
}

// play plays a scene until it takes its usual course, and returns its traces.
func (s *stage) play(n int, of scene) map[string][]string {
	s.Helper()
	why := ""
	for attempt := range maxAttempts {
		s.name = fmt.Sprintf("lock-%d-%d", n, attempt)
		s.traces, s.holds, s.counts, s.more = map[string][]string{}, map[string]int{}, map[string]int{}, ""
		of.play(s)
		if why = s.unusual(of); why == "" {
			return s.traces
		}
	}
	s.Fatalf("scene %d has not taken its usual course in %d attempts: %s", n+1, maxAttempts, why)
	return nil
}

// unusual returns why the traces are not those of the usual course; "": they are.
func (s *stage) unusual(of scene) string {
	if s.more != "" {
		return s.more
	}
	for heading, lines := range s.traces {
		for _, c := range of.unusual {
			if (c.heading == "" || c.heading == heading) && strings.Contains(strings.Join(lines, "\n"), c.command) {
				return c.why
			}
		}
	}
	return ""
}

func (s *stage) lock(c *locksidecar.Client) *locksidecar.Lock {
	s.Helper()
	l, err := c.Lock(s.Context(), s.name)
	if err != nil {
		s.Fatal(err)
	}
	return l
}

func (s *stage) unlock(l *locksidecar.Lock) {
	s.Helper()
	if err := l.Unlock(); err != nil {
		s.Fatal(err)
	}
}

// end releases the lock at the end of a scene. Redis has executed that when the next one begins.
func (s *stage) end(l *locksidecar.Lock) {
	s.Helper()
	if err := l.Unlock(locksidecar.Confirmed(s.Context())); err != nil {
		s.Fatal(err)
	}
}

// permits has a client acquire permits of a semaphore of ten.
func (s *stage) permits(c *locksidecar.Client, n int) *locksidecar.Permit {
	s.Helper()
	p, err := c.Semaphore(s.name, 10).Acquire(s.Context(), n)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// wait has a client wait for the lock.
func (s *stage) wait(c *locksidecar.Client) <-chan *locksidecar.Lock {
	granted := make(chan *locksidecar.Lock, 1)
	go func() {
		l, err := c.Lock(s.Context(), s.name)
		if err != nil {
			s.Error(err)
		}
		granted <- l
	}()
	return granted
}

func (s *stage) try(c *locksidecar.Client) {
	s.Helper()
	if _, err := c.TryLock(s.Context(), s.name); err == nil {
		s.Fatal("a client is granted a lock that another one holds")
	}
}

// useOn has a client use the lock: then there is a token counter, and the lock is not hot on
// another host.
func (s *stage) useOn(c *locksidecar.Client) {
	s.Helper()
	s.end(s.lock(c))
	s.cut(s.name)
}

// trace waits until Redis has executed as many scripts as the trace has, and records it under a
// heading of the document. "": it is not in the document.
func (s *stage) trace(heading string, scripts int) {
	s.Helper()
	harness.Eventually(s, fmt.Sprintf("Redis executes %d scripts", scripts), func() bool { return s.runs(s.name) >= scripts })
	var lines []string
	executed := 0
	for _, c := range s.cut(s.name) {
		if c.words[0] == "evalsha" {
			executed++
		}
		lines = append(lines, s.text(c))
	}
	if executed > scripts {
		s.more = fmt.Sprintf("in %q Redis executed %d scripts, and not %d:\n%s", heading, executed, scripts, strings.Join(lines, "\n"))
	}
	if len(lines) == 0 {
		lines = []string{"(no command)"}
	}
	if heading != "" {
		s.traces[heading] = lines
	}
}

var (
	number16 = regexp.MustCompile(`\b\d{16}\b`)
	ofClaim  = regexp.MustCompile(`^\d+ (\d+) \d{13}$`)
	ofMode   = regexp.MustCompile(`^permits (\d+) \d{13} \d{13} \d{16}$`)
	transfer = regexp.MustCompile(`^transfer:\S+ \d+ \d+ (\d+) \d+ (\d+) \d+ `)
	origin   = regexp.MustCompile(`^(recall|free|requeue):\S+`)
	field    = regexp.MustCompile(`\b([AB]):(\d+)\b`)
)

// text returns a command as the document has it: with names for uuids, numbers and times. What
// follows the keys of a script is left out, because it is for the script alone.
func (s *stage) text(c command) string {
	words := slices.Clone(c.words)
	from := c.from
	for uuid, host := range s.hosts {
		if s.addressOf(uuid) == c.from {
			from = host
		}
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], uuid, host)
		}
	}
	if words[0] == "evalsha" {
		keys, err := strconv.Atoi(words[2])
		if err != nil {
			s.Fatal(err)
		}
		words[1] = s.scriptName(words[1])
		words = append(words[:3+keys], "…")
	}
	for i, w := range words {
		w = strings.ReplaceAll(w, s.name, "invoice")
		w = transfer.ReplaceAllString(w, "transfer:<origin> <ticket> <last token> $1 <lease> $2 <passed> ")
		w = origin.ReplaceAllString(w, "$1:<origin>")
		w = ofClaim.ReplaceAllString(w, "<number> $1 <expiry>")
		w = ofMode.ReplaceAllString(w, "permits $1 <due> <until> <token>")
		w = field.ReplaceAllStringFunc(w, s.holdName)
		if w == s.lease {
			w = "<lease>"
		}
		name := "<time>"
		if words[0] == "SET" {
			name = "<token>"
		}
		w = number16.ReplaceAllString(w, name)
		if strings.Contains(w, " ") {
			w = strconv.Quote(w)
		}
		words[i] = w
	}
	return fmt.Sprintf("%-4s%s", from, strings.Join(words, " "))
}

// holdName numbers the holds of a host in the order in which the scene has them.
func (s *stage) holdName(field string) string {
	if s.holds[field] == 0 {
		s.counts[field[:1]]++
		s.holds[field] = s.counts[field[:1]]
	}
	return fmt.Sprint(field[:2], s.holds[field])
}

// A block of docs/redis-commands.md is the first fenced block below a heading, and the list below it,
// which has an item for each line.
var block = regexp.MustCompile("(?s)^(.*?\n```\n)(.*?)(```\n.*)$")

var item = regexp.MustCompile(`(?m)^\d+\. `)

func TestTracesOfTheDocumentAreThoseOfRedis(t *testing.T) {
	t.Parallel()
	path := filepath.Join(harness.Root(), "docs", "redis-commands.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")
	stages := map[time.Duration]*stage{}
	have := map[string]bool{}
	for n, of := range scenes {
		lease := cmp.Or(of.lease, 20*time.Minute)
		if stages[lease] == nil {
			stages[lease] = newStage(t, lease)
		}
		s := stages[lease]
		for heading, lines := range s.play(n, of) {
			have[heading] = true
			i := slices.IndexFunc(sections, func(section string) bool { return strings.HasPrefix(section, heading+"\n") })
			if i < 0 {
				t.Errorf("the document has no heading %q for\n%s", heading, strings.Join(lines, "\n"))
				continue
			}
			parts := block.FindStringSubmatch(sections[i])
			if parts == nil {
				t.Errorf("%q has no trace", heading)
				continue
			}
			trace := strings.Join(lines, "\n") + "\n"
			if parts[2] != trace && !*update {
				t.Errorf("%q: Redis executes\n%s\nand the document has\n%s\ngo test ./tests/commands -update writes the new trace; the sentences below it are yours", heading, trace, parts[2])
			}
			if items := len(item.FindAllString(parts[3], -1)); items != len(lines) {
				t.Errorf("%q has %d sentences for the %d lines of its trace", heading, items, len(lines))
			}
			sections[i] = parts[1] + trace + parts[3]
		}
	}
	for _, section := range sections[1:] {
		if heading, _, _ := strings.Cut(section, "\n"); !have[heading] && strings.Contains(section, "\n```\n") {
			t.Errorf("no scene has the trace of %q", heading)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(sections, "\n## ")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
