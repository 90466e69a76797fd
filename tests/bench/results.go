package main

import "time"

// Results is everything a run of the benchmark found, and what the JSON file
// holds. Durations are in milliseconds or microseconds, as each field says.
type Results struct {
	Date      time.Time        `json:"date"`
	Machine   Machine          `json:"machine"`
	Settings  Settings         `json:"settings"`
	Scenarios []ScenarioResult `json:"scenarios"` // in the order in which they are shown
	Verdicts  []Verdict        `json:"verdicts"`  // the summary's lines
}

// Machine is what the figures depend on and a reader cannot see.
type Machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Kernel   string            `json:"kernel"`
	Versions map[string]string `json:"versions"` // of redis-server, go, java, python, locksidecar and every peer
}

// Settings are the choices of whoever started the benchmark.
type Settings struct {
	WindowMS float64 `json:"window_ms"` // how long each run is measured
	Rounds   int     `json:"rounds"`
	RTTMS    float64 `json:"rtt_ms"` // round trip asked of the delaying proxy; what it gave is in each scenario
	Smoke    bool    `json:"smoke"`  // shrunk until the figures mean nothing
}

// A Kind says what is done in a scenario, and with that which metrics it has.
type Kind string

const (
	Uncontended Kind = "uncontended" // pairs of acquire and release, a lock for each worker
	Contended   Kind = "contended"   // pairs, one lock for all workers of all processes
	Permits     Kind = "permits"     // pairs, one permit each of one semaphore for all workers of all processes
	Held        Kind = "held"        // many locks, taken once and kept
	Crash       Kind = "crash"       // the holder is killed; how soon the waiter has the lock
)

// A Scenario is what all contenders do.
type Scenario struct {
	Name      string  `json:"name"` // unique: "uncontended 8x8", with " wan" behind it where Redis is behind the proxy
	Kind      Kind    `json:"kind"`
	Hosts     int     `json:"hosts"`           // daemons of ours, groups of the peers' processes
	Processes int     `json:"processes"`       // in all
	Workers   int     `json:"workers"`         // of each process
	WorkUS    int     `json:"work_us"`         // time spent with the lock held
	Count     int     `json:"count,omitempty"` // locks held
	Of        int     `json:"of,omitempty"`    // permits that there are
	LeaseMS   float64 `json:"lease_ms"`
	WAN       bool    `json:"wan"`               // Redis is behind the delaying proxy
	Setting   string  `json:"setting,omitempty"` // a flag of our daemon, if it is not the default
	Against   string  `json:"against,omitempty"` // another scenario: what we do there is compared with, in place of the peers
}

// A ScenarioResult is a scenario and how all who took part in it did.
type ScenarioResult struct {
	Scenario
	RTTMS      float64           `json:"rtt_ms"` // the median of what the runs measured
	Contenders []ContenderResult `json:"contenders"`
}

// A Role says what a contender is compared for.
type Role string

const (
	Ours    Role = "ours"     // the Go SDK: what the targets are about
	Sibling Role = "ours too" // our other SDK: shown, no peer and not judged
	Peer    Role = "peer"
	Limit   Role = "limit" // no lock: what the machine allows
)

// A ContenderResult is what one contender did in one scenario.
type ContenderResult struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
	Runs []Run  `json:"runs"` // one a round (Crash: one a kill)

	// Over the runs that did not fail; empty if all did.
	Median Figures `json:"median"`
	Min    Figures `json:"min"`
	Max    Figures `json:"max"`
}

// A Run is one run of one contender in one scenario.
type Run struct {
	Round   int     `json:"round"`
	Error   string  `json:"error,omitempty"` // why there are no figures
	Note    string  `json:"note,omitempty"`  // what a reader of the figures should know
	RTTMS   float64 `json:"rtt_ms"`          // measured by PING before the run, on the contender's way to Redis
	Figures Figures `json:"figures,omitempty"`

	// Waits is the distribution of the time that acquire took, from the shortest
	// to the longest. Waits that the end of the window cut short are in it with
	// their length until then. Empty for Held and Crash.
	Waits []Quantile `json:"waits,omitempty"`
}

// A Quantile says that the share Q of all waits was at most MS long.
type Quantile struct {
	Q  float64 `json:"q"` // 0 … 1
	MS float64 `json:"ms"`
}

// Figures are what was measured. A metric that has no meaning for the scenario,
// or for the contender, is not in it.
type Figures map[Metric]float64

// A Metric is the name of a figure in the JSON file; its unit is the name's end.
type Metric string

