package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Redis behind Sentinels is where they say it is:
//
//	locate ──address──► greet: is it a master? ──► locate: the same address? ──► connected
//	   ▲                                                                            │
//	   └── a Sentinel publishes +switch-master, or two rounds in a row name ◄───────┘
//	       another address, or the connection ends
//
// The second look is for a master that returns after its crash: it says that it is a master until the
// Sentinels make it a replica, ten seconds later, and has none of the locks since.

const (
	// questionPatience is how long the other Sentinels have to answer after more than half of them did.
	questionPatience = 250 * time.Millisecond

	// askAgain is the time between two looks at Sentinels that name different masters.
	askAgain = 100 * time.Millisecond

	// sentinelInterval is the time between two rounds of questions while connected, give or take a quarter.
	sentinelInterval = 5 * time.Second

	// trustLast is how long the last address counts while no Sentinel answers: the default lease, after
	// which no lock of the time before is left.
	trustLast = 30 * time.Second

	// maxSentinels bounds the Sentinels that are asked.
	maxSentinels = 64
)

// sentinelGroup is what a URL says of Sentinels. Immutable.
type sentinelGroup struct {
	redisurl.Sentinel
	tls     TLS
	timeout time.Duration
}

// checkGroup returns the group of Sentinels of a URL.
func checkGroup(s *redisurl.Sentinel, t TLS, timeout time.Duration) (*sentinelGroup, error) {
	g := &sentinelGroup{Sentinel: *s, tls: t, timeout: timeout}
	g.tls.ServerName = "" // that of Redis
	if s.TLS {
		if _, err := g.tls.config(&tls.Config{}); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// client returns a client of one Sentinel. It connects when it is used.
func (g *sentinelGroup) client(address string) *redis.Client {
	dialer := net.Dialer{Timeout: g.timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return redis.NewClient(&redis.Options{
		Addr: address, Username: g.Username, Password: g.Password,
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			conn.ClientSetName(ctx, "locksidecar") // a courtesy: a user that may not is served
			return nil
		},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil || !g.TLS {
				return conn, err
			}
			host, _, _ := net.SplitHostPort(address)
			config, err := g.tls.config(&tls.Config{ServerName: host, MinVersion: tls.VersionTLS12})
			if err != nil {
				conn.Close()
				return nil, wire.Unavailable(err.Error())
			}
			return tls.Client(conn, config), nil
		},
		DialTimeout: g.timeout, ReadTimeout: g.timeout, WriteTimeout: g.timeout, ContextTimeoutEnabled: true,
		Protocol: 2, PoolSize: 1, PipelinePoolSize: -1, MaxRetries: -1, DialerRetries: 1, ConnMaxIdleTime: -1,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// sentinels finds the master, and notices that it moved.
type sentinels struct {
	log      *slog.Logger
	interval time.Duration // between two rounds of questions while connected

	// onMoved: the master is at another address, as a Sentinel published and a round of questions
	// confirmed, or as two rounds found. It comes from any goroutine.
	onMoved func(address string)

	// onLost: most of the Sentinels do not answer, with the sentence that an operator reads; "": they do. It comes from
	// any goroutine.
	onLost func(why string)

	// onFailover: a Sentinel is about to replace the master at an address, for the reason that an operator reads;
	// "", "": none is any more. It comes from any goroutine.
	onFailover func(address, why string)

	changed chan struct{} // there are other Sentinels, or a failover is announced

	asking sync.WaitGroup // goroutines that ask one Sentinel

	mu      sync.Mutex
	group   *sentinelGroup
	members map[string]*sentinelMember // by address
	closed  bool

	last    string    // the address that was found last
	lastAt  time.Time // when
	attempt attempt   // to connect to it

	failovers map[*sentinelMember]*failover // that Sentinels lead, as they announced

	count  SentinelCount // as of the last round
	misses int           // rounds in a row in which no majority answered

	disagreed    bool // that the Sentinels name different masters was logged
	deniedLogged bool // that a Sentinel does not permit a question was logged
	silent       bool // that a Sentinel does not permit its messages was logged
	partlySilent bool // that it does not permit those about the steps of a failover was logged
}

// An attempt to connect to a master. If that is known to have moved, the attempt ends.
type attempt struct {
	address string
	cancel  context.CancelFunc // nil: there is no attempt
}

// A sentinelMember is one Sentinel.
type sentinelMember struct {
	address string
	client  *redis.Client
	runID   string // that it was learned with, or had first; "": it is not known
	isSeed  bool   // the URL has it; others are learned

	isListened bool // its messages are received, or will be
}

// sentinelView is what one Sentinel answered.
type sentinelView struct {
	member *sentinelMember
	runID  string // of the Sentinel; "": it does not say
	master string // the address of the master
	epoch  int64  // of the configuration: an election of a majority of the Sentinels raises it
	isDown bool   // enough Sentinels agree that the master is down
	lead   lead   // whether it leads a failover
	peers  []sentinelPeer
	err    error // it does not name a master

	denied error // what this user may not ask, beside the name of the master
}

// sentinelPeer is a Sentinel that another one knows.
type sentinelPeer struct {
	runID, address string
	isDown         bool
}

func newSentinels(group *sentinelGroup, log *slog.Logger) *sentinels {
	s := &sentinels{log: log, interval: sentinelInterval, members: make(map[string]*sentinelMember), failovers: make(map[*sentinelMember]*failover), changed: make(chan struct{}, 1)}
	s.use(group)
	return s
}

// use replaces what the URL says: the seeds, user and password.
func (s *sentinels) use(group *sentinelGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew := s.group == nil || group.Username != s.group.Username || group.Password != s.group.Password
	s.group = group
	for address, m := range s.members {
		if m.isSeed = slices.Contains(group.Addresses, address); isNew {
			s.remove(m)
		}
	}
	for _, address := range group.Addresses {
		s.add(address, "", true)
	}
}

// add has a Sentinel asked. The caller holds mu.
func (s *sentinels) add(address, runID string, isSeed bool) {
	if s.members[address] == nil && len(s.members) < maxSentinels && !s.closed {
		s.members[address] = &sentinelMember{address: address, client: s.group.client(address), runID: runID, isSeed: isSeed}
		s.wake()
	}
}

// remove ends the connections to a Sentinel. The caller holds mu.
func (s *sentinels) remove(m *sentinelMember) {
	delete(s.members, m.address)
	m.client.Close()
}

// close ends all connections, and returns when no Sentinel is asked any more.
func (s *sentinels) close() {
	s.mu.Lock()
	s.closed = true
	for _, m := range s.members {
		s.remove(m)
	}
	s.mu.Unlock()
	s.asking.Wait()
}

// round asks all Sentinels at one time, and learns of others.
func (s *sentinels) round(parent context.Context) []sentinelView {
	began := time.Now()
	s.mu.Lock()
	name, asked := s.group.Master, len(s.members)
	ctx, cancel := context.WithTimeout(parent, s.group.timeout)
	defer cancel()
	answers := make(chan sentinelView, asked) // with room for those that come too late
	for _, m := range s.members {
		s.asking.Go(func() { answers <- m.ask(ctx, name) })
	}
	s.mu.Unlock()
	var views []sentinelView
	var late <-chan time.Time
	answered := 0
	for len(views) < asked {
		select {
		case v := <-answers:
			views = append(views, v)
			if v.master != "" {
				answered++
			}
			if late == nil && 2*answered > asked {
				timer := time.NewTimer(questionPatience)
				defer timer.Stop()
				late = timer.C
			}
			continue
		case <-late:
		case <-ctx.Done():
		}
		break
	}
	views = s.known(views)
	if parent.Err() == nil {
		s.tally(asked, views)
	}
	s.learn(views)
	s.review(began, views)
	return views
}

// SentinelCount is how many Sentinels there are, and how many of them named the master in the last round. Those that
// end stay known to the others, and are counted: a failover needs a majority of all.
type SentinelCount struct{ Known, Answering int }

// HasMajority reports whether so many answer as a failover needs.
func (c SentinelCount) HasMajority() bool { return 2*c.Answering > c.Known }

// missesReported is in how many rounds in a row no majority answers before that is reported.
const missesReported = 2

// tally notes how many Sentinels answered in a round, and reports that a majority does not any more, or does again.
func (s *sentinels) tally(asked int, views []sentinelView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.count
	s.count = SentinelCount{Known: asked}
	for _, v := range views {
		if v.master != "" {
			s.count.Answering++
			s.count.Known = max(s.count.Known, 1+len(v.peers))
		}
	}
	if s.count.Answering == 0 {
		s.count.Known = max(asked, before.Known) // a learned one that others see down is not asked any more
	}
	missed := s.misses
	if s.misses++; s.count.HasMajority() {
		s.misses = 0
	}
	why := ""
	switch {
	case s.misses == missesReported:
		why = fmt.Sprintf("%d of %d Sentinels of the master %q answer: if it fails, no replica replaces it, or this sidecar does not learn of that; start them, or correct their addresses in the Redis URL", s.count.Answering, s.count.Known, s.group.Master)
		s.log.Warn("most of the Sentinels do not answer", "reason", why)
	case s.misses == 0 && missed >= missesReported:
		s.log.Info("most of the Sentinels answer again", "answering", s.count.Answering, "known", s.count.Known)
	default:
		return
	}
	if s.onLost != nil {
		s.onLost(why)
	}
}

// counted returns how many Sentinels there are, and answer.
func (s *sentinels) counted() SentinelCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// ask asks one Sentinel.
func (m *sentinelMember) ask(ctx context.Context, name string) sentinelView {
	v := sentinelView{member: m}
	id := redis.NewStringCmd(ctx, "sentinel", "myid")
	address := redis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", name)
	master := redis.NewMapStringStringCmd(ctx, "sentinel", "master", name)
	peers := redis.NewMapStringStringSliceCmd(ctx, "sentinel", "sentinels", name)
	pipe := m.client.Pipeline()
	pipe.BatchProcess(ctx, id, address, master, peers)
	_, failed := pipe.Exec(ctx)
	switch at := address.Val(); {
	case errors.Is(address.Err(), redis.Nil):
		v.err = errNotWatched
		return v
	case address.Err() != nil, len(at) != 2: // a greeting that is refused leaves no error in a command
		v.err = cmp.Or(address.Err(), failed, errNotWatched)
		return v
	case at[0] == "" || !isPort(at[1]):
		v.err = fmt.Errorf("it names the address %s", wire.Clip(strings.Join(at, ":")))
		return v
	default:
		v.master = net.JoinHostPort(at[0], at[1])
	}
	for _, err := range []error{id.Err(), master.Err(), peers.Err()} {
		if err != nil && strings.Contains(err.Error(), "NOPERM") {
			v.denied = err
		}
	}
	v.runID = id.Val()
	fields := master.Val()
	v.epoch, _ = strconv.ParseInt(fields["config-epoch"], 10, 64)
	flags := strings.Split(fields["flags"], ",")
	isOfMaster := net.JoinHostPort(fields["ip"], fields["port"]) == v.master // in a failover, the row may be of the old one
	v.isDown = isOfMaster && slices.Contains(flags, "o_down")
	if slices.Contains(flags, "failover_in_progress") {
		if v.lead = leadsTo; isOfMaster {
			v.lead = leadsFrom
		}
	}
	for _, p := range peers.Val() {
		if host, port := p["ip"], p["port"]; p["runid"] != "" && host != "" && isPort(port) {
			isDown := strings.Contains(p["flags"], "_down") || strings.Contains(p["flags"], "disconnected")
			v.peers = append(v.peers, sentinelPeer{p["runid"], net.JoinHostPort(host, port), isDown})
		}
	}
	return v
}

var (
	errNotWatched = errors.New("it does not watch this master")
	errStranger   = errors.New("it is of another group of Sentinels")
)

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// known returns the answers that count: those of one group of Sentinels that know each other. An
// address may lead to a Sentinel of another group by now, which watches another master under the same
// name. That of a Sentinel that was learned has another run id then. Of those in the URL, the group
// counts that most of them are in; if there are two such groups, none counts.
func (s *sentinels) known(views []sentinelView) []sentinelView {
	s.mu.Lock()
	for i := range views {
		v := &views[i]
		if v.denied != nil && !s.deniedLogged {
			s.deniedLogged = true
			s.log.Warn("a Sentinel does not say all that it knows of the master: a failover is followed less surely", "sentinel", v.member.address, "reason", s.group.reason(v.denied))
		}
		if v.master != "" && !v.member.isSeed && v.runID != v.member.runID {
			*v = v.stranger()
		}
	}
	s.mu.Unlock()
	groups := groupsOf(views)
	if len(groups) < 2 {
		return views
	}
	slices.SortStableFunc(groups, func(a, b []int) int { return seedsOf(views, b) - seedsOf(views, a) })
	chosen := groups[0]
	if seedsOf(views, groups[1]) == seedsOf(views, chosen) {
		chosen = nil
	}
	for i := range views {
		if v := &views[i]; v.master != "" && !slices.Contains(chosen, i) {
			*v = v.stranger()
		}
	}
	return views
}

// stranger is the view of a Sentinel that does not show that it is of the group: perhaps it may not.
func (v *sentinelView) stranger() sentinelView {
	return sentinelView{member: v.member, err: cmp.Or(v.denied, errStranger)}
}

// groupsOf returns the groups of Sentinels, by index, of which each knows, or is known by, another one of
// its group. Those that say nothing of others are one group.
func groupsOf(views []sentinelView) (groups [][]int) {
	knows := func(a, b *sentinelView) bool {
		return len(a.peers) == 0 && len(b.peers) == 0 && (a.runID == "" || b.runID == "") ||
			slices.ContainsFunc(a.peers, func(p sentinelPeer) bool {
				return p.runID == b.runID || b.runID == "" && p.address == b.member.address
			})
	}
	for i := range views {
		if views[i].master == "" {
			continue
		}
		joined := []int{i}
		groups = slices.DeleteFunc(groups, func(group []int) bool {
			isKnown := slices.ContainsFunc(group, func(k int) bool { return knows(&views[i], &views[k]) || knows(&views[k], &views[i]) })
			if isKnown {
				joined = append(joined, group...)
			}
			return isKnown
		})
		groups = append(groups, joined)
	}
	return groups
}

// seedsOf is how many of a group the URL has.
func seedsOf(views []sentinelView, group []int) (n int) {
	for _, i := range group {
		if views[i].member.isSeed {
			n++
		}
	}
	return n
}

// learn adds the Sentinels that others know, and removes those that were learned and that none knows,
// or all see down. One that the URL has under another address is not asked twice.
func (s *sentinels) learn(views []sentinelView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[string]string) // addresses by run id
	for _, v := range views {
		if v.member.runID == "" {
			v.member.runID = v.runID
		}
		for _, p := range v.peers {
			if !p.isDown {
				known[p.runID] = p.address
			}
		}
	}
	if len(known) == 0 {
		return
	}
	asked := make(map[string]bool)
	for _, m := range s.members {
		if m.isSeed && m.runID != "" {
			asked[m.runID] = true
		}
	}
	for _, m := range s.members {
		if !m.isSeed && (asked[m.runID] || known[m.runID] != m.address) {
			s.remove(m)
		}
	}
	for runID, address := range known {
		if !asked[runID] {
			s.add(address, runID, false)
		}
	}
}

// chooseMaster returns the address of the master by what Sentinels of one group answered: that of the
// newest configuration, which a majority of them elected; "": none of them names one. isAgreed: all
// name it. isDown: as most of those that name it see it, it is down.
func chooseMaster(views []sentinelView) (address string, isAgreed, isDown bool) {
	var named []sentinelView
	for _, v := range views {
		if v.master != "" {
			named = append(named, v)
		}
	}
	if len(named) == 0 {
		return "", false, false
	}
	votes, down := make(map[string]int), make(map[string]int)
	for _, v := range named {
		votes[v.master]++
		if v.isDown {
			down[v.master]++
		}
	}
	best := slices.MaxFunc(named, func(a, b sentinelView) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(votes[a.master], votes[b.master]), strings.Compare(b.master, a.master))
	}).master
	return best, votes[best] == len(named), 2*down[best] > votes[best]
}

// locate returns the address of the master. isNamed is false while no Sentinel answers: it is the
// last address, which counts only if the server there is still the same.
func (s *sentinels) locate(ctx context.Context) (address string, isNamed bool, err error) {
	views := s.round(ctx)
	var isAgreed, isDown bool
	address, isAgreed, isDown = chooseMaster(views)
	if address != "" && !isAgreed && !isLed(views, address) {
		s.logDisagreement(views)
		if !pause(ctx, askAgain) {
			return "", false, ctx.Err()
		}
		first := address
		views = s.round(ctx)
		if address, _, isDown = chooseMaster(views); address != "" && address != first {
			return "", false, wire.Unavailablef("the Sentinels of the master %q move it from %s to %s", s.name(), first, address)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case address == "" && s.last != "" && time.Since(s.lastAt) < trustLast:
		return s.last, false, nil
	case address == "":
		return "", false, s.group.silence(views)
	case isDown:
		return "", false, wire.Unavailablef("Redis at %s, the master %q, is down as its Sentinels see it; they promote a replica soon, if there is one", address, s.group.Master)
	}
	if isAgreed {
		s.disagreed = false
	}
	s.last, s.lastAt = address, time.Now()
	return address, true, nil
}

// find makes a connection to the server of a URL, or to the master that Sentinels name.
func (d *dialer) find(ctx context.Context, s *sentinels, lost *lostAddresses, last wire.Identity) (*readyConn, error) {
	if s == nil {
		return d.connect(ctx, lost, last)
	}
	address, isNamed, err := s.locate(ctx)
	if err != nil {
		return nil, err
	}
	attempting := s.begin(ctx, address)
	defer s.end()
	conn, err := d.at(address).connect(attempting, lost, last)
	if err != nil {
		return nil, wire.Unavailablef("%v (the Sentinels of the master %q name this address)", err, d.group.Master)
	}
	now, isNamedStill, err := s.locate(ctx)
	switch {
	case err != nil:
	case !(isNamed && isNamedStill) && !conn.id.SameServer(&last):
		err = wire.Unavailablef("no Sentinel of the master %q answers, and Redis at %s is not the server that it was: it may have lost the locks, or been replaced", d.group.Master, address)
	case now != address:
		err = wire.Unavailablef("Redis at %s says that it is a master, and the Sentinels of %q name %s; one that returned after a failover is not used", address, d.group.Master, now)
	}
	if err != nil {
		conn.close()
		return nil, err
	}
	return conn, nil
}

// begin notes an attempt to connect to an address, and returns its context.
func (s *sentinels) begin(ctx context.Context, address string) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.attempt = attempt{address, cancel}
	s.mu.Unlock()
	return ctx
}

// end ends the attempt.
func (s *sentinels) end() {
	s.mu.Lock()
	s.attempt.cancel()
	s.attempt = attempt{}
	s.mu.Unlock()
}

// move reports that the master is at an address. An attempt to connect to another one ends.
func (s *sentinels) move(address string) {
	s.mu.Lock()
	if s.attempt.cancel != nil && s.attempt.address != address {
		s.attempt.cancel()
	}
	s.mu.Unlock()
	s.onMoved(address)
}

// hasSentinelsOf reports whether two URLs have the same Sentinels, or none.
func (d *dialer) hasSentinelsOf(other *dialer) bool {
	if d.group == nil || other.group == nil {
		return d.group == other.group
	}
	return slices.Equal(slices.Sorted(slices.Values(d.group.Addresses)), slices.Sorted(slices.Values(other.group.Addresses)))
}

// notYet is the sentence for the time before the first connection.
func (d *dialer) notYet() string {
	if d.group != nil {
		return fmt.Sprintf("the master %q is not connected yet", d.group.Master)
	}
	return "Redis at " + d.Address + " is not connected yet"
}

func (s *sentinels) name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group.Master
}

