package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A place is a part of a sentence or row of a page. The numbers in braces are constants of the code:
// see constants, and formats.
type place struct{ page, text string }

// codeOf has the folders of the packages that places name.
var codeOf = map[string]string{
	"claim":       "sidecar/locktable/claim",
	"cmd":         "cmd/locksidecar",
	"cluster":     "sidecar/store/cluster",
	"contest":     "sidecar/locktable/contest",
	"eventlog":    "sidecar/eventlog",
	"intake":      "sidecar/intake",
	"link":        "sidecar/store/link",
	"locksidecar": "sdk/go",
	"loglimit":    "sidecar/loglimit",
	"lookup":      "sidecar/store/lookup",
	"locktable":   "sidecar/locktable",
	"monitor":     "sidecar/monitor",
	"pipeline":    "sidecar/store/pipeline",
	"otherhosts":  "sidecar/otherhosts",
	"peers":       "sidecar/peers",
	"policy":      "sidecar/policy",
	"protocol":    "protocol",
	"redisop":     "sidecar/redisop",
	"sentinel":    "sidecar/store/sentinel",
	"sidecar":     "sidecar",
	"sim":         "internal/sim",
	"store":       "sidecar/store",
	"wire":        "sidecar/store/wire",
}

// inline are numbers that have no name in the code: the group of what the pattern finds in the file.
var inline = map[string]struct{ file, pattern string }{
	"batchTime":     {"sidecar/store/wire/scripts/renew.lua", `renew and #KEYS >= (\d+)`},
	"cells":         {"sidecar/locktable/renewal.go", `return max\(lease/(\d+), int64\(wheelTick\)\)`},
	"cellMore":      {"sidecar/locktable/names.go", `\+119\)/(\d+)`},
	"cellName":      {"sidecar/locktable/names.go", `len\(name\)-(\d+)\)`},
	"deadlineParts": {"sidecar/locktable/lease.go", `int64\(t\.cfg\.Lease\) / (\d+) }`},
	"givenUpEarly":  {"sidecar/locktable/lease.go", `t\.validUntil\(l\) - (\d+)\*t\.bucketWidth\(\)`},
	"late":          {"sidecar/locktable/survey.go", `int64\(t\.cfg\.Lease\)/(\d+) {`},
	"lingerEnd":     {"sidecar/locktable/visit.go", `moment\.MS\(c\.LeaseMS\(\)\)/(\d+)`},
	"paceTimes":     {"sidecar/intake/pace.go", `int64\(time\.Second\) / int64\((\d+)\*n\)`},
	"pythonConnect": {"sdk/python/src/locksidecar/_transport.py", `(?m)^CONNECT_WAIT: Final = (\d+)\.0$`},
	"pythonPatient": {"sdk/python/src/locksidecar/_transport.py", `RECONNECT_WAIT: Final = (\d+)\.0`},
	"refresh":       {"sidecar/locktable/contest/asking.go", `int64\(s\.lease\)/(\d+)`},
	"refreshLater":  {"sidecar/locktable/contest/asking.go", `Int64N\(pause/(\d+)\+1\)`},
	"renewal":       {"sidecar/locktable/renewal.go", `ceilDiv\(set\+lease/(\d+), cell\)`},
	"reserveEarly":  {"sidecar/locktable/claim/want.go", `w\.Tokens/(\d+)\)`},
	"spareCells":    {"sidecar/locktable/renewal.go", `/cell \+ (\d+)`},
	"unrenewable":   {"sidecar/locktable/hold.go", `validUntil\(h\.lock\)\) - int64\(t\.cfg\.Lease\)/(\d+)`},
	"unreserved":    {"sidecar/locktable/user.go", `max\(1, limit/(\d+)\)\) }\n\n// limits`},
	"userShare":     {"sidecar/locktable/user.go", `max\(1, limit/(\d+)\)\) }\n\n// Unreserved`},
	"waitPart":      {"sidecar/store/pipeline/durable.go", `time\.Millisecond/(\d+), minWait`},
	"wayTrips":      {"sidecar/locktable/contest/config.go", `return (\d+)\*s\.trip \+ int64\(time\.Millisecond\)`},
	"windowOf":      {"sidecar/store/wire/encode.go", `int64\(op\.LeaseMS\)\*1e6/(\d+)\*\d`},
	"windowParts":   {"sidecar/store/wire/encode.go", `int64\(op\.LeaseMS\)\*1e6/\d\*(\d+)`},
}

