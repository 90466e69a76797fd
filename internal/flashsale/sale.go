// Package flashsale shows why programs need locks, and what this one does for them: many
// processes sell one stock, first without the lock and then with it; then the holder of
// the lock is killed, and then the sidecar.
package flashsale

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
)

// Config is how a sale is held.
type Config struct {
	Stock     int           // units for sale in each part; at least 1
	Tills     int           // processes that sell; at least 2
	Pay       time.Duration // how long a customer takes to pay; 0 or more
	InProcess bool          // use the Redis inside this program even if redis-server is installed

	// Command lines of the processes: a sidecar, which gets --socket as a further
	// argument, and a till in Go, which calls RunTill.
	Sidecar, Till []string
}

// Run holds the sale, and prints what happens. The error says what was not as promised, or
// why the sale could not be held.
func Run(ctx context.Context, cfg Config, out *os.File) error {
	s := &sale{Config: cfg, screen: newScreen(out)}
	defer s.close()
	if err := s.open(ctx); err != nil {
		return err
	}
	return s.run(ctx)
}

// stockKey is the stock in Redis, and the name of the lock around it.
const stockKey = "flashsale"

// stockValueKey holds the number: the lock's own key is a hash.
const stockValueKey = stockKey + ":stock"

// A sale is everything that runs during the demo.
type sale struct {
	Config
	screen *screen

	redis   *embedded.Redis
	stats   *redis.Client // the demo's own connection to it
	dir     string
	sidecar *process
	tills   []*till
	reports chan tillReport
}

// open starts Redis, the sidecar and the tills, and says what there is.
func (f *sale) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()

	var opts []embedded.Option
	if f.InProcess {
		opts = append(opts, embedded.InProcess())
	}
	var err error
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if f.redis, err = embedded.Start(ctx, log, opts...); err != nil {
		return err
	}
	if f.stats, err = stockClient(f.redis.URL()); err != nil {
		return err
	}
	if f.dir, err = os.MkdirTemp("", "locksidecar-demo-"); err != nil {
		return err
	}
	if err := f.startSidecar(ctx); err != nil {
		return err
	}

	python, noPython := findPython(ctx)
	setup := tillSetup{Redis: f.redis.URL(), Socket: f.socket(), Lock: stockKey, Stock: stockValueKey, Work: f.Pay}
	// Large enough that a till never waits for the demo to read.
	f.reports = make(chan tillReport, 4096)
	langs := map[string]int{}
	for i := range f.Tills {
		lang, cmd := "Go", (*exec.Cmd)(nil)
		if i%2 == 1 && python != "" {
			lang, cmd = "Python", pythonTillCommand(python)
		} else {
			cmd = exec.Command(f.Till[0], f.Till[1:]...)
		}
		t, err := startTill(lang, cmd, setup, f.reports)
		if err != nil {
			return err
		}
		f.tills = append(f.tills, t)
		langs[lang]++
	}
	for range f.tills {
		select {
		case r := <-f.reports:
			if r.Kind != "ready" {
				return r.trouble()
			}
		case <-ctx.Done():
			return fmt.Errorf("the tills did not get ready: %w", context.Cause(ctx))
		}
	}

	s := f.screen
	s.say("\n  %s\n", s.paint(bold, "locksidecar demo: the flash sale"))
	who := fmt.Sprintf("%d in Go and %d in Python", langs["Go"], langs["Python"])
	if langs["Python"] == 0 {
		who = "all in Go"
	}
	s.say("  %s units are for sale at %d tills, each a process of its own, %s.", thousands(f.Stock), f.Tills, who)
	s.say("  A till sells a unit in three steps, and knows nothing of the others:\n")
	s.say("      %s  →  %s  →  %s\n", s.paint(cyan, "n = GET stock"),
		s.paint(cyan, fmt.Sprintf("the customer pays (%v)", f.Pay)), s.paint(cyan, "SET stock n-1"))
	if noPython != nil {
		s.say("  %s", s.paint(yellow, fmt.Sprintf("No Python for tills (%v); `make venv` prepares one.", noPython)))
	}
	s.say("  %s", s.paint(dim, "Redis: "+f.redis.Kind()))
	return nil
}