// logDisagreement logs which Sentinel names which master, once.
func (s *sentinels) logDisagreement(views []sentinelView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disagreed {
		return
	}
	s.disagreed = true
	var texts []string
	for _, v := range views {
		if v.master != "" {
			texts = append(texts, fmt.Sprintf("%s: %s, epoch %d", v.member.address, v.master, v.epoch))
		}
	}
	slices.Sort(texts)
	s.log.Warn("the Sentinels name different masters: the one of the highest configuration epoch is used, if it is a master", "masters", strings.Join(texts, "; "))
}

// silence is the sentence for Sentinels of which none names the master.
func (g *sentinelGroup) silence(views []sentinelView) error {
	if len(views) == 0 {
		return wire.Unavailablef("none of the Sentinels of the master %q answered within %v; check that they run", g.Master, g.timeout)
	}
	slices.SortFunc(views, func(a, b sentinelView) int { return strings.Compare(a.member.address, b.member.address) })
	var reasons []string
	for _, v := range views[:min(len(views), 5)] {
		reasons = append(reasons, v.member.address+": "+g.reason(v.err))
	}
	return wire.Unavailablef("no Sentinel names the master %q (%s)", g.Master, strings.Join(reasons, "; "))
}

// reason is what is wrong with a Sentinel, and what to do.
func (g *sentinelGroup) reason(err error) string {
	var timeout net.Error
	var dns *net.DNSError
	var record tls.RecordHeaderError
	text := err.Error()
	if g.Password != "" {
		text = strings.ReplaceAll(text, g.Password, "…")
	}
	switch {
	case errors.Is(err, errNotWatched), strings.Contains(text, "No such master"):
		return "it watches no master of this name; check it in the Redis URL"
	case errors.Is(err, errStranger):
		return "it is of another group of Sentinels than the others; name those of one group in the Redis URL"
	case strings.Contains(text, "NOAUTH"):
		return "it wants a password; write sentinel_password=… as an option into the Redis URL, because the one before the @ is for Redis"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return "it does not accept the options sentinel_username and sentinel_password of the Redis URL"
	case strings.Contains(text, "NOPERM"):
		return "it does not permit this user what it needs; let its ACL have +sentinel|myid +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels +subscribe &+switch-master &" + strings.Join(failoverChannels, " &") + " (" + wire.Clip(text) + ")"
	case strings.Contains(text, "unknown command"):
		return "it is not a Sentinel; check its port, or write redis:// for a Redis without Sentinel"
	case errors.As(err, &dns):
		return "the host cannot be found (" + dns.Err + ")"
	case g.TLS && (errors.As(err, &record) || isEOF(err)):
		return "it does not answer in TLS; remove sentinel_tls=true from the Redis URL, or name its TLS port"
	case strings.Contains(text, "protected mode"):
		return "it is in protected mode, and accepts connections of its own host only; let it require a password (requirepass), and write sentinel_password=… into the Redis URL"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	case isEOF(err):
		return "it closed the connection; it may want TLS (sentinel_tls=true)"
	}
	return wire.Clip(text)
}