var places = []place{
	{"docs/queue.md", `draws {redisop.PassedTokens} fencing tokens, and then publishes`},
	{"docs/queue.md", `the next ticket is tried, up to {redisop.MaxOffers} in one script`},
	{"docs/queue.md", `A ticket whose sidecar has not asked for {redisop.MaxSilence} is removed`},
	{"docs/queue.md", `sends this Take again every {contest.Config.Poll} or each {part(code.refresh)} of its lease if less, and at random up to a {part(code.refreshLater)} later`},
	{"docs/queue.md", `It is the first {wire.originDigits} digits of the run id`},
	{"docs/queue.md", `when a {part(code.lingerEnd)} of the lease is left`},
	{"docs/queue.md", `Both expire {long(redisop.QueueExpiry)} after their last use`},
	{"docs/queue.md", `They expire after {long(lookup.HostExpiry)}.`},
	{"docs/queue.md", `looks alive until its ticket is {redisop.MaxSilence} old`},
	{"docs/queue.md", `- After {redisop.FreeAfter}, with the next release or the one after it. It is for {redisop.FreeFor} if a client is subscribed to the lock's channel, else for {redisop.FreeForAlone}.`},
	{"docs/queue.md", `- After {contest.Config.PollerTime} for {long(contest.Config.ForeignMemory)} after`},
	{"docs/queue.md", `- After {redisop.FreeAfterSubscribed}, with the next release, for {redisop.FreeFor}, if a client is subscribed`},
	{"docs/queue.md", `at most {word(code.wayTrips)} short round trips and 1 ms`},
	{"docs/queue.md", `backs off for as long, or for {contest.Config.Backoff} if it knows of a program that polls`},
	{"docs/queue.md", `each further one {ns(contest.expirySpacing)} after the one before it. Otherwise it is noticed after {contest.Config.Poll + contest.Config.Poll/code.refreshLater} at most`},
	{"docs/queue.md", `| the reconnect ({link.backoffMax*5/4}, and`},
	{"docs/queue.md", `the first ticket recalls again | {contest.Config.Poll + contest.Config.Poll/code.refreshLater} |`},
	{"docs/queue.md", `| for {redisop.MaxSilence} after its last sign of life it may get the lock`},
	{"docs/queue.md", `a lease for all such hosts, if it is {redisop.MaxSilence} or longer`},
	{"docs/queue.md", `keeps number and lease | {contest.Config.Poll + contest.Config.Poll/code.refreshLater} ·`},
	{"docs/queue.md", `(guarantees.md#when-something-happens-to-redis)) | {contest.Config.Poll + contest.Config.Poll/code.refreshLater}, and the order |`},
	{"docs/queue.md", `clock jumps ahead by more than {redisop.MaxSilence}; restart of Redis with its data | tickets older than {redisop.MaxSilence}, or`},
	{"docs/queue.md", `(decisions/0041-origins.md) | {contest.Config.Poll + contest.Config.Poll/code.refreshLater} |`},

	{"docs/renewals.md", `a lease of {sidecar.DefaultLease}.`},
	{"docs/renewals.md", `due a {part(code.renewal)} of the lease ({sidecar.DefaultLease/code.renewal}) after`},
	{"docs/renewals.md", `a {part(code.cells)} of the lease ({s(sidecar.DefaultLease/code.cells)} s), at least {locktable.wheelTick}.`},
	{"docs/renewals.md", `{redisop.RenewalGroupSize} neighbouring hold numbers are a renewal group`},
	{"docs/renewals.md", `in a period of {code.cells/code.renewal + code.spareCells} cells ({(code.cells/code.renewal + code.spareCells) * sidecar.DefaultLease/code.cells})`},
	{"docs/renewals.md", `with every lease from {s(sidecar.minLease)} s to {long(sidecar.maxLease)}`},
	{"docs/renewals.md", `by less than three cells, a {part(code.cells/3)} of the lease ({3*sidecar.DefaultLease/code.cells})`},
	{"docs/renewals.md", `At most {locktable.renewalsPerTick} renewals begin in a tick of the wheel ({locktable.wheelTick})`},
	{"docs/renewals.md", `a renewal is at most {7*sidecar.DefaultLease/code.cells/2} late`},
	{"docs/renewals.md", `but not more often than each {ns(locktable.minCheckInterval)}`},
	{"docs/renewals.md", `before all other operations, {pipeline.laneTurn} of each user in turn. One script renews up to {wire.RunMax} locks`},
	{"docs/renewals.md", "`HLEN`, in one renewal of {word(wire.LookEvery)} and in each check"},
	{"docs/renewals.md", `A script for {code.batchTime} locks and more has one`},
	{"docs/renewals.md", `those in one window of {word(wire.LookEvery)}, each {word(code.windowParts)} {part(code.windowOf)}s of the lease long`},
	{"docs/renewals.md", `noticed after {(wire.LookEvery+1)*code.windowParts/code.windowOf} leases at the latest`},
	{"docs/renewals.md", `the table repeats it after {locktable.reservePause}, and renews`},
	{"docs/renewals.md", `The daemon repeats the renewal each {locktable.Config.RetryAfter}, and gives the hold up when a {part(code.unrenewable)} of the lease is left`},
	{"docs/renewals.md", `given up an {part(code.deadlineParts/code.givenUpEarly)} of the lease before`},
	{"docs/renewals.md", `with less than {part(code.late)} of the lease left`},

	{"docs/guarantees.md", `wait for the daemon for {locksidecar.defaultPatience} (in Python an acquire for its timeout, but {code.pythonConnect} to {locksidecar.defaultPatience})`},
	{"docs/guarantees.md", `wait for the daemon for {code.pythonPatient} s (in Python`},
	{"docs/guarantees.md", "renews its locks for {long(sidecar.DefaultResumeWithin)} (`resume_within`)"},
	{"docs/guarantees.md", `the daemon detects that within {sidecar.endpointInterval} in these cases`},
	{"docs/guarantees.md", `each release that was sent before, within {sidecar.drainWithin}`},
	{"docs/guarantees.md", `One of up to {s(locktable.minCheckInterval)} s is not checked`},
	{"docs/guarantees.md", `within {ns(claim.hotSyncDelay + locktable.wheelTick)} and a round trip`},
	{"docs/guarantees.md", `if a local process has waited for {contest.Config.WatchAfter}, and`},
	{"docs/guarantees.md", "gets `stolen` within {(wire.LookEvery+1)*code.windowParts/code.windowOf} leases"},
	{"docs/guarantees.md", `it may be passed the lock for {redisop.MaxSilence}, and then`},
	{"docs/guarantees.md", `It is served after {peers.commandTimeout}.`},
	{"docs/guarantees.md", `late by at most a {part(2*code.cells)} of the lease`},
	{"docs/guarantees.md", `The log has the first {word(loglimit.maxLines)} lines of a kind for one user in {loglimit.window}`},
	{"docs/guarantees.md", `and {loglimit.maxAuditLines} in {loglimit.window} by others`},
	{"docs/guarantees.md", `{peers.reservedFDs} are reserved for Redis`},
	{"docs/guarantees.md", `when their leases end, {sidecar.DefaultLease} by default`},

	{"docs/redisson.md", `and that of an ` + "`RFairLock`" + `, within {contest.Config.Poll + contest.Config.Poll/code.refreshLater}`},
	{"docs/redisson.md", `finds it free after {redisop.FreeAfter} at the latest`},
	{"docs/redisson.md", `finds it free each {redisop.FreeAfter}. For {long(contest.Config.ForeignMemory)} after a sidecar found its field, it is each {contest.Config.PollerTime}, and the sidecar hands the lock on locally for at most {contest.Config.HandoffTime}`},
	{"docs/redisson.md", `by up to some {locktable.Config.Tokens + locktable.Config.Tokens/code.reserveEarly}: it reads the counter`},

	{"docs/policy.md", `There can be {policy.MaxEntries}, in the`},
	{"docs/policy.md", `or one of the first {protocol.MaxWaiters} waiters`},
	{"docs/policy.md", `longer leases of clients are refused | {protocol.MaxDurationMS/3600000}h |`},
	{"docs/policy.md", `or {word(sidecar.pacedRequests)} a second of each connection`},
	{"docs/policy.md", `A new connection counts as {word(intake.connectRequests+1)}.`},
	{"docs/policy.md", `The log has {word(loglimit.maxLines)} refusals of a kind for each user in {loglimit.window}`},

	{"docs/topologies.md", `the daemon also asks all each {link.sentinelInterval}.`},
	{"docs/topologies.md", `A new one is made for {ns(sentinel.trustLast)}, to the same process`},
	{"docs/topologies.md", `answer**, in {word(sentinel.missesReported)} rounds`},
	{"docs/topologies.md", `after {ns(sentinel.failoverSilence)} without an answer of it`},
	{"docs/topologies.md", `t is a {part(code.waitPart)} of the shortest lease of the batch, {ms(pipeline.minWait)} to {pipeline.maxWait}`},
	{"docs/topologies.md", `The daemon repeats each after {locktable.Config.RetryAfter}`},
	{"docs/topologies.md", `looks each {each(sidecar.probeInterval)}, and each {pipeline.probeDegraded} while degraded`},
	{"docs/topologies.md", `at the start, each {each(cluster.topologyInterval)}, after a`},
	{"docs/topologies.md", `asks again after {s(redisop.TopologyRetry.shortest)} to {redisop.TopologyRetry.longest}. The more hosts and nodes, the later: all hosts need {100/redisop.TopologyRetry.share} % of each master`},
	{"docs/topologies.md", "With `other_hosts = \"none\"` it is {redisop.TopologyRetry.longest}."},
	{"docs/topologies.md", `open for more than {cluster.openAfter}** is reported`},
	{"docs/topologies.md", `waits up to {s(locktable.Config.TryWithin)} s at the others, if more than {sidecar.maxUnsent} operations wait`},
	{"docs/topologies.md", `Up to {cluster.MaxShards} masters are connected`},
	{"docs/topologies.md", `an {part(code.deadlineParts/code.givenUpEarly)} of the lease early`},
	{"docs/topologies.md", `within {pipeline.IdlePing} if nothing uses it`},
	{"docs/topologies.md", `tries again after {link.backoffMin} to {link.backoffMax}`},

	{"docs/architecture.md", `Every {sidecar.endpointInterval}, another goroutine`},
	{"docs/architecture.md", `for {sidecar.requestTime} of a step`},
	{"docs/architecture.md", `While more than {sidecar.maxUnsent} operations wait to be sent to Redis, no requests are executed, unless Redis has returned nothing for {locktable.Config.TryWithin}`},
	{"docs/architecture.md", `If a local waiter has waited for {contest.Config.WatchAfter}, the table`},
	{"docs/architecture.md", `checks the key within {ns(claim.checkPause)} of a message`},
	{"docs/architecture.md", `a Take draws one token, or {locktable.Config.Tokens} if the lock is hot`},
	{"docs/architecture.md", `A transfer brings {redisop.PassedTokens}.`},
	{"docs/architecture.md", `only if it was longer than {locktable.NotableHold}, or than {locktable.BlockingHold} while requests waited`},
	{"docs/architecture.md", `makes it in parts of {sidecar.surveyPart} locks, in a {part(sidecar.surveyShare)} of the loop's time`},
	{"docs/architecture.md", `After {pipeline.IdlePing} of silence`},
	{"docs/limits.md", `| a connection | {sidecar.maxQueued} requests in the inbox |`},
	{"docs/limits.md", `| a connection | {KiB(sidecar.maxUnread)} of unread answers, or {KiB(sidecar.lessUnread)} while all have {MiB(sidecar.maxUnreadAll)} |`},
	{"docs/limits.md", `| a connection | {sidecar.maxConnQuestions} questions to other hosts without an answer |`},
	{"docs/limits.md", `| {otherhosts.maxAskedOwners} other hosts that have permits of a semaphore are asked |`},
	{"docs/limits.md", `| a process | {intake.maxQueuedOfProcess} requests in the inbox |`},
	{"docs/limits.md", `| a process | {ns(intake.processQuantum)} of the loop in a turn |`},
	{"docs/limits.md", `| a user | {ns(intake.userQuantum)} of the loop in a turn |`},
	{"docs/limits.md", `| a user | three {part(code.userShare)}s of the sessions, connections, locks, waiters, questions and event requests |`},
	{"docs/limits.md", `| a user | {sidecar.DefaultMaxNewNames} new names a second, on average over {long(locktable.namesWithin)} |`},
	{"docs/limits.md", `| a user | {pipeline.laneTurn} operations in a turn of those that wait for Redis |`},
	{"docs/limits.md", `| a user | {loglimit.maxLines} log lines of a kind in {loglimit.window} |`},
	{"docs/limits.md", `| a user | {eventlog.maxUserEvents} of the {eventlog.maxEvents} events of a class |`},
	{"docs/limits.md", `| a session | {sidecar.DefaultMaxHolds} holds |`},
	{"docs/limits.md", `| a session | {sidecar.DefaultMaxWaiters} waiters |`},
	{"docs/limits.md", `read at {code.paceTimes} times its rate, or {sidecar.pacedRequests} requests a second |`},
	{"docs/limits.md", `| the daemon | {sidecar.DefaultMaxSessions} sessions, and {sidecar.spareConns} connections more |`},
	{"docs/limits.md", `| the daemon | {sidecar.DefaultMaxLocks} locks, and as many waiters |`},
	{"docs/limits.md", `| the daemon | {otherhosts.maxQuestions} questions to other hosts without an answer |`},
	{"docs/limits.md", `| the daemon | {otherhosts.maxUnansweredQuestions} questions of other hosts in the inbox, and {otherhosts.maxAnswers} answers a second |`},
	{"docs/limits.md", `| the daemon | {sidecar.maxFollowers} requests that wait for events |`},
	{"docs/limits.md", `| the daemon | {sidecar.maxGathering} requests for metrics at a time |`},
	{"docs/limits.md", `| a step | {sidecar.requestTime} of requests |`},
	{"docs/limits.md", `| a step | no request while more than {sidecar.maxUnsent} operations wait for Redis |`},
	{"docs/limits.md", `| a step | {locktable.Config.MaxWork} locks of a backlog |`},
	{"docs/limits.md", `| a step | {intake.maxUnlocked} releases of a lock that are published in a row |`},
	{"docs/limits.md", `| a step | {intake.maxOwnMessages} other messages |`},
	{"docs/limits.md", `| a connection to Redis | {pipeline.maxFlight} operations in flight |`},
	{"docs/limits.md", `| a connection to Redis | {pipeline.nearCalls} commands in flight, if a round trip takes less than {ns(pipeline.nearRTT)} |`},
	{"docs/limits.md", `| a connection to Redis | {pipeline.maxQueryCalls} commands of queries in flight, and {pipeline.maxQueries} queries that wait |`},
	{"docs/limits.md", `| a run of a script | {wire.RunMax} locks |`},
	{"docs/limits.md", `| a slot of a Cluster | {cluster.maxMoves} moves by MOVED in {ns(cluster.movesWindow)} |`},

	{"docs/glossary.md", `returned none for {locktable.Config.TryWithin}.`},

	{"docs/metrics.md", `answers within {monitor.statsTimeout}; else 503`},
	{"docs/metrics.md", `tries again every {sidecar.metricsRetry}.`},
	{"docs/metrics.md", `idle for {monitor.idleTimeout}, sends no request in {monitor.requestTimeout}, or does not read its answer in {monitor.answerTimeout}. A new one above {monitor.maxConns} takes`},
	{"docs/metrics.md", `waited for longest, at least {monitor.headStart}, of the party`},
	{"docs/metrics.md", `{monitor.maxRecent} rows of the newest {monitor.maxFolded} events other than`},
	{"docs/metrics.md", `the {locktable.maxRanked} locks with the most waiters`},
	{"docs/metrics.md", `first {protocol.MaxWaiters} waiters, and to its newest {monitor.maxHistory} events`},
	{"docs/metrics.md", `loads itself each {monitor.refreshSeconds} s (`},
	{"docs/metrics.md", `answered this scrape within {monitor.statsTimeout}.`},
	{"docs/metrics.md", `if for more than {cluster.openAfter}. At most {monitor.maxSlotLabels} slots have a series`},
	{"docs/metrics.md", `in the last round of questions, each {link.sentinelInterval}.`},

	{"docs/pipe.md", `more than {MiB(cmd.longestLine)}, or needs a frame above {protocol.MaxFrame} bytes`},

	{"deploy/README.md", `finds within {pipeline.IdlePing} that an idle connection leads to a replica`},
	{"deploy/README.md", `starts within the lease ({sidecar.DefaultLease} by default)`},
	{"deploy/README.md", `- Every {sidecar.endpointInterval} the daemon looks`},
	{"deploy/README.md", `the first {word(loglimit.maxLines)} such lines in {loglimit.window}`},
	{"deploy/README.md", `If that takes longer than {peers.commandTimeout}, the process`},

	{"docs/scaling.md", `| a connection with data to read | {ns(sim.costArrival)} |`},
	{"docs/scaling.md", `| a batch of up to {wire.RunMax} Takes and Drops | {ns(sim.costRun)} more |`},
	{"docs/scaling.md", `asserts a hold after a data loss | {ns(sim.costTake)}; {ns(sim.costAssert)} more |`},
	{"docs/scaling.md", `finds its ticket | {ns(sim.costOther)}; {ns(sim.costEnqueue)}; {ns(sim.costAsk)} more |`},
	{"docs/scaling.md", `| {ns(sim.costDrop)} more, and {ns(sim.costListener)} for each subscribed program |`},
	{"docs/scaling.md", `| {ns(sim.costPass)} more, and {ns(sim.costListener)} for the message; {ns(sim.costArrival+sim.costRun+sim.costEnqueue+sim.costPass+sim.costListener)} in all if`},
	{"docs/scaling.md", `| a batch of up to {wire.RunMax} renewals | {ns(sim.costRenew)} more, and {ns(sim.costKey)} for each lock |`},
	{"docs/scaling.md", `| a sidecar that connects | {ns(sim.costConnect)} |`},
	{"docs/scaling.md", `a Take every {s(contest.Config.Poll)} to {contest.Config.Poll + contest.Config.Poll/code.refreshLater} each`},
	{"docs/scaling.md", `all hosts connect within {link.backoffMax*5/4}`},
	{"docs/scaling.md", `Other hosts learn within {cluster.topologyInterval*5/4}`},

	{"protocol/SPEC.md", `# The locksidecar protocol, version {protocol.Version}`},
	{"protocol/SPEC.md", `big-endian, 1 to {protocol.MaxFrame})`},
	{"protocol/SPEC.md", `if it nests at most {protocol.MaxDepth} arrays and maps deep`},
	{"protocol/SPEC.md", `at most {protocol.maxNesting-protocol.MaxDepth} deep. One of the wrong type nests at most {protocol.MaxDepth} deep`},
	{"protocol/SPEC.md", `While {sidecar.maxConnQuestions} of the last kind have no answer`},
	{"protocol/SPEC.md", "`client` (str, ≤ {protocol.MaxClient} bytes"},
	{"protocol/SPEC.md", "`resume` (str, ≤ {protocol.MaxTicket} bytes"},
	{"protocol/SPEC.md", "`ticket` (str, ≤ {protocol.MaxTicket} bytes"},
	{"protocol/SPEC.md", `or no frame for {protocol.HelloTimeout} is`},
	{"protocol/SPEC.md", "`name` (str, required): 1 to {protocol.MaxName} bytes"},
	{"protocol/SPEC.md", `how long to wait, up to {protocol.MaxDurationMS} ({protocol.MaxDurationMS/86400000} days)`},
	{"protocol/SPEC.md", `fixed lease, {protocol.MinLeaseMS} to {protocol.MaxDurationMS}:`},
	{"protocol/SPEC.md", `this long after its grant, 1 to {protocol.MaxDurationMS}.`},
	{"protocol/SPEC.md", `the lock is kept this much longer, up to {protocol.MaxCrashDelayMS}.`},
	{"protocol/SPEC.md", `however the hold ends, up to {protocol.MaxKeepMS} ({protocol.MaxKeepMS/86400000} day)`},
	{"protocol/SPEC.md", `If it is below {locktable.Config.TryWithin}, an acquire waits for the answer of Redis until {locktable.Config.TryWithin} after its arrival`},
	{"protocol/SPEC.md", `or has owed an answer for {locktable.Config.TryWithin}.`},
	{"protocol/SPEC.md", `owner field, cut at {protocol.MaxField} bytes`},
	{"protocol/SPEC.md", `the slot of the name, up to {protocol.MaxSlot}`},
	{"protocol/SPEC.md", `the first {protocol.MaxWaiters}: `},
	{"protocol/SPEC.md", "`cmd` is the command line, at most {protocol.MaxCmd} bytes"},
	{"protocol/SPEC.md", `has not sent its last claim {long(sidecar.DefaultResumeWithin)} (configurable) after the restart`},
	{"protocol/SPEC.md", `It SHOULD wait {locksidecar.firstPause} before the second attempt, twice as long before each further one, and {locksidecar.longestPause} at most`},
	{"protocol/SPEC.md", `the longest pause is {locksidecar.lookPause}, and {locksidecar.rarePause} after a minute`},
	{"protocol/SPEC.md", `There are 0 to {protocol.MaxClaims} holds in one frame`},
	{"protocol/SPEC.md", `in pages of mine, {protocol.MaxClaims} holds each`},
	{"protocol/SPEC.md", `answered up to {sidecar.eventDelay} after an event`},
	{"protocol/SPEC.md", "`limit` ({sidecar.maxFollowers} requests of all clients wait)"},
	{"protocol/SPEC.md", `after a wait of at least {sidecar.longWait}.`},
	{"protocol/SPEC.md", `a hold of at least {locktable.NotableHold} was released, or one of at least {locktable.BlockingHold} while requests waited`},
	{"protocol/SPEC.md", `perhaps only the first {sidecar.maxCrashed} of a session`},
	{"protocol/SPEC.md", `if again in the same way within {long(eventlog.countWithin)}`},
	{"protocol/SPEC.md", `between masters for more than {cluster.openAfter}, or`},
	{"protocol/SPEC.md", "`released` after less than {locktable.NotableHold};"},
	{"protocol/SPEC.md", `A user that has more than {part(eventlog.maxEvents/eventlog.maxUserEvents)} of a class`},
	{"protocol/SPEC.md", `keeps the newest {eventlog.maxEvents} of each class`},
	{"protocol/SPEC.md", `those in trouble first, at most {protocol.MaxShards};`},
	{"protocol/SPEC.md", `watchdog holds with less than {part(code.late)} of their lease left`},
	{"protocol/SPEC.md", "host and port of the master, at most {protocol.MaxField} bytes"},
	{"protocol/SPEC.md", "`redis` is cut at {protocol.MaxReason} bytes"},
	{"protocol/SPEC.md", `what they published in Redis, for at most {otherhosts.DefaultAskWithin}`},
	{"protocol/SPEC.md", "`host` in a request (str, at most {protocol.MaxClient} bytes)"},
	{"protocol/SPEC.md", `is listed for {spelled(lookup.HostExpiry)} more`},
	{"protocol/SPEC.md", `answers within {otherhosts.whoTimeout}, from Redis`},
	{"protocol/SPEC.md", "of `permits` and `read_write` the first {protocol.MaxOwners};"},
	{"protocol/SPEC.md", `the first {protocol.MaxOwners} places in their order`},
	{"protocol/SPEC.md", `the oldest {protocol.MaxWaiters} of these`},
	{"protocol/SPEC.md", "the oldest {protocol.MaxPerHost}, {protocol.MaxWaiters} in all, with `cmd` cut at {protocol.MaxClient} bytes"},
	{"protocol/SPEC.md", "- `of` (1 to {protocol.MaxPermits}, required)"},
	{"protocol/SPEC.md", `The answer comes within {otherhosts.whoTimeout + otherhosts.orphanTimeout}`},
	{"protocol/SPEC.md", `one sentence for people, at most {protocol.MaxMessage} bytes`},
	{"protocol/SPEC.md", `that it reads within {sidecar.drainWithin}, without an answer`},
	{"protocol/SPEC.md", `- {sidecar.DefaultMaxSessions} sessions; in each {sidecar.DefaultMaxHolds} holds, and {sidecar.DefaultMaxWaiters} waiters`},
	{"protocol/SPEC.md", `- {sidecar.DefaultMaxLocks} locks in all`},
	{"protocol/SPEC.md", `A name of more than {code.cellName} bytes counts as two, and as one more for each further {code.cellMore} bytes`},
	{"protocol/SPEC.md", `- {sidecar.DefaultMaxNewNames} names that one user locks in a second for the first time, on average over {spelled(locktable.namesWithin)}`},
	{"protocol/SPEC.md", `three {part(code.userShare)}s of the sessions`},
	{"protocol/SPEC.md", `The last {part(code.unreserved)} of each is for root`},
	{"protocol/SPEC.md", `each waits, for up to {long(intake.longestPause)} at a time`},
}

