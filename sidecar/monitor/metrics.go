package monitor

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// collector turns a copy of the sidecar's counters into metrics, at each scrape.
type collector struct {
	sidecar *sidecar.Server
	build   Build
}

// Build is what is known of this program.
type Build struct {
	Version, Commit string
	Settings        string // a hash of the settings in force; "": not known, and there is no such metric
}

// statsTimeout bounds how long a scrape, and a check of the loop, wait for the loop.
const statsTimeout = 2 * time.Second

func newRegistry(c *collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("locksidecar_"+name, help, labels, nil)
}

// The metrics. docs/metrics.md has the same, and what to alert on; a test compares the two.
var (
	buildInfo      = describe("build_info", "Is 1. The labels have the version, the commit and the version of Go.", "version", "commit", "goversion")
	settingsInfo   = describe("settings_info", "Is 1. The label has a hash of the settings in force, which hosts with the same settings share.", "hash")
	loopResponding = describe("loop_responding", "Whether the loop of the daemon answered this scrape within 2 s. Without an answer, most other metrics are missing.")
	loopAnswer     = describe("loop_answer_seconds", "How long the loop took to answer this scrape.")
	loopLatency    = describe("loop_latency_seconds", "How long the steps of the loop took: an input that arrives meanwhile waits for so long at most.")

	redisUp        = describe("redis_up", "Whether the daemon is connected to Redis, and Redis executes its scripts.")
	redisDegraded  = describe("redis_degraded", "Whether Redis is connected, but refuses what an acquire needs.")
	redisInfo      = describe("redis_info", "Is 1 while the daemon is connected to Redis. The labels name what all hosts that share locks must have in common.", "run_id", "database", "key_prefix")
	redisRoundtrip = describe("redis_roundtrip_seconds", "Round trips of operations to Redis, from their sending to their results.")

	redisShardUp    = describe("redis_shard_up", "Of a Redis Cluster: whether the daemon is connected to this master, which has slots.", "shard")
	redisSlots      = describe("redis_slots", "Of a Redis Cluster: how many slots this master has.", "shard")
	topologyChanges = describe("topology_changes_total", "Of a Redis Cluster: how often the daemon learned that slots have other masters, the first time included.")
	openSlot        = describe("redis_open_slot_seconds", "Of a Redis Cluster: for how long this slot has been migrating, if for more than 10 s.", "slot")
	sentinelsKnown  = describe("sentinels", "Behind Sentinels: how many there are.")
	sentinelsAnswer = describe("sentinels_answering", "Behind Sentinels: how many named the master in the last round of questions, each 5 s.")
	redirects       = describe("redirects_total", "Of a Redis Cluster: commands that a node did not serve because of where their slot is, by its answer.", "kind")

	messagesIgnored = describe("messages_ignored_total", "Messages on the daemon's own channel in Redis that it does not know. Another program publishes there.")

	leaseSeconds       = describe("lease_seconds", "The watchdog lease, which is renewed every third of it.")
	sessions           = describe("sessions", "Sessions of clients.")
	limit              = describe("limit", "A limit of the daemon, by its setting.", "limit")
	limitUsed          = describe("limit_used", "What is used of that limit.", "limit")
	policyLimit        = describe("policy_limit", "A limit of an entry of the policy, by its key.", "rule", "limit")
	policyLimitUsed    = describe("policy_limit_used", "What is used of that limit, by the user that uses the most if it is for each user.", "rule", "limit")
	overdueHolds       = describe("overdue_holds", "Holds that have lasted longer than expected_hold says for names of this pattern; a kept lock is none.", "names")
	holds              = describe("holds", "Holds: locks that clients of this host hold.")
	waiters            = describe("waiters", "Acquires that wait for a lock.")
	permits            = describe("permits", "Permits of semaphores that clients of this host hold.")
	waiterOldest       = describe("waiter_oldest_seconds", "For how long the oldest waiter has waited. 0: there is none.")
	holdOldest         = describe("hold_oldest_seconds", "For how long the oldest hold has lasted; a kept lock is none. 0: there is none.")
	acquires           = describe("acquires_total", "Acquires that ended, by result.", "result")
	acquireWait        = describe("acquire_wait_seconds", "How long acquires that were granted had waited.")
	holdSeconds        = describe("hold_seconds", "How long holds lasted, from the grant to the end.")
	handoffs           = describe("handoffs_total", "Grants that needed no operation of their own, by kind.", "kind")
	losses             = describe("losses_total", "Holds that ended without a release by their owner, of which the owner was notified, by reason; and releases with cut_short.", "reason")
	redisDowns         = describe("redis_outages_total", "How often the connection to Redis ended, or could not be made at the start.")
	redisDataLosses    = describe("redis_data_losses_total", "Connections to a Redis that may have lost data.")
	crashReleases      = describe("crash_releases_total", "Holds whose session ended before they were released.")
	renewals           = describe("renewals_total", "Renewals of a hold in Redis, by result.", "result")
	renewalMargin      = describe("renewal_margin_seconds", "How much of the lease was left when a renewal was done.")
	renewalsLate       = describe("renewals_late", "Holds under the watchdog that have less than half of their lease left.")
	sessionsResumed    = describe("sessions_resumed_total", "Sessions that clients resumed after a restart of the daemon.")
	restartTakenOver   = describe("restart_holds_taken_over", "Holds that this daemon took over from its predecessor when it started.")
	policyRefusals     = describe("policy_refusals_total", "Requests, clients and acquires that the policy refused, by its entry and the code of the error.", "rule", "code")
	trouble            = describe("trouble", "Whether clients cannot connect, or a restart of the daemon would lose all holds, by kind.", "kind")
	stateUnstoredLocks = describe("state_unstored_locks", "Locks that the state file has no room for. While it is not 0, a restart of the daemon loses all holds.")

	namedHolds        = describe("named_holds", "As holds, by pattern of metrics_names.", "names")
	namedWaiters      = describe("named_waiters", "As waiters, by pattern of metrics_names.", "names")
	namedPermits      = describe("named_permits", "As permits, by pattern of metrics_names.", "names")
	namedCapacity     = describe("named_capacity", "How many permits the semaphores of this pattern have that clients of this host use now, as these name it.", "names")
	namedWaiterOldest = describe("named_waiter_oldest_seconds", "As waiter_oldest_seconds, by pattern of metrics_names.", "names")
	namedHoldOldest   = describe("named_hold_oldest_seconds", "As hold_oldest_seconds, by pattern of metrics_names.", "names")
	namedAcquires     = describe("named_acquires_total", "As acquires_total, by pattern of metrics_names.", "names", "result")
	namedAcquireWait  = describe("named_acquire_wait_seconds", "As acquire_wait_seconds, by pattern of metrics_names.", "names")
	namedHoldSeconds  = describe("named_hold_seconds", "As hold_seconds, by pattern of metrics_names.", "names")
	namedLosses       = describe("named_losses_total", "As losses_total, by pattern of metrics_names.", "names", "reason")
)