func (f *sale) close() {
	f.screen.erase()
	for _, t := range f.tills {
		t.end()
	}
	if f.sidecar != nil {
		f.sidecar.terminate()
	}
	if f.stats != nil {
		f.stats.Close()
	}
	if f.redis != nil {
		f.redis.Close()
	}
	if f.dir != "" {
		os.RemoveAll(f.dir)
	}
}

// run is the four parts of the demo. Its error says what was not as promised.
func (f *sale) run(ctx context.Context) error {
	s := f.screen
	var wrong []error
	judge := func(err error, format string, args ...any) {
		if err == nil {
			s.good(format, args...)
			return
		}
		s.bad("%v", err)
		wrong = append(wrong, err)
	}

	s.heading(1, "Without a lock")
	free, err := f.sell(ctx, orderSell, noVictim)
	if err != nil {
		return err
	}
	if over := len(free.sales) - f.Stock; over > 0 {
		s.bad("oversold: %s customers paid for %s units, %s of them for nothing (%.1f s)",
			thousands(len(free.sales)), thousands(f.Stock), thousands(over), free.took.Seconds())
	} else {
		wrong = append(wrong, errors.New("without a lock nothing was oversold: this run shows nothing"))
		s.bad("%v", wrong[0])
	}

	s.heading(2, fmt.Sprintf("With the lock %q around the three steps", stockKey))
	locked, err := f.sell(ctx, orderSellLocked, noVictim)
	if err != nil {
		return err
	}
	judge(soldExactly(f.Stock, locked.sales), "%s customers paid for %s units (%.1f s)",
		thousands(len(locked.sales)), thousands(f.Stock), locked.took.Seconds())
	judge(tokensRise(locked.sales), "every sale has a larger fencing token than the sale before")

	s.heading(3, "With the lock, and kill -9 of the till that holds it")
	crash, err := f.sell(ctx, orderSellLocked, aTill)
	if err != nil {
		return err
	}
	killed := crash.victim
	s.say("     till %d (%s, pid %d) had the lock with token …%06d and was killed",
		slices.Index(f.tills, killed)+1, killed.lang, killed.Process.Pid, crash.token%1_000_000)
	next, err := crash.nextSale()
	judge(err, "next sale %s after the kill (lock granted after %s); waiting for the lease to end takes up to 30 s",
		millis(next.SoldNS-crash.killed), millis(next.GrantedNS-crash.killed))
	judge(soldExactly(f.Stock, crash.sales), "%s customers paid for %s units all the same",
		thousands(len(crash.sales)), thousands(f.Stock))
	judge(tokensRise(crash.sales), "every sale has a larger fencing token than the sale before")

	s.heading(4, "With the lock, and kill -9 of the sidecar, which then starts again")
	before := f.sidecar.Process.Pid
	restart, err := f.sell(ctx, orderSellLocked, theSidecar)
	if err != nil {
		return err
	}
	s.say("     the sidecar (pid %d) was killed; its successor is pid %d", before, f.sidecar.Process.Pid)
	next, err = restart.nextSale()
	judge(err, "next sale %s after the kill; no till saw an error", millis(next.SoldNS-restart.killed))
	judge(soldExactly(f.Stock, restart.sales), "%s customers paid for %s units all the same",
		thousands(len(restart.sales)), thousands(f.Stock))
	judge(tokensRise(restart.sales), "every sale has a larger fencing token than the sale before")

	s.say("\n  %s", s.paint(bold, "What it cost (part 2)"))
	fewest, most := locked.perTill[0], locked.perTill[len(locked.perTill)-1]
	s.row("sales", "%s a second; from %s to %s at a till", thousands(int(float64(len(locked.sales))/locked.took.Seconds())),
		thousands(fewest), thousands(most))
	waits := make([]int64, len(locked.sales))
	for i, sale := range locked.sales {
		waits[i] = sale.WaitNS
	}
	s.row("wait for the lock", "p50 %s, p99 %s, max %s", millis(quantile(waits, 0.50)), millis(quantile(waits, 0.99)), millis(quantile(waits, 1)))
	s.row("Redis connections", "%d for the locks of all %d tills", locked.connections, f.Tills)
	if locked.connections > 2 {
		wrong = append(wrong, fmt.Errorf("locking took %d Redis connections; 2 are enough", locked.connections))
		s.bad("%v", wrong[len(wrong)-1])
	}
	if locked.commands < 0 {
		s.row("Redis commands", "not counted by the Redis inside this program")
	} else {
		s.row("Redis commands", "%.2f a sale for locking; a lock without a sidecar takes 2 at the least",
			float64(locked.commands)/float64(len(locked.sales)))
	}
	s.say("")
	return errors.Join(wrong...)
}

