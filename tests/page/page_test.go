package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// startBrowser returns a browser, which ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		if os.Getenv("LOCKSIDECAR_REQUIRE_CHROMIUM") != "" {
			t.Fatal("chromium is not installed: apt-get install chromium")
		}
		t.Skip("chromium is not installed: apt-get install chromium")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.WindowSize(1280, 1600))
	allocated, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(end)
	tab, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(closeTab)
	b := &browser{T: t, tab: tab}
	if err := chromedp.Listen(tab, b.note); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(tab, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(tab, cdpruntime.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// browser is one tab, with what it has requested and what it has reported to its console.
type browser struct {
	*testing.T
	tab context.Context

	mu       sync.Mutex // guards what follows
	requests []string
	reports  []string
}

// actionTimeout bounds what a test waits for in the browser.
const actionTimeout = time.Minute

// do has the browser do something.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.tab, actionTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.Fatal(err)
	}
}

// get returns what the browser finds.
func get[T any](b *browser, find chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.tab, actionTimeout)
	defer cancel()
	v, err := chromedp.Run(ctx, find)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// eval returns the value of an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.Helper()
	return get(b, chromedp.Evaluate[T](expression))
}

// countRole returns how many nodes of the accessibility tree have a role.
func (b *browser) countRole(role string) int {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.tab, actionTimeout)
	defer cancel()
	tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for _, node := range tree.Nodes {
		if node.Role != nil && string(node.Role.Value) == strconv.Quote(role) {
			n++
		}
	}
	return n
}

func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, "data:") {
			b.requests = append(b.requests, e.Request.URL)
		}
	case *cdpruntime.EventConsoleAPICalled:
		b.reports = append(b.reports, string(e.Type))
	case *cdpruntime.EventExceptionThrown:
		b.reports = append(b.reports, e.ExceptionDetails.Text)
	}
}