var descriptions = []*prometheus.Desc{
	buildInfo, settingsInfo, loopResponding, loopAnswer, loopLatency, redisUp, redisDegraded, redisInfo, redisRoundtrip, redisShardUp, redisSlots, topologyChanges, redirects, openSlot, sentinelsKnown, sentinelsAnswer, messagesIgnored, leaseSeconds, sessions, limit, limitUsed, policyLimit, policyLimitUsed, overdueHolds, redisDowns, redisDataLosses,
	holds, waiters, permits, waiterOldest, holdOldest, acquires, acquireWait, holdSeconds, handoffs, losses, crashReleases,
	renewals, renewalMargin, renewalsLate, sessionsResumed, restartTakenOver, trouble, stateUnstoredLocks, policyRefusals,
	namedHolds, namedWaiters, namedPermits, namedCapacity, namedWaiterOldest, namedHoldOldest, namedAcquires, namedAcquireWait, namedHoldSeconds, namedLosses,
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(buildInfo, 1, c.build.Version, c.build.Commit, runtime.Version())
	if c.build.Settings != "" {
		gauge(settingsInfo, 1, c.build.Settings)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	s, err := c.sidecar.Stats(ctx)
	if err != nil {
		gauge(loopResponding, 0)
		return
	}
	gauge(loopResponding, 1)
	collect(ch, s, c.sidecar.Config())
}

// collect sends the metrics of a copy of the counters.
func collect(ch chan<- prometheus.Metric, s *sidecar.Stats, cfg sidecar.Config) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	histogram := func(d *prometheus.Desc, h *locktable.Histogram, scale *locktable.Scale, labels ...string) {
		buckets := make(map[float64]uint64)
		n := uint64(0)
		for i, bound := range scale.Bounds() {
			n += h.Counts[i]
			buckets[bound.Seconds()] = n
		}
		ch <- prometheus.MustNewConstHistogram(d, h.Count(), h.Sum.Seconds(), buckets, labels...)
	}

	gauge(loopAnswer, s.LoopDelay.Seconds())
	histogram(loopLatency, &s.Steps, locktable.ShortTimes)
	gauge(redisUp, truth(s.RedisUp))
	gauge(redisDegraded, truth(s.Degraded))
	if s.RedisUp {
		gauge(redisInfo, 1, s.RedisRunID, strconv.Itoa(s.Database), cfg.KeyPrefix)
	}
	histogram(redisRoundtrip, &s.Scripts, locktable.ShortTimes)
	collectTopology(ch, s)
	counter(messagesIgnored, s.Ignored)
	gauge(leaseSeconds, cfg.Lease.Seconds())
	gauge(sessions, float64(s.Sessions))
	for name, of := range map[string]struct{ used, most int }{
		"max_sessions": {s.Sessions, cfg.MaxSessions},
		"max_locks":    {s.Usage.Locks, cfg.MaxLocks},
		"user_locks":   {s.Usage.UserLocks, locktable.Share(cfg.MaxLocks)},
		"max_holds":    {s.Usage.SessionHolds, cfg.MaxHolds},
		"max_waiters":  {s.Usage.SessionWaiters, cfg.MaxWaiters},
	} {
		gauge(limit, float64(of.most), name)
		gauge(limitUsed, float64(of.used), name)
	}
	for _, u := range s.PolicyUse {
		gauge(policyLimit, float64(u.Most), u.Rule, u.Limit)
		gauge(policyLimitUsed, float64(u.Used), u.Rule, u.Limit)
	}
	for i, text := range cfg.ExpectedHold {
		gauge(overdueHolds, float64(s.Survey.Overdue[i]), text[:strings.LastIndexByte(text, '=')])
	}
	gauge(holds, float64(s.Holds))
	gauge(waiters, float64(s.Waiters))

	all, v := sum(s)
	gauge(permits, float64(v.Permits))
	gauge(waiterOldest, age(s, &v.OldestWaiter))
	gauge(holdOldest, age(s, &v.OldestHold))
	for i, n := range all.Acquires {
		counter(acquires, n, locktable.AcquireResult(i).String())
	}
	histogram(acquireWait, &all.Wait, locktable.ShortTimes)
	histogram(holdSeconds, &all.Held, locktable.LongTimes)
	for i, n := range s.Handoffs {
		counter(handoffs, n, locktable.HandoffKind(i).String())
	}
	for i, n := range all.Losses {
		counter(losses, n, string(locktable.LossReason(i)))
	}
	counter(crashReleases, s.CrashReleases)
	for i, n := range s.Renewals {
		if o := redisop.Outcome(i); o != redisop.Differs && o != redisop.NotALock { // which a Renew does not have
			counter(renewals, n, o.String())
		}
	}
	histogram(renewalMargin, &s.RenewalMargin, locktable.LeaseTimes)
	gauge(renewalsLate, float64(s.Survey.RenewalsLate))
	counter(sessionsResumed, s.Resumed)
	counter(redisDowns, s.RedisDowns)
	counter(redisDataLosses, s.DataLosses)
	gauge(restartTakenOver, float64(s.TakenOver))
	for _, t := range s.Troubles {
		gauge(trouble, truth(t.Why != ""), string(t.Kind))
	}
	gauge(stateUnstoredLocks, float64(s.Unstored))
	for i, n := range s.Policy {
		counter(policyRefusals, n.Denied, cfg.Policy[i].Name, string(protocol.Denied))
		counter(policyRefusals, n.Limit, cfg.Policy[i].Name, string(protocol.Limit))
	}

	for i, pattern := range cfg.MetricsNames {
		g, v := &s.Groups[i+1], &s.Survey.Groups[i+1]
		gauge(namedHolds, float64(v.Holds), pattern)
		gauge(namedWaiters, float64(v.Waiters), pattern)
		gauge(namedPermits, float64(v.Permits), pattern)
		gauge(namedCapacity, float64(v.Capacity), pattern)
		gauge(namedWaiterOldest, age(s, &v.OldestWaiter), pattern)
		gauge(namedHoldOldest, age(s, &v.OldestHold), pattern)
		for i, n := range g.Acquires {
			counter(namedAcquires, n, pattern, locktable.AcquireResult(i).String())
		}
		histogram(namedAcquireWait, &g.Wait, locktable.ShortTimes, pattern)
		histogram(namedHoldSeconds, &g.Held, locktable.LongTimes, pattern)
		for i, n := range g.Losses {
			counter(namedLosses, n, pattern, string(locktable.LossReason(i)))
		}
	}
}