// A part is what came out of one of the four.
type part struct {
	sales       []tillReport
	took        time.Duration // from the first order to the last report
	perTill     []int         // sales, ascending
	connections int           // to Redis for locking, at most
	commands    int           // to Redis for locking; −1: unknown

	victim *till
	token  uint64 // that the victim held
	killed int64  // CLOCK_BOOTTIME just before the kill of the till or the sidecar
}

// A victim is the process that is killed with -9 half way through a part.
type victim uint8

const (
	noVictim victim = iota
	aTill           // while it holds the lock
	theSidecar
)

// nextSale returns the first sale after the kill.
func (p *part) nextSale() (tillReport, error) {
	var next tillReport
	for _, s := range p.sales {
		if s.GrantedNS >= p.killed && (next.Unit == 0 || s.GrantedNS < next.GrantedNS) {
			next = s
		}
	}
	switch {
	case next.Unit == 0:
		return next, errors.New("nothing was sold after the kill")
	case next.Token <= p.token:
		return next, fmt.Errorf("the sale after the kill has token %d, the killed till had %d", next.Token, p.token)
	}
	return next, nil
}

// sell has all tills sell the whole stock.
func (f *sale) sell(ctx context.Context, order string, kill victim) (*part, error) {
	ctx, cancel := context.WithTimeout(ctx, f.limit())
	defer cancel()
	if err := f.stats.Set(ctx, stockValueKey, f.Stock, 0).Err(); err != nil {
		return nil, err
	}
	p := &part{commands: -1}
	before, counted := f.lockCommands(ctx)
	selling := 0
	for _, t := range f.tills {
		if t.sales = 0; t.lives() {
			t.order(order)
			selling++
		}
	}
	start := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for selling > 0 {
		select {
		case r := <-f.reports:
			switch r.Kind {
			case "sale":
				p.sales = append(p.sales, r)
				r.till.sales++
				switch {
				case len(p.sales) < f.Stock/2:
				case kill == aTill && p.victim == nil:
					p.victim = f.tills[len(f.tills)-1]
					p.victim.order(orderHold)
				case kill == theSidecar && p.killed == 0:
					p.killed = protocol.Now()
					f.sidecar.end()
					if err := f.startSidecar(ctx); err != nil {
						return nil, err
					}
				}
			case "holding":
				p.token = r.Token
				p.killed = protocol.Now()
				r.till.end()
			case "gone":
				if p.killed == 0 || r.till != p.victim {
					return nil, r.trouble()
				}
				selling--
			case "done":
				selling--
			default:
				return nil, r.trouble()
			}
		case <-tick.C:
			left, err := f.stats.Get(ctx, stockValueKey).Int()
			if err != nil {
				return nil, err
			}
			p.connections = max(p.connections, f.lockConnections(ctx))
			f.screen.progress(f.Stock, left, len(p.sales), time.Since(start))
		case <-ctx.Done():
			return nil, f.interrupted(ctx)
		}
	}
	p.took = time.Since(start)
	f.screen.erase()
	if kill != noVictim && p.killed == 0 {
		return nil, errors.New("no process was killed: the till that was to be killed never got the lock")
	}
	if after, ok := f.lockCommands(ctx); ok && counted {
		p.commands = after - before
	}
	for _, t := range f.tills {
		if t.lives() {
			p.perTill = append(p.perTill, t.sales)
		}
	}
	slices.Sort(p.perTill)
	return p, nil
}

