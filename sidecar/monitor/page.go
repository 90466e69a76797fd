package monitor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

//go:embed page.html lock.html parts.html
var pageFiles embed.FS

var pageTemplates = template.Must(template.ParseFS(pageFiles, "*.html"))

// pagePolicy permits the own style of the pages, and nothing else: no script, no other resource.
var pagePolicy = func() string {
	text, err := pageFiles.ReadFile("parts.html")
	if err != nil {
		panic(err)
	}
	_, style, _ := strings.Cut(string(text), "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

const (
	// refreshSeconds is how often a browser loads the page again.
	refreshSeconds = 5
	noRefresh      = 0

	// shownWaiters is how many waiters of a lock are on the status page. The page of the lock has its queue.
	shownWaiters = 3

	// recentLosses is for how long a loss is part of the verdict.
	recentLosses = 10 * time.Minute
)

// page is what page.html shows. Texts that processes chose are printable.
type page struct {
	Host, Version, At string
	Refresh           int // seconds, or noRefresh

	IsWell   bool
	Verdict  string // one sentence
	Locks    []lockRow
	MoreText string // that the table of locks does not have all; "": it has
	Events   events
	Charts   []chart
	Losses   []lossRow // of the reasons that there were
	Facts    []fact
	Hosts    []hostRow
}

type fact struct{ Name, Value string }

type lockRow struct {
	Key                  string // its name, with characters that are not printable
	Name, Kind, State    string // State of a semaphore: how many permits this host has; Kind of a read/write lock: only if it is shared
	PID, User, For, Left string
	Token, Cmd           string
	Waiting              int
	Waiters              []waiterRow
	MoreWaiters          int
	held, longestWait    time.Duration
}

type waiterRow struct{ PID, User, Waited, Cmd string }

type lossRow struct {
	Reason, Meaning     string
	Recent, Hour, Total uint64 // Recent: of recentLosses
}

type hostRow struct {
	Name  string
	Locks int
}

// status serves the page.
func (m *Monitor) status(w http.ResponseWriter, r *http.Request) {
	refresh := refreshOf(r)
	serve(w, m.pages[refresh].get())
}

// refreshOf returns after how many seconds the browser is to load the page again.
func refreshOf(r *http.Request) int {
	if r.URL.Query().Get("refresh") == "no" {
		return noRefresh
	}
	return refreshSeconds
}

// serve serves a page that was made.
func serve(w http.ResponseWriter, a answer) {
	if a.why != "" {
		http.Error(w, a.why, http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	fmt.Fprint(w, a.texts[0])
}

// writePage returns the page, which a browser loads again after so many seconds.
func (m *Monitor) writePage(refresh int) answer {
	// The context is not that of the request. Otherwise a browser that leaves would end a survey,
	// and the next request would start the survey from the first lock.
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	p, err := m.page(ctx)
	if err != nil {
		return answer{why: "the daemon does not answer: " + err.Error()}
	}
	p.Refresh = refresh
	return m.render("page.html", p)
}

// render makes the text of a page.
func (m *Monitor) render(file string, page any) answer {
	var text strings.Builder
	if err := pageTemplates.ExecuteTemplate(&text, file, page); err != nil {
		m.log.Error("the status page cannot be made", "error", err)
		return answer{why: "the page cannot be made; the log of the daemon says why"}
	}
	return answer{texts: []string{text.String()}}
}

func (m *Monitor) page(ctx context.Context) (*page, error) {
	s, err := m.sidecar.Stats(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, list := range [][]locktable.Ranked{s.Survey.MostWaited, s.Survey.LongestHeld} {
		for _, l := range list {
			if !slices.Contains(names, l.Name) {
				names = append(names, l.Name)
			}
		}
	}
	rows, err := m.sidecar.Rows(ctx, names)
	if err != nil {
		return nil, err
	}
	recent, eventsAt, err := m.sidecar.Events(ctx, maxFolded, isNotable)
	if err != nil {
		return nil, err
	}
	samples := m.history.until(sampleOf(s))
	p := &page{Version: m.build.Version, At: time.Now().Format("2006-01-02 15:04:05 MST")}
	p.Host = display.Printable(m.sidecar.Config().HostName)
	p.Facts = facts(s, m.sidecar)
	p.Charts = charts(samples)
	p.Locks, p.Hosts = lockRows(s.Now, rows), hostRows(p.Host, s.Holds, rows)
	for i := range p.Locks {
		l := &p.Locks[i]
		l.Waiters = l.Waiters[:min(len(l.Waiters), shownWaiters)]
		l.MoreWaiters = l.Waiting - len(l.Waiters)
	}
	if more := s.Locks - len(p.Locks); more > 0 && len(p.Locks) > 0 {
		p.MoreText = fmt.Sprintf("%d more, with fewer waiters and younger holds; \"locksidecar ls\" has them all", more)
	}
	p.Losses = lossRows(samples, s.StartedAt)
	why, _ := m.sidecar.Trouble()
	if why == "" && s.Redis != "ok" {
		why = s.Redis
	}
	p.IsWell, p.Verdict = verdict(why, alarms(p.Losses, s.Survey.RenewalsLate))
	p.Events = newEvents(fold(recent), eventsAt, true)
	p.Events.Rows = p.Events.Rows[:min(len(p.Events.Rows), maxRecent)]
	p.Events.Caption = "All but grants and releases, newest first. Those of one kind, command and reason are one row, with the text of the newest."
	return p, nil
}

func facts(s *sidecar.Stats, server *sidecar.Server) []fact {
	_, v := sum(s)
	oldest := func(o *locktable.Oldest) string {
		if o.Since == 0 {
			return "none"
		}
		return fmt.Sprintf("%s, %s by pid %d (%s)", display.Duration(time.Duration(s.Now-o.Since)), display.Printable(o.Name), o.Peer.PID, strings.TrimSpace(display.Printable(o.Peer.Cmd)))
	}
	roundTrip := "not known yet"
	if s.Scripts.Count() > 0 {
		roundTrip = s.RoundTrip.Round(time.Microsecond).String()
	}
	servesFor := time.Duration(s.Now - s.StartedAt)
	return []fact{
		{"Serves since", time.Now().Add(-servesFor).Format("2006-01-02 15:04:05") + " (" + display.Duration(servesFor) + ")"},
		{"Redis", server.RedisServer()},
		{"Round trip to Redis", roundTrip},
		{"Sessions", strconv.Itoa(s.Sessions)},
		{"Holds", strconv.Itoa(s.Holds)},
		{"Waiters", strconv.Itoa(s.Waiters)},
		{"Oldest waiter", oldest(&v.OldestWaiter)},
		{"Oldest hold", oldest(&v.OldestHold)},
		{"Renewals that are late", strconv.Itoa(s.Survey.RenewalsLate)},
		{"Taken over at the start", display.Count(int(s.TakenOver), "hold")},
	}
}

func lockRows(now int64, rows []protocol.LockRow) []lockRow {
	users := make(display.UserNames)
	locks := make([]lockRow, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		l := lockRow{Key: r.Name, Name: display.Printable(r.Name), State: r.State, Waiting: r.Waiting, MoreWaiters: r.Waiting - len(r.Waiters)}
		switch r.State {
		case protocol.StateHeld:
			l.held = time.Duration(r.HeldMS) * time.Millisecond
			l.PID, l.User, l.For, l.Left = strconv.FormatInt(r.PID, 10), users.Name(int(r.UID)), display.Duration(l.held), display.Duration(time.Duration(max(0, r.DeadlineNS-now)))
			l.Token, l.Cmd = strconv.FormatUint(r.Token, 10), display.Printable(r.Cmd)
			switch {
			case r.Orphan && r.KeepLeftMS > 0:
				l.State, l.PID, l.Cmd = "kept", "", "" // no process has it any more
			case r.Orphan:
				l.State = "orphan"
			case r.Absent:
				l.State = "absent"
			}
			if r.LeaseMS > 0 {
				l.Left += " fixed"
			}
			if more := r.Held - 1; more > 0 {
				l.Cmd += fmt.Sprintf(" and %d more", more)
			}
		case protocol.StateRemote:
			l.Left, l.Cmd = display.Expiry(time.Duration(r.RemoteTTLMS)*time.Millisecond), display.Printable(display.Elsewhere(r.RemoteHost, r.RemoteField))
			if r.Kind == protocol.KindPermits && r.RemoteField == "" {
				l.Left, l.Cmd = "", display.TooFewPermits
			}
		}
		switch {
		case r.Shared > 0: // an exclusive hold is shown as that of a lock
			l.Kind, l.State = r.Kind, display.Readers(r.Shared)
		case r.Kind == protocol.KindPermits:
			l.Kind, l.State = r.Kind, display.Permits(r.Permits, int(r.Of))
		}
		for _, w := range r.Waiters {
			waited := time.Duration(w.WaitedMS) * time.Millisecond
			l.longestWait = max(l.longestWait, waited)
			l.Waiters = append(l.Waiters, waiterRow{strconv.FormatInt(w.PID, 10), users.Name(int(w.UID)), display.Duration(waited), display.Printable(w.Cmd)})
		}
		locks = append(locks, l)
	}
	slices.SortFunc(locks, func(a, b lockRow) int {
		return cmp.Or(-cmp.Compare(a.Waiting, b.Waiting), -cmp.Compare(a.longestWait, b.longestWait), -cmp.Compare(a.held, b.held), cmp.Compare(a.Name, b.Name))
	})
	return locks
}

// hostRows returns this host, and the owners elsewhere of locks that clients here wait for.
func hostRows(self string, holds int, rows []protocol.LockRow) []hostRow {
	hosts := []hostRow{{Name: self + " (this host)", Locks: holds}}
	elsewhere := make(map[string]int)
	for i := range rows {
		if rows[i].State == protocol.StateRemote {
			owner, _, _ := strings.Cut(rows[i].RemoteField, ":")
			if host := rows[i].RemoteHost; host != "" {
				owner = host + " (" + owner + ")"
			}
			elsewhere[owner]++
		}
	}
	for owner, n := range elsewhere {
		hosts = append(hosts, hostRow{Name: display.Printable(owner), Locks: n})
	}
	slices.SortFunc(hosts[1:], func(a, b hostRow) int { return cmp.Or(-cmp.Compare(a.Locks, b.Locks), cmp.Compare(a.Name, b.Name)) })
	return hosts
}

// lossRows returns the losses of a daemon that was started at startedAt, up to the last sample.
func lossRows(samples []sample, startedAt int64) []lossRow {
	recent, hour := lossesWithin(recentLosses, samples, startedAt), lossesWithin(historyWindow, samples, startedAt)
	var rows []lossRow
	for i, total := range samples[len(samples)-1].losses {
		if total == 0 {
			continue
		}
		reason := locktable.LossReason(i)
		rows = append(rows, lossRow{string(reason), display.Reason(reason), recent[i], hour[i], total})
	}
	return rows
}

// alarms returns what an operator must see first although clients can lock, as clauses.
func alarms(losses []lossRow, late int) []string {
	var clauses, lost []string
	for _, l := range losses {
		isMeant := l.Reason == string(protocol.ByForce) || l.Reason == string(protocol.MaxHold) // a person, or a program, wanted it
		if l.Recent > 0 && !isMeant {
			lost = append(lost, fmt.Sprintf("%d %s", l.Recent, l.Reason))
		}
	}
	if len(lost) > 0 {
		clauses = append(clauses, fmt.Sprintf("locks were lost in the last %d minutes (%s)", recentLosses/time.Minute, strings.Join(lost, ", ")))
	}
	if late > 0 {
		clauses = append(clauses, fmt.Sprintf("renewals are late (%d), and their locks are lost at their deadlines without them", late))
	}
	return clauses
}

// verdict says in one sentence whether all is well. why is the reason why clients cannot lock, or why a
// restart would lose their locks; "": there is none.
func verdict(why string, alarms []string) (isWell bool, sentence string) {
	if why == "" && len(alarms) == 0 {
		return true, "Clients can lock."
	}
	begin := "Not well: " + strings.TrimSuffix(why, ".")
	if why == "" {
		begin = "Not well: clients can lock, but " + alarms[0]
		alarms = alarms[1:]
	}
	return false, strings.Join(append([]string{begin}, alarms...), "; ") + "."
}
