package monitor_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/monitor"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// station is a sidecar on an in-process Redis with a metrics listener, until the test ends.
type station struct {
	*testing.T
	redis  *embedded.Redis
	server *sidecar.Server
	socket string
	http   http.Client
	dial   func() (net.Conn, error)
	stop   func() // the sidecar, but not its listener
}

func start(t *testing.T, change func(*sidecar.Config)) *station {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	redis, err := embedded.Start(t.Context(), log, embedded.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	dir := t.TempDir()
	cfg := sidecar.Config{Socket: filepath.Join(dir, "s"), Redis: redis.URL(), Metrics: filepath.Join(dir, "m"), Log: log}
	if change != nil {
		change(&cfg)
	}
	s := &station{T: t, redis: redis, socket: cfg.Socket}
	if s.server, err = sidecar.Listen(cfg); err != nil {
		t.Fatal(err)
	}
	l := s.server.MetricsListener(t.Context())
	s.dial = func() (net.Conn, error) { return net.Dial(l.Addr().Network(), l.Addr().String()) }
	s.http = http.Client{
		Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return s.dial() }},
		Timeout:   time.Minute,
	}
	t.Cleanup(s.http.CloseIdleConnections)
	shown := monitor.New(s.server, monitor.Build{Version: "1.2.3", Commit: "abc", Settings: "0a1b2c3d4e5f"})
	s.server.SetMetrics(shown.Metrics)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	monitored := make(chan struct{})
	go func() {
		defer close(monitored)
		shown.Serve(ctx, l)
	}()
	loop, stop := context.WithCancel(context.Background())
	go func() {
		defer close(served)
		if err := s.server.Serve(loop); err != nil {
			t.Error(err)
		}
	}()
	s.stop = func() {
		stop()
		<-served
	}
	t.Cleanup(func() {
		s.stop()
		cancel()
		<-monitored
	})
	return s
}

func (s *station) client() *locksidecar.Client {
	s.Helper()
	c, err := locksidecar.Dial(s.Context(), s.socket)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	return c
}

// get returns the status and the body of a page.
func (s *station) get(path string) (int, string) {
	s.Helper()
	r, err := s.http.Get("http://localhost" + path)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// scrape returns the metrics by name.
func (s *station) scrape() map[string]*dto.MetricFamily {
	s.Helper()
	status, text := s.get("/metrics")
	if status != http.StatusOK {
		s.Fatalf("status %d: %s", status, text)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		s.Fatal(err)
	}
	return families
}

// value is that of a counter or gauge, or the count of a histogram, with these labels, as
// "name=value".
func value(s *station, families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	s.Helper()
	f := families["locksidecar_"+name]
	if f == nil {
		s.Fatalf("there is no metric %s", name)
	}
	for _, m := range f.Metric {
		has := make([]string, 0, len(m.Label))
		for _, l := range m.Label {
			has = append(has, l.GetName()+"="+l.GetValue())
		}
		if strings.Join(has, ",") != strings.Join(labels, ",") {
			continue
		}
		switch {
		case m.Counter != nil:
			return m.Counter.GetValue()
		case m.Gauge != nil:
			return m.Gauge.GetValue()
		case m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount())
		}
	}
	s.Fatalf("%s has no %v: %v", name, labels, f)
	return 0
}

