package wire

import (
	_ "embed"
	"regexp"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The source of the scripts. The one that takes and drops locks is in several files, which are
// joined when the program starts, and share their locals: see acquireReleaseText.
var (
	//go:embed scripts/head.lua
	headText string
	//go:embed scripts/ownership.lua
	OwnershipText string
	//go:embed scripts/tokens.lua
	tokensText string
	//go:embed scripts/messages.lua
	messagesText string
	//go:embed scripts/queue.lua
	queueText string
	//go:embed scripts/take.lua
	takeText string
	//go:embed scripts/drop.lua
	dropText string
	//go:embed scripts/main.lua
	mainText string
	//go:embed scripts/renew.lua
	renewText string
	//go:embed scripts/permits.lua
	permitsText string
	//go:embed scripts/rw.lua
	rwText string
	//go:embed scripts/arrive.lua
	arriveText string
	//go:embed scripts/permissions.lua
	permissionsText string
)

// AcquireReleaseText joins the files of the script that takes and drops locks. What they do with
// queues is in one function, define_queues: queue.lua, and what take.lua and drop.lua have above
// the line queuesAbove. Redis pays in each run for each function that a script defines, and
// nearly no run needs these.
func AcquireReleaseText() string {
	withQueue := func(text string) (inQueues, rest string) {
		_, body, _ := strings.Cut(text, "\n\n") // without its head
		inQueues, rest, found := strings.Cut(body, queuesAbove)
		if !found {
			panic("store: a script has no line " + queuesAbove)
		}
		return inQueues, rest
	}
	queuedTake, take := withQueue(takeText)
	queuedDrop, drop := withQueue(dropText)
	return scriptText(headText, OwnershipText, tokensText, drop,
		"local function define_queues()\n", messagesText, queueText, queuedTake, queuedDrop,
		"return {refuse = refuse, in_order = in_order, leave = leave, drop = drop, words_of = words_of}\nend\n",
		take, mainText)
}

const queuesAbove = "-- ^ in define_queues ^\n"

// PermitsText joins the files of the script for permits.
func PermitsText() string { return withShared(permitsText, OwnershipText, messagesText) }

// ReadWriteText joins the files of the script for read/write locks.
func ReadWriteText() string { return withShared(rwText, OwnershipText, tokensText, messagesText) }

// withShared joins a script and files that it shares with others. What it has above its line sharedBelow is what these use.
func withShared(text string, shared ...string) string {
	above, rest, found := strings.Cut(text, sharedBelow)
	if !found {
		panic("store: a script has no line " + sharedBelow)
	}
	return scriptText(above, strings.Join(shared, ""), rest)
}

const sharedBelow = "-- ^ before the shared files ^\n"

// scriptText joins parts of a script, and puts in the numbers that it has by name. A name costs
// Redis nothing in a run. With another number the script has another digest.
func scriptText(parts ...string) string {
	return scriptName.ReplaceAllStringFunc(strings.Join(parts, ""), func(name string) string {
		n, ok := scriptNumbers[name]
		if !ok {
			panic("store: a script names " + name + ", which has no number")
		}
		return strconv.FormatInt(n, 10)
	})
}

// scriptName matches the name of a number in a script, also in one of its texts.
var scriptName = regexp.MustCompile(`\b(policy|code|wait|recall|subscribers)\.[a-z_]+\b`)

var scriptNumbers = map[string]int64{
	"policy.free_after_subscribed_ms": redisop.FreeAfterSubscribed.Milliseconds(),
	"policy.free_after_ms":            redisop.FreeAfter.Milliseconds(),
	"policy.free_for_ms":              redisop.FreeFor.Milliseconds(),
	"policy.free_for_alone_ms":        redisop.FreeForAlone.Milliseconds(),
	"policy.passed_tokens":            redisop.PassedTokens,
	"policy.passed_tokens_old":        redisop.PassedTokensOld,
	"policy.max_silence_us":           redisop.MaxSilence.Microseconds(),
	"policy.max_offers":               redisop.MaxOffers,
	"policy.max_readers":              redisop.MaxReaders,
	"policy.max_recalls":              redisop.MaxRecalls,
	"policy.queue_expiry_ms":          redisop.QueueExpiry.Milliseconds(),

	"wait.none":     int64(waitNone),
	"wait.queued":   int64(waitQueued),
	"wait.in_order": int64(waitInOrder),
	"wait.arrived":  int64(waitArrived),

	"code.taken":       int64(CodeTaken),
	"code.missing":     int64(CodeMissing),
	"code.differs":     int64(CodeDiffers),
	"code.held":        int64(CodeHeld),
	"code.queued":      int64(CodeQueued),
	"code.free":        int64(CodeFree),
	"code.free_queued": int64(CodeFreeQueued),
	"code.dropped":     int64(CodeDropped),
	"code.passed":      int64(CodePassed),
	"code.paused":      int64(CodePaused),
	"code.arrived":     int64(CodeArrived),
	"code.not_a_lock":  int64(CodeNotALock),
	"code.refused":     int64(CodeRefused),
	"code.permitted":   int64(CodePermitted),
	"code.wanted":      int64(CodeWanted),
	"code.later":       int64(CodeLater),
	"code.shares":      int64(CodeShares),
	"code.away":        int64(CodeAway),

	"recall.none":     int64(redisop.NotRecalled),
	"recall.received": int64(redisop.RecallReceived),
	"recall.missed":   int64(redisop.RecallMissed),

	"subscribers.uncounted":   int64(redisop.Uncounted),
	"subscribers.counted":     int64(redisop.Counted),
	"subscribers.uncountable": int64(redisop.Uncountable),
	"subscribers.unpublished": int64(redisop.Unpublished),
}