const (
	// Uncontended, Contended and Permits. A pair is an acquire and its release; those
	// granted within the window count.
	PairsPerSecond Metric = "pairs_per_s"
	PairMS         Metric = "pair_ms"     // time of a worker per pair: workers / pairs per second
	PairP50MS      Metric = "pair_p50_ms" // from before acquire until release returned
	PairP99MS      Metric = "pair_p99_ms"
	PairMaxMS      Metric = "pair_max_ms"
	WaitP50MS      Metric = "wait_p50_ms" // of acquire
	WaitP99MS      Metric = "wait_p99_ms"
	WaitMeanMS     Metric = "wait_mean_ms"
	WaitMaxMS      Metric = "wait_max_ms" // the longest wait of any process, cut short by the end of the window or not
	ReleaseP50MS   Metric = "release_p50_ms"
	ReleaseP99MS   Metric = "release_p99_ms"
	Errors         Metric = "errors" // of acquire and release, as the workers counted them

	// Contended and Permits.
	OwnerChangesPerSecond Metric = "owner_changes_per_s" // the next grant went to another process
	HostChangesPerSecond  Metric = "host_changes_per_s"  // to a process of another host
	GrantsMin             Metric = "grants_min"          // of the process that got fewest
	GrantsMax             Metric = "grants_max"          // of the process that got most
	Fairness              Metric = "fairness"            // max/min; absent if a process got none
	Violations            Metric = "violations"          // two had the lock at one time, or more a permit than there are

	// Permits.
	IdealShare    Metric = "ideal_share"      // of the pairs that there would be if no permit were ever free
	WaitMaxOfMean Metric = "wait_max_of_mean" // the longest wait as a multiple of the mean

	// CPU time. The client host is all worker processes and daemons; Redis and
	// the proxy count on their own.
	ClientCPUPerPairUS Metric = "client_cpu_per_pair_us"
	WorkerCPUPerPairUS Metric = "worker_cpu_per_pair_us"
	DaemonCPUPerPairUS Metric = "daemon_cpu_per_pair_us"
	ServerCPUPerPairUS Metric = "server_cpu_per_pair_us" // of redis-server, for etcd of etcd
	ClientCPU          Metric = "client_cpu"             // cores in use: seconds of CPU per second
	ServerCPU          Metric = "server_cpu"
	ProxyCPU           Metric = "proxy_cpu"

	// What Redis saw. Commands called by scripts count as commands too.
	CommandsPerPair Metric = "commands_per_pair"
	ScriptsPerPair  Metric = "scripts_per_pair"
	BytesPerPair    Metric = "bytes_per_pair" // both directions
	Connections     Metric = "connections"    // at the end of the window

	// The client host at the end of the window.
	ClientRSSMB   Metric = "client_rss_mb"
	DaemonRSSMB   Metric = "daemon_rss_mb" // ours only; included in client_rss_mb
	ClientThreads Metric = "client_threads"

	// Held.
	TakeSeconds           Metric = "take_s"              // until all locks were taken
	RenewalsPerSecond     Metric = "renewals_per_s"      // calls of EXPIRE, PEXPIRE and PEXPIREAT, in scripts or not
	ScriptsPerSecond      Metric = "scripts_per_s"       // EVAL, EVALSHA and FCALL
	CommandsPerSecond     Metric = "commands_per_s"      // total_commands_processed
	ServerCPUPerSecMS     Metric = "server_cpu_ms_per_s" // CPU milliseconds of Redis per second
	ClientCPUPerSecMS     Metric = "client_cpu_ms_per_s" // of holder and daemon
	ServerCPUPerRenewalUS Metric = "server_cpu_per_renewal_us"
	LocksHeld             Metric = "locks_held" // keys still there at the end

	// Crash.
	CrashToGrantMS Metric = "crash_to_grant_ms"
)

// A Verdict is a line of the summary: a figure of ours beside that of the best
// peer, and what we want of them.
type Verdict struct {
	Scenario string  `json:"scenario"`
	Metric   Metric  `json:"metric"`
	Ours     float64 `json:"ours"`    // median
	Best     string  `json:"best"`    // the peer with the best median; "" if there is none
	BestIs   float64 `json:"best_is"` // its median
	Ratio    float64 `json:"ratio"`   // ours / best peer of the same round, median over rounds
	RatioMin float64 `json:"ratio_min"`
	RatioMax float64 `json:"ratio_max"`
	Target   string  `json:"target"`        // as people write it: "≥ 1.5×", "≤ 2"; "" if there is none
	Met      *bool   `json:"met,omitempty"` // absent without target, or where it cannot be judged
}