// limit is how long a part may take: many times what it should.
func (f *sale) limit() time.Duration {
	return 15*time.Second + 10*time.Duration(f.Stock)*f.Pay
}

func (f *sale) interrupted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the stock was not sold within %v; the sidecar says:\n%s", f.limit(), f.sidecar.stderr.String())
	}
	return errors.New("interrupted")
}

// trouble is the error for a report that should not have come.
func (r tillReport) trouble() error {
	what := r.Err
	if r.Kind != "error" {
		what = fmt.Sprintf("unexpected %q", r.Kind)
	}
	if said := r.till.stderr.String(); said != "" {
		what += "\n" + said
	}
	return fmt.Errorf("a till in %s (pid %d): %s", r.till.lang, r.till.Process.Pid, what)
}

// lockConnections counts Redis's clients, less the tills' own and the demo's.
func (f *sale) lockConnections(ctx context.Context) int {
	info, err := f.stats.Info(ctx, "clients").Result()
	if err != nil {
		return 0
	}
	clients := 0
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "connected_clients:"); ok {
			clients, _ = strconv.Atoi(n)
		}
	}
	own := 1
	for _, t := range f.tills {
		if t.lives() {
			own++
		}
	}
	return max(clients-own, 0)
}

// lockCommands counts what only locking sends: scripts and subscriptions.
func (f *sale) lockCommands(ctx context.Context) (n int, ok bool) {
	info, err := f.stats.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(info) {
		name, rest, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !found {
			continue
		}
		ok = true
		switch name {
		case "eval", "evalsha", "fcall", "subscribe", "unsubscribe":
			calls, _, _ := strings.Cut(rest, ",")
			v, _ := strconv.Atoi(calls)
			n += v
		}
	}
	return n, ok
}

// soldExactly tells whether every unit from 1 to stock was sold once.
func soldExactly(stock int, sales []tillReport) error {
	times := make([]int, stock+1)
	for _, s := range sales {
		if s.Unit < 1 || s.Unit > stock {
			return fmt.Errorf("unit %d was sold, which does not exist", s.Unit)
		}
		times[s.Unit]++
	}
	for unit := stock; unit > 0; unit-- {
		if times[unit] != 1 {
			return fmt.Errorf("unit %s was sold %d times; %s sales in all for %s units",
				thousands(unit), times[unit], thousands(len(sales)), thousands(stock))
		}
	}
	return nil
}

// tokensRise tells whether each sale has a larger token than the sale before.
// The stock falls, so the units give the order without any clock.
func tokensRise(sales []tillReport) error {
	inOrder := slices.SortedFunc(slices.Values(sales), func(a, b tillReport) int { return cmp.Compare(b.Unit, a.Unit) })
	for i := 1; i < len(inOrder); i++ {
		if before, now := inOrder[i-1], inOrder[i]; now.Token <= before.Token {
			return fmt.Errorf("unit %s was sold with token %d, after unit %s with token %d",
				thousands(now.Unit), now.Token, thousands(before.Unit), before.Token)
		}
	}
	return nil
}

// quantile returns the value that a share q of all values does not exceed.
func quantile(values []int64, q float64) int64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(q*float64(len(sorted))+0.999999)-1, 0)]
}