// placeholder is a number of a place.
var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// expand returns a place with the numbers of the code.
func (c *constants) expand(p place) string {
	return placeholder.ReplaceAllStringFunc(p.text, func(in string) string { return c.text(in[1 : len(in)-1]) })
}

// compare returns what is wrong with a place of a page; "": nothing.
func (c *constants) compare(p place, page string) string {
	want := c.expand(p)
	if strings.Contains(page, want) {
		return ""
	}
	pattern := ""
	for i, words := range placeholder.Split(p.text, -1) {
		if i > 0 {
			pattern += `[^\n]{1,30}?`
		}
		pattern += regexp.QuoteMeta(words)
	}
	if has := regexp.MustCompile(pattern + `\S*`).FindString(page); has != "" {
		return fmt.Sprintf("%s has\n\t%s\nand by the code it is\n\t%s", p.page, has, want)
	}
	return fmt.Sprintf("%s does not have\n\t%s\nIf the sentence was changed, change it in tests/repository/numbers_test.go, too", p.page, want)
}

// A number of a page that is a constant of the code is that constant.
func TestNumbersOfPagesAreThoseOfTheCode(t *testing.T) {
	code := readConstants(t)
	for _, p := range places {
		if problem := code.compare(p, read(t, filepath.Join(root, p.page))); problem != "" {
			t.Error(problem)
		}
	}
	for name := range inline {
		if !code.used[name] {
			t.Errorf("no place has code.%s", name)
		}
	}
}