const (
	// maxShardLabels is how many shards have a label of their own. Addresses change when masters do, and each
	// label is a series that Prometheus keeps.
	maxShardLabels = 64

	// maxSlotLabels is how many open slots have a series. Usually there is one.
	maxSlotLabels = 8

	noMaster    = "none"  // the label of slots without a master
	otherShards = "other" // the label of the shards that have none of their own
)

// collectTopology sends the metrics of Sentinels and of a Cluster, as far as Redis has them.
func collectTopology(ch chan<- prometheus.Metric, s *sidecar.Stats) {
	if n := s.Sentinels; n.Known > 0 {
		ch <- prometheus.MustNewConstMetric(sentinelsKnown, prometheus.GaugeValue, float64(n.Known))
		ch <- prometheus.MustNewConstMetric(sentinelsAnswer, prometheus.GaugeValue, float64(n.Answering))
	}
	if s.Shards == nil {
		return
	}
	type shard struct {
		slots int
		isUp  bool
	}
	byLabel := make(map[string]shard)
	for i := range s.Shards {
		state := &s.Shards[i]
		label := strings.ToValidUTF8(state.Address, "?")
		if label == "" {
			label = noMaster
		} else if len(byLabel) >= maxShardLabels {
			label = otherShards
		}
		if all, is := byLabel[label]; is {
			byLabel[label] = shard{all.slots + state.Slots, all.isUp && state.IsUp}
		} else {
			byLabel[label] = shard{state.Slots, state.IsUp}
		}
	}
	for label, of := range byLabel {
		ch <- prometheus.MustNewConstMetric(redisShardUp, prometheus.GaugeValue, truth(of.isUp), label)
		ch <- prometheus.MustNewConstMetric(redisSlots, prometheus.GaugeValue, float64(of.slots), label)
	}
	for _, open := range s.OpenSlots[:min(len(s.OpenSlots), maxSlotLabels)] {
		ch <- prometheus.MustNewConstMetric(openSlot, prometheus.GaugeValue, open.For.Seconds(), strconv.Itoa(int(open.Slot)))
	}
	ch <- prometheus.MustNewConstMetric(topologyChanges, prometheus.CounterValue, float64(s.TopologyChanges))
	for kind, n := range map[string]uint64{"moved": s.Redirects.Moved, "ask": s.Redirects.Ask, "tryagain": s.Redirects.TryAgain} {
		ch <- prometheus.MustNewConstMetric(redirects, prometheus.CounterValue, float64(n), kind)
	}
}

// age is for how long the oldest has waited or lasted, in seconds; 0: there is none.
func age(s *sidecar.Stats, o *locktable.Oldest) float64 {
	if o.Since == 0 {
		return 0
	}
	return max(0, time.Duration(s.Now-o.Since).Seconds())
}

// sum adds up the groups of names.
func sum(s *sidecar.Stats) (all locktable.GroupStats, v locktable.GroupSurvey) {
	for i := range s.Groups {
		g := &s.Groups[i]
		for i, n := range g.Acquires {
			all.Acquires[i] += n
		}
		for i, n := range g.Losses {
			all.Losses[i] += n
		}
		all.Wait.Add(&g.Wait)
		all.Held.Add(&g.Held)
		v.Add(&s.Survey.Groups[i])
	}
	return all, v
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