// watch looks for another master until ctx ends, and receives the messages of all Sentinels. It begins with the
// first connection.
func (s *sentinels) watch(ctx context.Context) {
	var listening sync.WaitGroup
	defer listening.Wait()
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	for {
		for _, m := range s.notListened() {
			listening.Go(func() { s.listenAgain(ctx, m) })
		}
		interval := s.interval
		if s.isFailingOver() {
			interval = min(interval, failoverInterval)
		}
		t := time.NewTimer(interval*3/4 + rand.N(interval/2))
		select {
		case <-t.C:
			s.check(ctx)
		case <-s.changed:
		case <-ctx.Done():
		}
		if t.Stop(); ctx.Err() != nil {
			return
		}
	}
}

// check asks whether the master has moved. Two rounds have to find that.
func (s *sentinels) check(ctx context.Context) {
	address, isOther := s.other(ctx)
	if !isOther || !pause(ctx, askAgain) {
		return
	}
	if again, isOther := s.other(ctx); isOther && again == address {
		s.move(address)
	}
}

// other asks where the master is. isOther: at another address than it was last.
func (s *sentinels) other(ctx context.Context) (address string, isOther bool) {
	address, _, isDown := chooseMaster(s.round(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	if address == s.last && address != "" {
		s.lastAt = time.Now()
	}
	return address, address != "" && address != s.last && !isDown
}

// notListened returns the Sentinels whose messages nothing receives yet.
func (s *sentinels) notListened() (members []*sentinelMember) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		if !m.isListened {
			m.isListened = true
			members = append(members, m)
		}
	}
	return members
}