func TestMetricsShowWhatClientsDo(t *testing.T) {
	s := start(t, func(c *sidecar.Config) {
		c.MetricsNames = []string{"invoice:*"}
		c.ExpectedHold = []string{"other=1ns", "*=1h"}
	})
	c := s.client()
	ctx := s.Context()
	held, err := c.Lock(ctx, "invoice:42")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := s.client().TryLock(ctx, "invoice:42"); err == nil {
		t.Fatalf("%v is held twice", other)
	}
	if _, err := c.Lock(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	f := s.scrape()
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"build_info", []string{"commit=abc", "goversion=" + goVersion, "version=1.2.3"}, 1},
		{"settings_info", []string{"hash=0a1b2c3d4e5f"}, 1},
		{"loop_responding", nil, 1}, {"redis_up", nil, 1}, {"sessions", nil, 2}, {"limit", []string{"limit=max_sessions"}, 4096},
		{"limit_used", []string{"limit=max_sessions"}, 2}, {"limit_used", []string{"limit=max_locks"}, 2}, {"limit_used", []string{"limit=max_holds"}, 2},
		{"limit_used", []string{"limit=max_waiters"}, 0}, {"limit_used", []string{"limit=user_locks"}, 0}, {"limit", []string{"limit=user_locks"}, 786_432},
		{"overdue_holds", []string{"names=other"}, 1}, {"overdue_holds", []string{"names=*"}, 0},
		{"holds", nil, 2},
		{"waiters", nil, 0}, {"waiter_oldest_seconds", nil, 0}, {"lease_seconds", nil, 30},
		{"acquires_total", []string{"result=granted"}, 2}, {"acquires_total", []string{"result=timeout"}, 1},
		{"acquire_wait_seconds", nil, 2}, {"hold_seconds", nil, 0}, {"losses_total", []string{"reason=forced"}, 0},
		{"named_holds", []string{"names=invoice:*"}, 1}, {"named_acquires_total", []string{"names=invoice:*", "result=timeout"}, 1},
		{"named_acquire_wait_seconds", []string{"names=invoice:*"}, 1},
	} {
		if got := value(s, f, want.name, want.labels...); got != want.value {
			t.Errorf("%s%v is %v, want %v", want.name, want.labels, got, want.value)
		}
	}
	for _, name := range []string{"redis_roundtrip_seconds", "loop_latency_seconds", "hold_oldest_seconds", "loop_answer_seconds"} {
		if value(s, f, name) <= 0 {
			t.Errorf("%s is 0", name)
		}
	}
	if f["process_open_fds"] == nil || f["go_goroutines"] == nil {
		t.Error("metrics of the process, or of Go, are missing")
	}

	if _, err := c.ForceRelease(ctx, "invoice:42"); err != nil {
		t.Fatal(err)
	}
	<-held.Done()
	f = s.scrape()
	if value(s, f, "losses_total", "reason=forced") != 1 || value(s, f, "named_losses_total", "names=invoice:*", "reason=forced") != 1 || value(s, f, "hold_seconds") != 1 {
		t.Error("the lost hold is not counted")
	}
}

// Over the socket of the daemon comes the same as over the listener, also if it does not fit into
// one frame.
func TestClientReadsAllPagesOfTheMetrics(t *testing.T) {
	s := start(t, func(c *sidecar.Config) {
		for i := range 16 { // as long as they may be
			c.MetricsNames = append(c.MetricsNames, fmt.Sprintf("%063d*", i))
		}
	})
	text, err := s.client().Metrics(s.Context())
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	scraped := s.scrape()
	for name, f := range scraped {
		if len(families[name].GetMetric()) != len(f.Metric) {
			t.Errorf("%s has %d series, and %d over the listener", name, len(families[name].GetMetric()), len(f.Metric))
		}
	}
	if len(text) < 1<<16 || len(families) != len(scraped) {
		t.Errorf("%d bytes, %d metrics; want more than a frame, and %d", len(text), len(families), len(scraped))
	}
}