// Each limit of docs/limits.md is compared with the code, and the file or folder that it names exists.
func TestEachLimitIsThatOfTheCode(t *testing.T) {
	code := readConstants(t)
	page := read(t, filepath.Join(root, "docs", "limits.md"))
	rest := page
	for _, p := range places {
		if p.page == "docs/limits.md" {
			rest = strings.ReplaceAll(rest, code.expand(p), "")
		}
	}
	rows := 0
	for line := range strings.Lines(rest) {
		if !strings.Contains(line, " | ") || strings.HasPrefix(line, "| of ") {
			continue
		}
		rows++
		if number := regexp.MustCompile(`\d`).FindString(line); number != "" {
			t.Errorf("docs/limits.md has a number that is compared with none of the code: %s", line)
		}
		for _, file := range regexp.MustCompile("`(sidecar/[^`]*)`").FindAllStringSubmatch(line, -1) {
			if _, err := os.Stat(filepath.Join(root, file[1])); err != nil {
				t.Error(err)
			}
		}
	}
	if rows == 0 {
		t.Error("docs/limits.md has no limit")
	}
}

func TestANumberThatIsNotThatOfTheCodeIsFound(t *testing.T) {
	code := readConstants(t)
	p := place{"page.md", "asks each {contest.Config.Poll}, for {long(redisop.QueueExpiry)}, {protocol.MaxClaims} times"}
	for page, want := range map[string]string{
		"It asks each 5 s, for 10 minutes, 4,096 times.": "",
		"It asks each 6 s, for 10 minutes, 4,096 times.": "page.md has\n\tasks each 6 s, for 10 minutes, 4,096 times.\nand by the code it is\n\tasks each 5 s, for 10 minutes, 4,096 times",
		"It asks now and then.":                          "page.md does not have\n\tasks each 5 s, for 10 minutes, 4,096 times\nIf the sentence was changed, change it in tests/repository/numbers_test.go, too",
	} {
		if got := code.compare(p, page); got != want {
			t.Errorf("%s\n%s", page, got)
		}
	}
}