// listenAgain receives the messages of one Sentinel for as long as it is one of the group.
func (s *sentinels) listenAgain(ctx context.Context, m *sentinelMember) {
	for delay := 4 * backoffMin; pause(ctx, delay); {
		s.mu.Lock()
		isMember := s.members[m.address] == m
		s.mu.Unlock()
		if !isMember {
			return
		}
		if delay = 4 * backoffMin; !s.listen(ctx, m) {
			delay = s.interval
		}
	}
}

const switchMaster = "+switch-master"

// listen receives the messages of one Sentinel until its connection ends. False: it was not
// subscribed to them.
func (s *sentinels) listen(ctx context.Context, m *sentinelMember) (wasSubscribed bool) {
	ctx, cancel := context.WithCancel(ctx)
	sub := m.client.Subscribe(ctx, switchMaster)
	defer sub.Close()
	stop := context.AfterFunc(ctx, func() { sub.Close() })
	defer stop()
	// Questions take their time, and an announcement must not wait for them.
	questions := make(chan func(), maxQuestions)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel() // the questions that are left are of no use
	defer close(questions)
	asking.Go(func() {
		for ask := range questions {
			ask()
		}
	})
	later := func(ask func()) {
		select {
		case questions <- ask:
		default: // the next round finds it
		}
	}
	for {
		received, err := sub.ReceiveTimeout(ctx, 0)
		if err != nil {
			isDenied := ctx.Err() == nil && strings.Contains(err.Error(), "NOPERM")
			if isDenied {
				s.logSilent(m, err, wasSubscribed)
			}
			if isDenied && wasSubscribed {
				continue // of the other channels
			}
			return wasSubscribed
		}
		switch message := received.(type) {
		case *redis.Subscription:
			if message.Channel == switchMaster {
				wasSubscribed = true
				_ = sub.Subscribe(ctx, failoverChannels...) // an error ends the next read, too
			}
			isLast := message.Channel == failoverChannels[len(failoverChannels)-1]
			if isLast {
				s.log.Info("receives the steps of failovers", "sentinel", m.address)
			}
			if message.Channel == switchMaster || isLast {
				later(func() { s.check(ctx) }) // what was published before is lost
			}
		case *redis.Message:
			if s.onAnnounced(m, message.Channel, message.Payload) {
				continue
			}
			later(func() { s.onMessage(ctx, message.Channel, message.Payload) })
		}
	}
}