// The number of time series depends on the settings alone, once Redis is connected.
func TestNoMetricHasTheNameOfALock(t *testing.T) {
	s := start(t, nil)
	c := s.client()
	if _, err := c.Lock(s.Context(), "secret"); err != nil {
		t.Fatal(err)
	}
	before := s.scrape()
	for i := range 20 {
		if _, err := c.Lock(s.Context(), fmt.Sprintf("secret-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, text := s.get("/metrics"); strings.Contains(text, "secret") {
		t.Error("a metric has the name of a lock")
	}
	for name, f := range s.scrape() {
		if strings.HasPrefix(name, "locksidecar_") && len(before[name].GetMetric()) != len(f.Metric) {
			t.Errorf("%s has %d series after 20 locks, and had %d", name, len(f.Metric), len(before[name].GetMetric()))
		}
	}
}

func TestMetricsKeepTheConventionsOfPrometheus(t *testing.T) {
	s := start(t, func(c *sidecar.Config) { c.MetricsNames = []string{"a", "b*"} })
	_, text := s.get("/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestReadinessIsThatOfRedisAndLivenessIsThatOfTheLoop(t *testing.T) {
	s := start(t, nil)
	c := s.client()
	if _, err := c.Lock(s.Context(), "a"); err != nil { // Redis serves
		t.Fatal(err)
	}
	c.Close() // it would wait for a successor
	for _, path := range []string{"/live", "/ready"} {
		if status, body := s.get(path); status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	s.redis.Close()
	s.await(func() bool { return s.server.Redis() != "ok" })
	if status, body := s.get("/ready"); status != http.StatusServiceUnavailable || !strings.Contains(body, "Redis") {
		t.Errorf("ready without Redis: %d %s", status, body)
	}
	if status, body := s.get("/live"); status != http.StatusOK {
		t.Errorf("live without Redis: %d %s", status, body)
	}
	if value(s, s.scrape(), "redis_up") != 0 {
		t.Error("redis_up is 1 without Redis")
	}
	s.stop()
	for _, path := range []string{"/live", "/ready"} {
		if status, body := s.get(path); status != http.StatusServiceUnavailable || body != "the sidecar has stopped\n" {
			t.Errorf("%s without a loop: %d %s", path, status, body)
		}
	}
	f := s.scrape()
	if value(s, f, "loop_responding") != 0 || f["process_open_fds"] == nil || f["locksidecar_holds"] != nil {
		t.Error("metrics without a loop")
	}
}

// Hosts that share locks have the same labels in redis_info. A host that is not connected has none: what
// it knows of Redis may be old.
func TestRedisInfoNamesWhatHostsHaveInCommon(t *testing.T) {
	s := start(t, func(c *sidecar.Config) { c.KeyPrefix = "app1:" })
	if _, err := s.client().Lock(s.Context(), "a"); err != nil { // Redis serves
		t.Fatal(err)
	}
	status, err := s.client().Status(s.Context())
	if err != nil || status.RedisRunID == "" {
		t.Fatalf("run id %q, %v", status.RedisRunID, err)
	}
	if value(s, s.scrape(), "redis_info", "database=0", "key_prefix=app1:", "run_id="+status.RedisRunID) != 1 {
		t.Error("redis_info is not 1")
	}
	s.redis.Close()
	s.await(func() bool { return s.server.Redis() != "ok" })
	if f := s.scrape(); f["locksidecar_redis_info"] != nil {
		t.Errorf("without Redis: %v", f["locksidecar_redis_info"])
	}
}

func TestRefusalsOfThePolicyAreCountedByRule(t *testing.T) {
	s := start(t, func(c *sidecar.Config) {
		c.Policy = []policy.Entry{
			{Name: "closed", Users: []string{fmt.Sprint(os.Geteuid())}, Names: []string{"closed"}, Acquire: "deny"},
			{Name: "few", Users: []string{fmt.Sprint(os.Geteuid())}, Holds: 1},
		}
	})
	c := s.client()
	if _, err := c.Lock(s.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"closed", "b", "c"} {
		if _, err := c.TryLock(s.Context(), name); err == nil {
			t.Errorf("%s was granted", name)
		}
	}
	f := s.scrape()
	for labels, want := range map[[2]string]float64{{"denied", "closed"}: 1, {"limit", "closed"}: 0, {"denied", "few"}: 0, {"limit", "few"}: 2} {
		if got := value(s, f, "policy_refusals_total", "code="+labels[0], "rule="+labels[1]); got != want {
			t.Errorf("%v: %v, want %v", labels, got, want)
		}
	}
	if used, most := value(s, f, "policy_limit_used", "limit=holds", "rule=few"), value(s, f, "policy_limit", "limit=holds", "rule=few"); used != 1 || most != 1 {
		t.Errorf("%v of %v holds are used, want 1 of 1", used, most)
	}
	if n := len(f["locksidecar_policy_refusals_total"].Metric); n != 4 {
		t.Errorf("there are %d series, want two for each rule", n)
	}
	if f := start(t, nil).scrape(); f["locksidecar_policy_refusals_total"] != nil {
		t.Error("there are refusals without a policy")
	}
}

// await waits for something that another goroutine does.
func (s *station) await(done func() bool) {
	s.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(end) {
			s.Fatal("it did not happen in a minute")
		}
	}
}

// A web page that has its own name resolve to 127.0.0.1 reads nothing.
func TestForeignNameOfThisHostIsRefused(t *testing.T) {
	s := start(t, nil)
	for host, isOwn := range map[string]bool{
		"localhost:9377": true, "127.0.0.1:9377": true, "[::1]:9377": true, "localhost": true, "evil.example": false, "localhost.evil.example:80": false,
	} {
		r, err := http.NewRequest(http.MethodGet, "http://localhost/ready", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := s.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if isRefused := answer.StatusCode == http.StatusMisdirectedRequest; isRefused == isOwn {
			t.Errorf("%s: %d", host, answer.StatusCode)
		}
	}
}

// A browser shows the page as it is meant: tests/page. Here is what needs no browser.
func TestPageIsSelfContainedAndEscapesNames(t *testing.T) {
	s := start(t, nil)
	c := s.client()
	for _, name := range []string{`<script>alert("x")</script>`, "\u202egnp"} {
		if _, err := c.Lock(s.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	text := s.checkPage("/")
	if !strings.Contains(text, "&lt;script&gt;alert") || !strings.Contains(text, "?gnp") {
		t.Error(text)
	}
	for path, refreshes := range map[string]bool{"/": true, "/?refresh=no": false, "/lock?name=a": true, "/lock?name=a&refresh=no": false} {
		if _, text := s.get(path); strings.Contains(text, `http-equiv="refresh"`) != refreshes {
			t.Errorf("%s loads itself again: %v", path, !refreshes)
		}
	}
	c.Close() // it would wait for a successor
	s.stop()
	for _, path := range []string{"/", "/lock?name=a"} {
		if status, _ := s.get(path); status != http.StatusServiceUnavailable {
			t.Errorf("%s without a loop: %d", path, status)
		}
	}
}

// checkPage returns a page after it has checked that the page loads nothing else, and runs nothing.
func (s *station) checkPage(path string) string {
	s.Helper()
	r, err := s.http.Get("http://localhost" + path)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Fatal(err)
	}
	text := string(body)
	_, style, _ := strings.Cut(text, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	policy := r.Header.Get("Content-Security-Policy")
	if want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"; policy != want {
		s.Errorf("%s: the policy %q is not that of the style", path, policy)
	}
	if r.StatusCode != http.StatusOK || r.Header.Get("Cache-Control") != "no-store" || r.Header.Get("Referrer-Policy") != "no-referrer" {
		s.Errorf("%s: status %d, headers %v", path, r.StatusCode, r.Header)
	}
	for _, resource := range []string{"url(", "@import", "http:", "https:"} {
		if strings.Contains(text, resource) {
			s.Errorf("%s has %q", path, resource)
		}
	}
	for _, tag := range anyTag.FindAllString(strings.Replace(text, style, "", 1), -1) {
		if !ownTag.MatchString(tag) {
			s.Errorf("%s has the tag %s", path, tag)
		}
	}
	return text
}

var (
	anyTag = regexp.MustCompile(`<[^>]*>?`)
	// ownTag matches the tags of the pages. None of them runs or loads anything; links lead to pages of this listener.
	ownTag = regexp.MustCompile(`^<(!DOCTYPE html|/?(html|head|meta|title|link|style|body|header|nav|main|footer|section|div|h1|h2|p|a|time|dl|dt|dd|figure|figcaption|strong|span|svg|line|polygon|polyline|table|caption|thead|tbody|tr|th|td|code|ol|li|br)` +
		`( (lang|charset|name|content|http-equiv|rel|class|role|aria-[a-z]+|data-label|id|tabindex|scope|colspan|viewBox|preserveAspectRatio|points|x1|x2|y1|y2)="[^"<>]*"| href="(lock\?name=[^"<> ]*|\./|\?(refresh=no)?|metrics|live|ready|data:,|#[a-z]+)")*/?)>$`)
)

// A process chooses the names of its locks. In the page of such a lock, a name is a text in each
// place: in the title, in texts and in links.
func TestPageOfALockEscapesItsName(t *testing.T) {
	s := start(t, nil)
	c := s.client()
	for _, name := range []string{
		`</title><script>alert(1)</script>`, `"><img src=x>`, `' onclick='alert(1)`, `javascript:alert(1)`, `{{.Host}}<b>`, "a&refresh=no&name=b",
		"a b+c%20d#e?f/../g", `</style><script>`, "大小 ünï", "\u202egnp",
	} {
		l, err := c.Lock(s.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		path := "/lock?name=" + url.QueryEscape(name)
		text := s.checkPage(path)
		printable := strings.ReplaceAll(name, "\u202e", "?")
		if want := "<h1>Lock " + printable + "</h1>"; !strings.Contains(html.UnescapeString(text), want) || !strings.Contains(text, "A process of this host holds it.") || !strings.Contains(text, fmt.Sprint(l.Token())) {
			t.Errorf("%q: the page has no %q:\n%s", name, want, text)
		}
		// The link of the status page leads to this page, and to no other one.
		_, all := s.get("/")
		found := false
		for _, part := range strings.Split(all, `<a href="lock?`)[1:] {
			query, _, _ := strings.Cut(part, `"`)
			v, err := url.ParseQuery(html.UnescapeString(query))
			if err != nil || len(v) != 1 {
				t.Errorf("%q: the link %q has %v, %v", name, query, v, err)
			}
			found = found || v.Get("name") == name
		}
		if !found {
			t.Errorf("no link of the status page has the name %q", name)
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]int{"/lock": http.StatusBadRequest, "/lock?name=": http.StatusBadRequest, "/lock?name=%1b%5b2J": http.StatusBadRequest, "/lock?name=%ff": http.StatusBadRequest, "/lock?name=" + strings.Repeat("x", 2000): http.StatusBadRequest, "/lock/": http.StatusNotFound} {
		if status, text := s.get(path); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// The page of a lock has its holder, its waiters in order, and what happened to it, but not to others.
func TestPageOfALockShowsHolderWaitersAndHistory(t *testing.T) {
	s := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := s.client().Lock(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	if text := s.checkPage("/lock?name=invoice"); !strings.Contains(text, "No process of this host holds it or waits for it.") || !strings.Contains(text, "None. Grants after") {
		t.Errorf("of a free lock: %s", text)
	}
	holder := s.client()
	held, err := holder.Lock(ctx, "invoice")
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for range 20 {
		c := s.client()
		waiting.Go(func() {
			if l, err := c.Lock(ctx, "invoice"); err == nil {
				<-ctx.Done()
				_ = l.Unlock()
			}
		})
	}
	s.await(func() bool {
		_, text := s.get("/lock?name=invoice")
		return strings.Contains(text, "4 more wait after them.")
	})
	if text := s.checkPage("/lock?name=invoice"); strings.Count(text, `<li class="waiter">`) != 16 || !strings.Contains(text, "Waiters of this host: 20, in the order in which they get the lock.") {
		t.Errorf("while 20 wait: %s", text)
	}
	if _, err := holder.ForceRelease(ctx, "invoice"); err != nil {
		t.Fatal(err)
	}
	<-held.Done()
	if text := s.checkPage("/"); !strings.Contains(text, `<a href="lock?name=invoice#queue">`) {
		t.Errorf("the status page has no link to the queue: %s", text)
	}
	for _, path := range []string{"/lock?name=invoice", "/"} {
		text := s.checkPage(path)
		if !strings.Contains(text, "forced: a client ended it by force; held for ") || strings.Contains(text, `name=other">other</a></td>`) {
			t.Errorf("%s: %s", path, text)
		}
	}
	if _, text := s.get("/lock?name=other"); strings.Contains(text, "by force") {
		t.Errorf("the page of another lock has the loss: %s", text)
	}
}

// What is wrong comes first, in one sentence. After it come the locks, those with waiters first, and the events.
func TestPageBeginsWithTheVerdictTheLocksAndTheEvents(t *testing.T) {
	s := start(t, nil)
	s.ready()
	c := s.client()
	if _, text := s.get("/"); !strings.Contains(text, `<p class="verdict" role="status">Clients can lock.</p>`) || !strings.Contains(text, "None since the start of the daemon.") {
		t.Errorf("without a loss: %s", text)
	}
	for _, name := range []string{"a-lost", "b-held", "c-waited"} {
		l, err := c.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "a-lost" {
			if _, err := c.ForceRelease(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			<-l.Done()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	other := s.client()
	waiting.Go(func() { _, _ = other.Lock(ctx, "c-waited") })
	var text string
	s.await(func() bool {
		_, text = s.get("/")
		return strings.Contains(text, `<tr class="waiter">`)
	})
	last := 0
	for _, part := range []string{
		`<p class="verdict" role="status">Clients can lock.</p>`, // the loss was by force
		`id="lock-table"`, `<a href="lock?name=c-waited">c-waited</a></th>`, `<a href="lock?name=b-held">b-held</a></th>`,
		`id="event-table"`, `<a href="lock?name=a-lost">a-lost</a></td>`, "<svg", `id="loss-table"`,
	} {
		at := strings.Index(text, part)
		if at < last {
			t.Fatalf("%s is at %d, and what is before it at %d: %s", part, at, last, text)
		}
		last = at
	}
	if _, head, _ := strings.Cut(text, "<main>"); !strings.HasPrefix(strings.TrimSpace(head), `<p class="verdict`) {
		t.Errorf("the page does not begin with the verdict: %s", text)
	}
}

// One outage ends many holds. They are one row, and leave room for what else happened.
func TestPageFoldsRepeatedEvents(t *testing.T) {
	s := start(t, nil)
	c := s.client()
	for i := range 30 {
		name := fmt.Sprintf("job-%d", i%15)
		l, err := c.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.ForceRelease(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
	}
	_, text := s.get("/")
	_, table, _ := strings.Cut(text, `id="event-table"`)
	table, _, _ = strings.Cut(table, "</table>")
	if n := strings.Count(table, `<tr class="lost">`); n != 1 {
		t.Errorf("%d rows of losses: %s", n, table)
	}
	if want := `data-label="Times">30</td><td class="cmd" data-label="Lock"><a href="lock?name=job-14">job-14</a> and 14 more</td>`; !strings.Contains(table, want) {
		t.Errorf("there is no %s: %s", want, table)
	}
	if _, text := s.get("/lock?name=job-14"); strings.Count(text, `<tr class="lost">`) != 2 {
		t.Errorf("the page of a lock does not have each event: %s", text)
	}
}

// Names of locks, and commands, are for this host.
func TestPageIsNotServedToOtherHosts(t *testing.T) {
	s := start(t, func(c *sidecar.Config) { c.Metrics = "0.0.0.0:0" })
	for _, path := range []string{"/", "/lock?name=a"} {
		if status, _ := s.get(path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
	if status, _ := s.get("/metrics"); status != http.StatusOK {
		t.Errorf("the metrics: %d", status)
	}
}

func TestPageSaysHowManyLocksItLeavesOut(t *testing.T) {
	s := start(t, nil)
	c := s.client()
	for i := range 60 {
		if _, err := c.Lock(s.Context(), fmt.Sprintf("lock-%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	_, text := s.get("/")
	if n := strings.Count(text, `<tr class="lock">`); n != 50 || !strings.Contains(text, "10 more, with fewer waiters and younger holds") {
		t.Errorf("the page has %d locks: %s", n, text)
	}
}

func TestPageSaysThatARemoteLockHasNoExpiry(t *testing.T) {
	s := start(t, nil)
	options, err := redis.ParseURL(s.redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	other := redis.NewClient(options)
	t.Cleanup(func() { other.Close() })
	if err := other.HSet(t.Context(), "eternal", "foreign:1", 1).Err(); err != nil {
		t.Fatal(err)
	}
	c := s.client()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Lock(ctx, "eternal")
		waiting <- err
	}()
	var row string
	s.await(func() bool {
		_, text := s.get("/")
		_, row, _ = strings.Cut(text, `<a href="lock?name=eternal">eternal</a></th>`)
		row, _, _ = strings.Cut(row, "</tr>")
		return strings.Contains(row, "held elsewhere: foreign:1")
	})
	if !strings.HasPrefix(row, `<td data-label="State">remote</td>`) || !strings.Contains(row, `data-label="Left">no expiry</td>`) {
		t.Errorf("the row of the lock has %s", row)
	}
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ended with %v", err)
	}
}

func TestMonitorIsReadOnly(t *testing.T) {
	s := start(t, nil)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		for _, path := range []string{"/", "/lock?name=a", "/metrics", "/ready"} {
			r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := s.http.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusMethodNotAllowed && answer.StatusCode != http.StatusNotFound {
				t.Errorf("%s %s: %d", method, path, answer.StatusCode)
			}
		}
	}
}

// slowForms are what a reader does that takes a place and gives nothing for it.
var slowForms = map[string]func(net.Conn){
	"sends nothing":       func(net.Conn) {},
	"sends half a header": func(c net.Conn) { _, _ = io.WriteString(c, "GET /metrics HT") },
	"sends half a body": func(c net.Conn) {
		_, _ = io.WriteString(c, "GET /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nx")
	},
	"reads no answer": func(c net.Conn) { _, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") },
	"asks on, and reads no answer": func(c net.Conn) {
		_ = c.(interface{ SetReadBuffer(int) error }).SetReadBuffer(1)
		requests := strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 100)
		for {
			if _, err := io.WriteString(c, requests); err != nil {
				return
			}
		}
	},
}

// Connections that send nothing, or read nothing, keep no reader out and nothing from the loop,
// however many there are.
func TestSlowReadersKeepNoOtherReaderOut(t *testing.T) {
	for form, act := range slowForms {
		for _, n := range harness.Pick([]int{64}, []int{24, 100, 1000}) { // maxConns is 32
			for network, at := range map[string]string{"tcp": "127.0.0.1:0", "unix": ""} {
				t.Run(fmt.Sprintf("%d on %s: %s", n, network, form), func(t *testing.T) {
					s := start(t, func(c *sidecar.Config) {
						if at != "" {
							c.Metrics = at
						}
					})
					s.ready()
					var acting sync.WaitGroup
					defer acting.Wait()
					for range n {
						c, err := s.dial()
						if err != nil {
							t.Fatal(err)
						}
						defer c.Close()
						acting.Go(func() { act(c) })
					}
					s.getAll()
				})
			}
		}
	}
}

// A reader that connects again as soon as its connection is closed, or that asks again and again,
// keeps no reader out either.
func TestReadersThatConnectAgainKeepNoOtherReaderOut(t *testing.T) {
	forms := map[string]func(net.Conn){
		"asks on, and reads": func(c net.Conn) {
			go io.Copy(io.Discard, c)
			slowForms["asks on, and reads no answer"](c)
		},
	}
	maps.Copy(forms, slowForms)
	for form, act := range forms {
		t.Run(form, func(t *testing.T) {
			s := start(t, func(c *sidecar.Config) { c.Metrics = "127.0.0.1:0" })
			s.ready()
			ctx, stop := context.WithCancel(t.Context())
			var attackers, connected sync.WaitGroup
			for range 64 {
				connected.Add(1)
				attackers.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						c, err := s.dial()
						if i == 0 {
							connected.Done()
						}
						if err != nil {
							continue
						}
						end := context.AfterFunc(ctx, func() { c.Close() })
						act(c)
						_, _ = io.Copy(io.Discard, c)
						end()
						c.Close()
					}
				})
			}
			connected.Wait()
			// This process may be too busy to send a request in the time that a connection has.
			s.http.Transport.(*http.Transport).DisableKeepAlives = true
			for _, path := range []string{"/live", "/ready", "/metrics", "/"} {
				s.await(func() bool {
					r, err := s.http.Get("http://localhost" + path)
					if err != nil {
						return false
					}
					defer r.Body.Close()
					_, err = io.Copy(io.Discard, r.Body)
					return err == nil && r.StatusCode == http.StatusOK
				})
			}
			s.ready()
			stop()
			attackers.Wait()
		})
	}
}

// ready waits until Redis serves.
func (s *station) ready() {
	s.Helper()
	c := s.client()
	l, err := c.Lock(s.Context(), "a")
	if err != nil {
		s.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		s.Fatal(err)
	}
}

// getAll asks for each page over a connection of its own, and checks that the loop serves clients.
func (s *station) getAll() {
	s.Helper()
	s.http.Transport.(*http.Transport).DisableKeepAlives = true
	for _, path := range []string{"/live", "/ready", "/metrics", "/"} {
		if status, text := s.get(path); status != http.StatusOK {
			s.Errorf("%s: %d %s", path, status, text)
		}
	}
	s.ready()
}

// The page has the names of hosts: that of the settings, and those of the sidecars elsewhere.
func TestPageNamesHosts(t *testing.T) {
	const uuid = "1f0c9d5e-0000-8000-8000-000000000001"
	s := start(t, func(c *sidecar.Config) { c.HostName = "web-1" })
	options, err := redis.ParseURL(s.redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	other := redis.NewClient(options)
	t.Cleanup(func() { other.Close() })
	if err := other.HSet(t.Context(), "a", uuid+":1", 1).Err(); err != nil {
		t.Fatal(err)
	}
	if err := other.HSet(t.Context(), "locksidecar_host:{"+uuid+"}", "about", `{"host":"db-7"}`).Err(); err != nil {
		t.Fatal(err)
	}
	c := s.client()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Lock(ctx, "a")
		waiting <- err
	}()
	s.await(func() bool {
		_, text := s.get("/")
		return strings.Contains(text, "web-1 (this host)") && strings.Contains(text, "held on host db-7: "+uuid+":1") && strings.Contains(text, "db-7 ("+uuid+")")
	})
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ended with %v", err)
	}
}