// startDaemon returns a daemon and the address of its status page.
func startDaemon(t *testing.T) (*harness.Daemon, string) {
	t.Helper()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--metrics", "127.0.0.1:0")
	d.Log.AwaitWords(t, "serving metrics", "address=")
	address := regexp.MustCompile(`address=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.Log.String())
	if address == nil {
		t.Fatal(d.Log.String())
	}
	return d, "http://" + address[1] + "/"
}

// row is a row of the table of locks, by its column.
type row struct {
	kind  string // lock or waiter
	cells []string
}

// rows returns the rows of a table.
func (b *browser) rows(table string) []row {
	b.Helper()
	all := eval[[][]string](b, `[...document.querySelectorAll("#`+table+` tbody tr")].map(r => [r.className, ...[...r.cells].map(c => c.innerText.trim())])`)
	list := make([]row, len(all))
	for i, cells := range all {
		list[i] = row{cells[0], cells[1:]}
	}
	return list
}

// open opens a page. On a busy host, the daemon may answer that its loop did not answer in time: then again.
func (b *browser) open(url string, before ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	b.mu.Lock()
	requests, reports := len(b.requests), len(b.reports)
	b.mu.Unlock()
	harness.Eventually(b.T, "the page of a daemon that answers", func() bool {
		b.mu.Lock()
		b.requests, b.reports = b.requests[:requests], b.reports[:reports]
		b.mu.Unlock()
		b.do(append(before, chromedp.Navigate(url))...)
		return !strings.Contains(eval[string](b, `document.body.innerText`), "the daemon does not answer")
	})
}

// listed is a lock as ls --json has it.
type listed struct {
	Name, State, User, Cmd string
	PID                    int64
	Token                  uint64
	Waiting                int
	HeldMS                 int64 `json:"held_ms"`
	Waiters                []struct {
		PID       int64
		User, Cmd string
		WaitedMS  int64 `json:"waited_ms"`
	}
}

func ls(t *testing.T, d *harness.Daemon) []listed {
	t.Helper()
	out := d.Run("ls", "--json")
	var locks []listed
	if err := json.Unmarshal([]byte(out.Stdout), &locks); err != nil || out.Code != 0 {
		t.Fatalf("%d, %v: %s", out.Code, err, out.Stderr)
	}
	return locks
}

// spaces makes a text what a browser shows of it.
func spaces(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestPageShowsWhatLsPrints(t *testing.T) {
	b := startBrowser(t)
	d, url := startDaemon(t)
	const hostile = `x<img src="http://192.0.2.1/a"><script>alert(1)</script>`
	holder := harness.Dial(t, d)
	for _, name := range []string{"invoice:42", "leader", hostile} {
		if _, err := holder.Lock(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	waiting, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	defer waiters.Wait()
	defer cancel()
	for n, name := range []string{"invoice:42", "invoice:42", "leader"} {
		client := harness.Dial(t, d)
		waiters.Go(func() { _, _ = client.Lock(waiting, name) })
		harness.Eventually(t, "the client waits", func() bool {
			all := 0
			for _, l := range ls(t, d) {
				all += l.Waiting
			}
			return all == n+1
		})
	}
	lost, err := holder.Lock(t.Context(), "lost")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.ForceRelease(t.Context(), "lost"); err != nil {
		t.Fatal(err)
	}
	<-lost.Done()
	harness.Eventually(t, "the lock is forgotten", func() bool { return len(ls(t, d)) == 3 })

	locks := ls(t, d)
	b.open(url + "?refresh=no")
	saveScreenshot(t, "page.png", get(b, chromedp.FullScreenshot(100)))

	shown := b.rows("lock-table")
	at := 0
	next := func(kind string) []string {
		t.Helper()
		if at == len(shown) || shown[at].kind != kind || len(shown[at].cells) != 9 {
			t.Fatalf("row %d is no %s: %+v", at, kind, shown)
		}
		at++
		return shown[at-1].cells
	}
	slices.SortFunc(locks, func(a, b listed) int { return b.Waiting - a.Waiting })
	for _, l := range locks {
		cells := next("lock")
		want := []string{l.Name, l.State, strconv.Itoa(l.Waiting), strconv.FormatInt(l.PID, 10), l.User, strconv.FormatUint(l.Token, 10), spaces(l.Cmd)}
		got := []string{cells[0], cells[1], cells[2], cells[3], cells[4], cells[7], spaces(cells[8])}
		if !slices.Equal(got, want) {
			t.Errorf("the page has %q, ls has %q", got, want)
		}
		if held := seconds(t, cells[5]); held < time.Duration(l.HeldMS)*time.Millisecond-100*time.Millisecond {
			t.Errorf("%s is held for %v, and was for %d ms before", l.Name, held, l.HeldMS)
		}
		for _, w := range l.Waiters {
			cells := next("waiter")
			if cells[3] != strconv.FormatInt(w.PID, 10) || cells[4] != w.User || spaces(cells[8]) != spaces(w.Cmd) || seconds(t, cells[5]) < time.Duration(w.WaitedMS)*time.Millisecond-100*time.Millisecond {
				t.Errorf("the page has the waiter %q, ls has %+v", cells, w)
			}
		}
	}
	if at != len(shown) {
		t.Errorf("the page has %d rows more than ls", len(shown)-at)
	}
	forced := false
	for _, r := range b.rows("loss-table") {
		forced = forced || r.cells[0] == "forced" && r.cells[2] == "1"
	}
	if !forced {
		t.Error("the page does not have the loss")
	}
	if hosts := b.rows("host-table"); len(hosts) != 1 || hosts[0].cells[1] != "3" {
		t.Errorf("hosts: %+v", hosts)
	}
	// What needs attention needs no scrolling on a usual screen. How high the table is depends on the command of the
	// clients: the one of this test.
	b.do(chromedp.EmulateViewport(1280, 800))
	for _, part := range []string{".verdict", "#lock-table tbody tr"} {
		if bottom := eval[float64](b, `document.querySelector("`+part+`").getBoundingClientRect().bottom`); bottom > 800 {
			t.Errorf("%s ends %v pixels below the top", part, bottom)
		}
	}
	verdict := eval[string](b, `document.querySelector(".verdict").innerText`)
	picture := eval[string](b, `document.querySelector("svg[aria-label^=Waiters]").getAttribute("aria-label")`)
	if verdict != "Clients can lock." || !strings.Contains(picture, "now 3, at most 3") {
		t.Errorf("%q, %q", verdict, picture)
	}
	if n := eval[int](b, `document.scripts.length + document.images.length`); n != 0 {
		t.Errorf("the page has %d scripts and images", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.requests, []string{url + "?refresh=no"}) || len(b.reports) > 0 {
		t.Errorf("the browser requested %q and reported %q", b.requests, b.reports)
	}
}

// seconds reads a time as the page shows it.
func seconds(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// saveScreenshot checks that a picture shows something, and keeps it if the environment names a
// directory for it.
func saveScreenshot(t *testing.T, name string, shot []byte) {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	colors := make(map[[3]uint32]bool)
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y += 2 {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x += 2 {
			r, g, b, _ := picture.At(x, y).RGBA()
			colors[[3]uint32{r, g, b}] = true
		}
	}
	if len(colors) < 10 {
		t.Errorf("%s has %d colours: the style is not used", name, len(colors))
	}
	if dir := os.Getenv("LOCKSIDECAR_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), shot, 0o600); err != nil {
			t.Error(err)
		}
	}
}

// A link leads from a lock to its page, whatever its name is, and back.
func TestPageOfALockIsFoundByALink(t *testing.T) {
	b := startBrowser(t)
	d, url := startDaemon(t)
	const name = `a&b=c"'<img src=x>#?%20+é/..`
	holder := harness.Dial(t, d)
	for round := range 2 {
		l, err := holder.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			if _, err := holder.ForceRelease(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			<-l.Done()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	client := harness.Dial(t, d)
	waiting.Go(func() { _, _ = client.Lock(ctx, name) })
	harness.Eventually(t, "the client waits", func() bool { return harness.Waiters(t, d, name) == 1 })

	b.open(url + "?refresh=no")
	b.open(eval[string](b, `document.querySelector("#lock-table a").href`) + "&refresh=no")
	saveScreenshot(t, "lock.png", get(b, chromedp.FullScreenshot(100)))
	if title := eval[string](b, `document.querySelector("h1").innerText`); title != "Lock "+name {
		t.Errorf("the page is of %q", title)
	}
	text := eval[string](b, `document.querySelector("main").innerText`)
	harness.CheckContains(t, text, "A process of this host holds it.", "the daemon renews it", "Waiters of this host: 1, in the order in which they get the lock.", "forced: a client ended it by force")
	if n := eval[int](b, `document.scripts.length + document.images.length`); n != 0 {
		t.Errorf("the page has %d scripts and images", n)
	}
	if back := eval[string](b, `document.querySelector("header a").href`); back != url {
		t.Errorf("the page leads back to %q", back)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) != 2 || len(b.reports) > 0 {
		t.Errorf("the browser requested %q and reported %q", b.requests, b.reports)
	}
}

// Everything that can be activated or scrolled is reached with the Tab key, and shows that it is.
func TestPageCanBeReadWithoutAMouse(t *testing.T) {
	b := startBrowser(t)
	d, url := startDaemon(t)
	if _, err := harness.Dial(t, d).Lock(t.Context(), "invoice:42"); err != nil {
		t.Fatal(err)
	}
	b.open(url + "?refresh=no")
	var reached []string
	for range 14 {
		b.do(chromedp.KeyEvent(kb.Tab))
		name := eval[string](b, `document.activeElement.getAttribute("aria-labelledby") || document.activeElement.textContent`)
		if width := eval[float64](b, `parseFloat(getComputedStyle(document.activeElement).outlineWidth)`); width < 2 {
			t.Errorf("%q does not show that it has the focus", name)
		}
		reached = append(reached, name)
	}
	if want := []string{"Load again each 5 s", "Locks", "Events", "Last hour", "Lost locks", "Now", "Hosts", "locks", "invoice:42", "events", "hosts", "Metrics", "live", "ready"}; !slices.Equal(reached, want) {
		t.Errorf("the Tab key reaches %q, want %q", reached, want)
	}
	// Enter follows a link: the page then loads itself again, and can be told to stop that.
	b.open(url + "?refresh=no")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	harness.Eventually(t, "the page loads itself again, and says how to stop that", func() bool {
		content := eval[string](b, `(document.querySelector("meta[http-equiv=refresh]") || {content: ""}).content`)
		return content == "5" && eval[string](b, `(document.querySelector("header a") || {innerText: ""}).innerText`) == "Stop that"
	})
}

// The page of a lock draws what has it, and after it those that wait, in order.
func TestPageOfALockDrawsItsQueue(t *testing.T) {
	b := startBrowser(t)
	d, url := startDaemon(t)
	const name = "invoice:42"
	holder := harness.StartRun(t, d, name, "echo held; cat")
	holder.AwaitOutput("held")
	var waiters []*harness.RunProcess
	for n := range 5 {
		waiters = append(waiters, harness.StartRun(t, d, name, "cat"))
		harness.Eventually(t, "the client waits", func() bool { return harness.Waiters(t, d, name) == n+1 })
	}
	for _, width := range []int64{1280, 390} {
		b.open(url+"lock?refresh=no&name="+name, chromedp.EmulateViewport(width, 800))
		saveScreenshot(t, "queue-"+strconv.FormatInt(width, 10)+".png", get(b, chromedp.FullScreenshot(100)))
		texts := eval[[]string](b, `[...document.querySelectorAll(".queue li")].map(e => e.innerText)`)
		if len(texts) != 1+len(waiters) {
			t.Fatalf("the queue has the places %q", texts)
		}
		for i, text := range texts {
			label, r := "has it", holder
			if i > 0 {
				label, r = strconv.Itoa(i), waiters[i-1]
			}
			if !strings.HasPrefix(text, label+" pid "+strconv.Itoa(r.PID())+" of ") || !strings.Contains(text, "locksidecar run -- sh -c") {
				t.Errorf("place %d is %q, want %q and pid %d", i, text, label, r.PID())
			}
		}
		// One place is drawn after the other, as a text is read.
		boxes := eval[[][4]float64](b, `[...document.querySelectorAll(".queue li")].map(e => e.getBoundingClientRect()).map(r => [r.left, r.top, r.right, r.bottom])`)
		for i := 1; i < len(boxes); i++ {
			if before, box := boxes[i-1], boxes[i]; box[0] < before[2] && box[1] < before[3] { // neither right of it nor below it
				t.Errorf("%d pixels wide: place %d is drawn at %v, and the one before at %v", width, i, box, before)
			}
		}
		if left := eval[float64](b, `Math.min(...[...document.querySelectorAll(".queue li + li")].map(e => e.getBoundingClientRect().left + parseFloat(getComputedStyle(e, "::before").left)))`); left < 0 {
			t.Errorf("an arrow begins %v pixels left of the window", -left)
		}
		if border := eval[[]string](b, `[...document.querySelectorAll(".queue li")].map(e => getComputedStyle(e).borderTopWidth)`); border[0] == border[1] {
			t.Errorf("the holder is drawn like a waiter: %q", border)
		}
	}
}

// Below 40 rem the cells of a row are stacked. Nothing is wider than the window, however long names and commands are.
func TestNothingIsWiderThanANarrowWindow(t *testing.T) {
	b := startBrowser(t)
	d, url := startDaemon(t)
	long := strings.Repeat("n", protocol.MaxName)
	script := "echo held; cat # " + strings.Repeat("c", 2*protocol.MaxCmd)
	lost := harness.StartRun(t, d, long, script)
	lost.AwaitOutput("held")
	if out := d.Run("force-release", long); out.Code != 0 {
		t.Fatal(out.Stderr)
	}
	harness.StartRun(t, d, long, script).AwaitOutput("held")
	for n := range 5 {
		harness.StartRun(t, d, long, script)
		harness.Eventually(t, "the client waits", func() bool { return harness.Waiters(t, d, long) == n+1 })
	}
	if _, err := chromedp.Call(b.tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
	}); err != nil {
		t.Fatal(err)
	}
	const (
		wide    = `[...document.querySelectorAll("body *")].filter(e => !e.closest("thead") && e.getBoundingClientRect().right > innerWidth + 1 || e.matches(".wide") && e.scrollWidth > e.clientWidth).map(e => e.outerHTML.slice(0, 200))`
		stacked = `[...document.querySelectorAll("tbody tr")].map(r => [...r.cells].filter(c => c.offsetHeight).map(c => c.getBoundingClientRect())).every(cells => cells.every((c, i) => i == 0 || c.top >= cells[i-1].bottom - 1))`
	)
	for name, path := range map[string]string{"page": "?refresh=no", "lock": "lock?refresh=no&name=" + long} {
		for _, width := range []int64{320, 390, 640} {
			b.open(url+path, chromedp.EmulateViewport(width, 844))
			saveScreenshot(t, fmt.Sprintf("dark-%s-%d.png", name, width), get(b, chromedp.FullScreenshot(100)))
			if sizes := eval[[]int](b, `[document.documentElement.scrollWidth, innerWidth]`); sizes[0] > sizes[1] || sizes[1] != int(width) {
				t.Errorf("%s: the page is %d pixels wide in a window of %d", name, sizes[0], sizes[1])
			}
			if is := eval[[]string](b, wide); len(is) > 0 {
				t.Errorf("%s: wider than a window of %d pixels: %q", name, width, is)
			}
			if !eval[bool](b, stacked) {
				t.Errorf("%s: the cells of a row are not below each other in a window of %d pixels", name, width)
			}
			if is := eval[[]string](b, `[...document.querySelectorAll("td[data-label]")].filter(c => c.offsetHeight && (c.offsetHeight < parseFloat(getComputedStyle(c, "::before").height) || parseFloat(getComputedStyle(c).paddingLeft) < parseFloat(getComputedStyle(c, "::before").width))).map(c => c.dataset.label)`); len(is) > 0 {
				t.Errorf("%s: labels that are drawn over another text in a window of %d pixels: %q", name, width, is)
			}
			// A screen reader still finds tables with rows and cells.
			for _, role := range []string{"table", "row", "cell"} {
				if n := b.countRole(role); name == "page" && n < 4 {
					t.Errorf("%d nodes have the role %s in a window of %d pixels", n, role, width)
				}
			}
			if bottom := eval[float64](b, `document.querySelector(".verdict").getBoundingClientRect().bottom`); name == "page" && bottom > 844/2 {
				t.Errorf("the verdict ends %v pixels below the top", bottom)
			}
		}
		b.do(chromedp.EmulateViewport(641, 844))
		if eval[bool](b, stacked) {
			t.Errorf("%s: rows are stacked in a window of 641 pixels", name)
		}
	}
	if color := eval[string](b, `getComputedStyle(document.body).backgroundColor`); color != "rgb(13, 17, 23)" {
		t.Errorf("the background of the dark page is %s", color)
	}
}

// Without Redis, the page says why clients cannot lock.
func TestPageSaysWhatIsWrong(t *testing.T) {
	b := startBrowser(t)
	redis := harness.StartRedis(t)
	d := harness.StartDaemon(t, redis.UnixURL(), "--metrics", "127.0.0.1:0")
	d.Log.AwaitWords(t, "serving metrics", "address=")
	url := "http://" + regexp.MustCompile(`address=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.Log.String())[1] + "/"
	redis.Stop()
	d.Log.AwaitWords(t, "redis is down")
	b.open(url + "?refresh=no")
	title := get(b, chromedp.Title())
	verdict := eval[string](b, `document.querySelector(".verdict").innerText`)
	saveScreenshot(t, "not-well.png", get(b, chromedp.FullScreenshot(100)))
	if !strings.HasPrefix(title, "Not well") || !strings.HasPrefix(verdict, "Not well: ") || !strings.Contains(verdict, "Redis") {
		t.Errorf("title %q, verdict %q", title, verdict)
	}
}