// maxQuestions bounds the messages of one Sentinel that wait for a round of questions.
const maxQuestions = 8

// logSilent logs, once for each of both, that a Sentinel does not permit its messages: all, or those about the steps
// of a failover.
func (s *sentinels) logSilent(m *sentinelMember, err error, isPartly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case isPartly && !s.partlySilent:
		s.partlySilent = true
		s.log.Warn("this user may not receive what a Sentinel announces of a failover: until it names the new master, the old one may grant locks that the new one does not have; let its ACL have the channels &"+strings.Join(failoverChannels, " &"),
			"sentinel", m.address, "reason", wire.Clip(err.Error()))
	case !isPartly && !s.silent:
		s.silent = true
		s.log.Warn("this user may not receive the messages of a Sentinel: a failover is noticed some seconds later; let its ACL have +subscribe and the channels &"+switchMaster+" &"+strings.Join(failoverChannels, " &"),
			"sentinel", m.address, "reason", wire.Clip(err.Error()))
	}
}

// onMessage takes what a Sentinel published of a master that moved, or is about to. A round of questions confirms
// it: the Sentinel may be of another group by now.
func (s *sentinels) onMessage(ctx context.Context, channel, text string) {
	from, to := movedMaster(s.name(), channel, text)
	if from == "" {
		return
	}
	named, _, _ := chooseMaster(s.round(ctx))
	s.mu.Lock()
	isKnown := s.last == to
	s.mu.Unlock()
	if to == "" || named != to || isKnown {
		return
	}
	s.log.Info("the Sentinels say that the master has moved", "from", from, "to", to)
	s.move(to)
}
