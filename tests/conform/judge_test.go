package conform

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/conform"
	"github.com/locksidecar/locksidecar/tests/harness"
)

var playAll = flag.Bool("judge", false, "play the scenes of all faults, not of each fifth one; .ci/nightly does")

// A fault is a change of the TypeScript client that breaks rules of the protocol. Each of the
// scenes has to fail.
type fault struct {
	rule     string // that is broken
	file     string // a compiled one, without .js
	old, new string // old occurs once
	scenes   string // their names, or the beginnings of their names with a slash at the end
}

var faults = []fault{
	{"hello has v 1", "client", "v: 1, client", "v: 2, client", "hello/first"},
	{"an error code has its error", "errors", "unsupported: UnsupportedError", "unsupported: LimitError", "hello/refused"},
	{"the version is checked", "client", "if (version !== 1n)", "if (false)", "hello/other-version"},
	{"the clocks are compared", "client", "now > boottime() || now < this.helloSentAt - SECOND", "false", "hello/clock-ahead hello/clock-behind"},
	{"hello is resumable", "client", "resumable: true", "resumable: undefined", "hello/not-resumable"},
	{"close ends the holds", "client", "this.loseAll(this.closed);", "", "close/gives-up-holds"},
	{"one release for each entry", "lock", "hold.holder.sendRelease(hold);", "hold.holder.sendRelease(hold); hold.holder.sendRelease(hold);", "lock/grant-and-release permits/grant-and-release permits/two-holds"},
	{"a try sends wait_ms 0", "client", "wait_ms = Math.ceil(timeout);", "wait_ms = Math.ceil(timeout) || undefined;", "lock/try"},
	{"wait_ms is what was given", "client", "Math.max(1, Math.min(left, call.fields.wait_ms))", "2 * call.fields.wait_ms", "lock/wait"},
	{"tokens have 63 bits", "protocol", "decode(bytes, { useBigInt64: true })", "decode(bytes)", "lock/token"},
	{"lease_ms is sent", "client", "lease_ms: options.leaseMs", "lease_ms: undefined", "lock/lease deadline/lease-event-fixed"},
	{"max_hold_ms is sent", "client", "max_hold_ms: options.maxHoldMs", "max_hold_ms: undefined", "lock/max-hold"},
	{"crash_delay_ms is sent", "client", "crash_delay_ms: options.crashDelayMs", "crash_delay_ms: undefined", "lock/crash-delay"},
	{"keep_ms is sent", "client", "keep_ms: options.keepMs", "keep_ms: undefined", "lock/keep"},
	{"msg may be absent", "client", `err.has("msg") ? err.text("msg") : ""`, `err.text("msg")`, "lock/errors"},
	{"a handle is released once", "lock", "this.released = true;", "", "lock/second-release permits/two-holds"},
	{"answers are matched by id", "client", "const call = this.calls.get(id);\n        if (call === undefined)\n            return; // a page", "const call = [...this.calls.values()][0]; id = call?.id;\n        if (call === undefined)\n            return; // a page", "lock/answers-in-any-order"},
	{"the owner is sent", "client", "owner: options.owner", "owner: undefined", "lock/owners"},
	{"a frame may arrive in pieces", "protocol", "if (this.buffer.length < 4 + length)\n            return undefined;", "", "frames/byte-by-byte"},
	{"ignored fields may nest 8 deep", "protocol", "const MAX_DEPTH = 8;", "const MAX_DEPTH = 7;", "frames/unusual"},
	{"a lost event ends the hold", "client", "hold.lose(hold.lost(reason));", "", "lost/reasons lost/with-the-grant lost/notified resume/lost-meanwhile permits/lost permits/notified"},
	{"a lost event of another hold is ignored", "client", "if (hold !== undefined) {\n                    this.holds.delete", "if (true) {\n                    this.holds.delete", "lost/reasons cancel/lost-grant"},
	{"the reason of a loss is reported", "client", "hold.lose(hold.lost(reason));", `hold.lose(hold.lost("?"));`, "lost/reasons deadline/late-lost-event permits/lost"},
	{"a loss is reported", "lock", "this.controller.abort(why);", "", "lost/notified deadline/notified permits/notified"},
	{"a hold ends at its deadline", "lock", "if (this.ended !== undefined || boottime() < this.end)", "if (true)", "deadline/passes deadline/lease-event deadline/max-hold deadline/notified hang/deadline resume/orphan-expires permits/deadline"},
	{"a released hold is not claimed", "client", "if (hold.entries === 0 || hold.ended !== undefined)\n            this.holds.delete(hold.number);", "", "resume/released-meanwhile claims/released-meanwhile confirm/resumed permits/claims"},
	{"a lease event moves deadlines", "client", "hold.extend(deadline);\n                break", "break", "deadline/lease-event deadline/late-lease-event resume/lease-event permits/lease-event"},
	{"the largest deadline counts", "lock", "if (deadline > this.deadline)", "if (true)", "deadline/lease-event-not-earlier"},
	{"a fixed lease has no lease events", "client", "if (!hold.fixed)", "if (true)", "deadline/lease-event-fixed permits/lease-event-fixed"},
	{"end_ns counts", "lock", "this.maxHoldEnd < this.deadline", "false", "deadline/max-hold"},
	{"the client reads before it decides", "lock", "await arrived();", "", "deadline/late-lease-event"},
	{"each entry of an expired hold is released", "lock", "i < entries; i++", "i < 1; i++", "deadline/entries"},
	{"a grant that no caller gets is released", "client", `this.write(frame({ op: "release", hold: answer.int("hold") }));`, "", "hang/late-grant cancel/too-late permits/canceled-too-late"},
	{"to give up waiting is to cancel", "client", `this.write(frame({ op: "cancel", target: call.id }));`, "", "cancel/waiting"},
	{"a bad frame ends the connection", "client", "this.onViolation(error);", "", "bad-frame/"},
	{"no hold outlives the connection", "client", `hold.lose(hold.lost("protocol"));`, "", "bad-frame/array"},
	{"no key occurs twice", "protocol", "if (this.values.has(key))", "if (false)", "bad-frame/key-twice bad-frame/unknown-key-twice"},
	{"no byte follows the map", "protocol", "!scan.atEnd()", "false", "bad-frame/trailing-byte"},
	{"strings are UTF-8", "protocol", "fatal: true", "fatal: false", "bad-frame/key-not-utf8 bad-frame/reason-not-utf8"},
	{"ignored fields nest 8 deep at most", "protocol", "if (depth === 0)", "if (false)", "bad-frame/too-deep"},
	{"integers have their ranges", "protocol", "value < low || value > high", "false", "bad-frame/hold-too-large bad-frame/token-text permits/bad-frame"},
	{"a lost session has no holds", "client", "hold.orphaned = true;", "", "end/new-session resume/orphan-expires"},
	{"the newest ticket is used", "client", "this.ticket = ticket;", "this.ticket ??= ticket;", "resume/claims resume/not-resumed claims/interrupted"},
	{"a claim has the entries", "client", "[hold.number, hold.entries]", "[hold.number, 1]", "resume/entries"},
	{"a claim has 4,096 holds at most", "protocol", "MAX_CLAIMS = 4096", "MAX_CLAIMS = 5000", "resume/pages"},
	{"the pages of claims say whether more follow", "client", "holds: numbers, more }", "holds: numbers }", "resume/pages"},
	{"hello is tried again after limit", "client", `code === "limit" && this.ticket !== undefined`, "false", "resume/refused-for-now"},
	{"a refused ticket is not used again", "client", `if (code === "unavailable" || (code`, `if (true || (code`, "resume/refused-for-good"},
	{"a connection error ends the session", "client", `else if (code === "unavailable")`, "else if (true)", "resume/connection-error"},
	{"unavailable does not end the session", "client", `else if (code === "unavailable")`, "else if (false)", "resume/unavailable"},
	{"pauses grow", "client", "pause * (0.75 + Math.random() / 2)", "0", "resume/pauses"},
	{"a release waits for the claims", "client", "if (this.phase === \"serving\")\n            this.write(release);", "if (true)\n            this.write(release);", "claims/release-while-due"},
	{"an acquire waits for the claims", "client", "if (this.phase === \"serving\")\n            this.sendCall(call);", "if (this.phase !== \"disconnected\")\n            this.sendCall(call);", "claims/acquire-while-due"},
	{"what is left of wait_ms is sent", "client", "Math.max(1, Math.min(left, call.fields.wait_ms))", "call.fields.wait_ms", "waiters/after-claims waiters/new-session permits/waiters"},
	{"unanswered acquires are sent again", "client", "const calls = [...this.calls.values()];\n        this.calls.clear();\n        for (const call of calls) {", "const calls = [];\n        for (const call of calls) {", "waiters/after-claims waiters/new-session waiters/grant-not-read permits/waiters permits/waiters-new-session"},
	{"canceled acquires are not sent again", "client", "giveUp(call, why) {", "giveUp(call, why) {\n        return call.reject(why);", "waiters/canceled-meanwhile"},
	{"close sends bye", "client", `this.write(frame({ op: "bye", id: this.bye.id }));`, "", "close/bye close/bye-interrupted"},
	{"bye is sent instead of claims", "client", "if (isResumed)\n                this.sendBye();", "if (isResumed)\n                this.sendClaims();", "close/bye-interrupted"},
	{"a release is confirmed", "lock", "if (options.confirm)", "if (false)", "confirm/answered confirm/refused confirm/resumed permits/confirm"},
	{"an unconfirmed release is an error", "client", "throw new UnconfirmedError(", "void new UnconfirmedError(", "confirm/refused confirm/not-read confirm/other-sidecar"},
	{"a new session needs a proof", "client", `call.op = "info";`, "", "confirm/same-sidecar confirm/not-read"},
	{"another sidecar cannot confirm", "client", "call.sidecar === this.sidecar", "true", "confirm/other-sidecar"},
	{"a re-entry shortens no hold", "client", "known.extend(deadline);", "known.deadline = deadline;\n            known.setTimer();", "deadline/re-entry-not-earlier"},
	{"the lease of a re-entry is ignored", "client", "known.extend(deadline);", "known.fixed = call.fields.lease_ms !== undefined;\n            known.extend(deadline);", "deadline/re-entry-keeps-lease"},
	{"a check handles what has arrived before it decides", "client", "socket.on(\"data\", (chunk) => {", "socket.on(\"data\", async (chunk) => {\n            await new Promise((resolve) => setTimeout(resolve, 50));", "deadline/late-lease-event-read-second deadline/late-lease-event"},
	{"everything that has arrived is read", "client", "const socket = createConnection({ path: this.path });", "const socket = createConnection({ path: this.path });\n        socket.on(\"data\", () => { socket.pause(); setTimeout(() => socket.resume(), 100); });", "deadline/late-lease-event-after-much"},
	{"a check does not wait", "lock", "await this.hold.decide();", "await new Promise((resolve) => setTimeout(resolve, 1000));\n        await this.hold.decide();", "hang/checks"},
	{"an ended session renews nothing", "client", "for (const hold of this.holds.values())\n                    if (!hold.fixed)", "for (const hold of [...this.holds.values(), ...this.orphans])\n                    if (!hold.fixed)", "end/orphan-expires resume/orphan-expires"},
	{"a new session has new holds", "client", "const known = this.holds.get(number);", "const known = this.holds.get(number) ?? [...this.orphans].find((hold) => hold.number === number);", "end/orphan-expires"},
	{"a hold that has expired is not claimed", "client", "if (hold.entries === 0 || hold.ended !== undefined)\n            this.holds.delete(hold.number);", "if (hold.entries === 0)\n            this.holds.delete(hold.number);", "resume/expired-meanwhile"},
	{"no release is carried over", "client", "this.afterClaims = [];\n        socket?.destroy();", "socket?.destroy();", "claims/release-not-carried-over"},
	{"requests wait for the last of the claims", "client", "id === this.lastClaim", "this.phase === \"claiming\"", "claims/all-pages"},
	{"holds end before bye is sent", "client", "this.loseAll(this.closed);\n        this.rejectAll(this.closed);", "setTimeout(() => this.loseAll(this.closed), 500);\n        this.rejectAll(this.closed);", "close/before-the-answer"},
	{"holds end also without a connection", "client", "this.loseAll(this.closed);\n        this.rejectAll(this.closed);", "if (this.phase !== \"disconnected\")\n            this.loseAll(this.closed);\n        this.rejectAll(this.closed);", "close/while-disconnected"},
	{"permits are sent", "client", "{ name, permits, of }", "{ name, of }", "permits/grant-and-release permits/waiters"},
	{"of is sent", "client", "{ name, permits, of }", "{ name, permits }", "permits/grant-and-release"},
	{"wait_ms of permits is sent", "semaphore", "this.request(permits, options)", "this.request(permits, { ...options, timeoutMs: undefined })", "permits/wait permits/waiters"},
	{"a try for permits sends wait_ms 0", "semaphore", "this.request(permits, options)", "this.request(permits, { ...options, timeoutMs: options.timeoutMs || undefined })", "permits/wait"},
	{"lease_ms of permits is sent", "semaphore", "this.request(permits, options)", "this.request(permits, { ...options, leaseMs: undefined })", "permits/times permits/lease-event-fixed"},
	{"max_hold_ms of permits is sent", "semaphore", "this.request(permits, options)", "this.request(permits, { ...options, maxHoldMs: undefined })", "permits/times"},
	{"crash_delay_ms of permits is sent", "semaphore", "this.request(permits, options)", "this.request(permits, { ...options, crashDelayMs: undefined })", "permits/times"},
	{"permits do not re-enter", "client", "const known = this.holds.get(number);", "const known = this.holds.get(number) ?? [...this.holds.values()].find((hold) => hold.name === call.fields.name);", "permits/two-holds permits/one-owner permits/claims"},
	{"a handle releases its own hold", "client", `frame({ op: "release", hold: hold.number })`, `frame({ op: "release", hold: [...this.holds.values()].findLast((other) => other.name === hold.name)?.number ?? hold.number })`, "permits/two-holds permits/one-owner permits/lost"},
	{"a lower of is a grant", "client", "this.calls.delete(id);\n        if (call.isAbandoned)", "if (call.op === \"acquire_permits\" && answer.has(\"of\") && Number(answer.int(\"of\")) !== call.fields.of)\n            throw new Violation(\"of\");\n        this.calls.delete(id);\n        if (call.isAbandoned)", "permits/answers"},
	{"permits and of may be absent", "client", "if (answer.has(field))", "", "permits/answers"},
	{"permits and of have their ranges", "client", `of ["permits", "of"]`, "of []", "permits/bad-frame"},
	{"unsupported does not end the session", "client", "call.reject(errorOf(code, msg));", "call.reject(errorOf(code, msg));\n            if (code === \"unsupported\")\n                this.endSession(errorOf(code, msg));", "permits/unsupported"},
	{"unsupported is the error", "errors", "unsupported: UnsupportedError", "unsupported: UnavailableError", "permits/unsupported"},
	{"a lost event ends one hold", "client", "hold.lose(hold.lost(reason));", "for (const other of [hold, ...this.holds.values()])\n                        if (other.name === hold.name)\n                            other.lose(other.lost(reason));", "permits/lost permits/notified"},
	{"a deadline ends one hold", "lock", "const entries = this.entries;", "for (const other of this.holder.holds.values())\n            if (other.name === this.name && other !== this)\n                other.lose(other.lost(\"expired\"));\n        const entries = this.entries;", "permits/deadline"},
	{"a lease event moves all deadlines of a name", "client", "for (const hold of this.holds.values())\n                    if (!hold.fixed)", "for (const hold of new Map([...this.holds.values()].map((hold) => [hold.name, hold])).values())\n                    if (!hold.fixed)", "permits/lease-event"},
	{"acquires of permits are canceled", "client", "if (isAcquire(call) && call.wasSent)", "if (call.op === \"acquire\" && call.wasSent)", "permits/canceled-too-late"},
	{"an acquire of permits is sent again as one", "client", "call.wasSent = false;", "call.wasSent = false;\n                if (isAcquire(call))\n                    call.op = \"acquire\";", "permits/waiters permits/waiters-new-session"},
	{"an acquire of permits outlives its session", "client", "if (isAcquire(call))\n                continue;", "if (call.op === \"acquire\")\n                continue;", "permits/waiters-new-session"},
	{"other permits do not confirm a release", "client", "if (hold.entries > 0)", "if ([...this.holds.values()].some((other) => other.name === hold.name))", "permits/confirm"},
	{"all holders of a semaphore are looked at", "client", "return hidden || shown.some(", "return shown.slice(0, 1).some(", "permits/confirm-not-read"},
}

// Each scene fails for a client that breaks its rule. An ordinary run plays the scenes of each
// fifth fault; make conform those of all.
func TestEachSceneFindsABrokenClient(t *testing.T) {
	t.Parallel()
	node, dist := harness.TypeScript(t)
	all := conform.Scenes()
	isFound := make(map[string]bool)
	for i, f := range faults {
		var scenes []conform.Scene
		for name := range strings.FieldsSeq(f.scenes) {
			before := len(scenes)
			for _, s := range all {
				if s.Name == name || strings.HasSuffix(name, "/") && strings.HasPrefix(s.Name, name) {
					scenes = append(scenes, s)
					isFound[s.Name] = true
				}
			}
			if len(scenes) == before {
				t.Errorf("%s: there is no scene %s", f.rule, name)
			}
		}
		t.Run(f.rule, func(t *testing.T) {
			t.Parallel()
			driver := f.apply(t, dist)
			if !*playAll && i%5 != 0 {
				return
			}
			// On a busy machine a broken client may be so slow that it keeps a rule: it gets several chances.
			for range 10 {
				if scenes = passed(t, node, driver, scenes); len(scenes) == 0 {
					return
				}
			}
			for _, s := range scenes {
				t.Errorf("%s passes for a client that breaks the rule: %s", s.Name, f.rule)
			}
		})
	}
	for _, s := range all {
		// The client has no read/write locks.
		if !isFound[s.Name] && !slices.Contains(s.Needs, conform.ReadWrite) {
			t.Errorf("no fault is for the scene %s: can it fail?", s.Name)
		}
	}
}

// passed plays scenes to a broken client, and returns those that do not fail.
func passed(t *testing.T, node, driver string, scenes []conform.Scene) (passed []conform.Scene) {
	t.Helper()
	// A broken client often sends nothing, and a scene notices that when its patience ends.
	o := conform.Options{Command: []string{node, driver}, Scenes: scenes, Jobs: 4, Patience: time.Second}
	err := conform.Run(context.Background(), o, func(r conform.Result) {
		if r.Verdict != conform.Failed {
			passed = append(passed, r.Scene)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return passed
}

// apply makes a copy of the client with the fault, and returns the path of its driver.
func (f fault) apply(t *testing.T, dist string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "dist"), os.DirFS(dist)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node_modules", "package.json"} {
		if err := os.Symlink(filepath.Join(dist, "..", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "dist", f.file+".js")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), f.old); n != 1 {
		t.Fatalf("%s.js has %q %d times; want once", f.file, f.old, n)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), f.old, f.new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "dist", "driver.js")
}

// The names of scenes are for --only, and each scene says what it demands, and where SPEC.md
// does.
func TestScenesAreDescribed(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range conform.Scenes() {
		if slices.Contains(names, s.Name) {
			t.Errorf("two scenes are named %s", s.Name)
		}
		names = append(names, s.Name)
		if !strings.HasSuffix(s.Demand, ".") || !strings.HasPrefix(s.Spec, "§") {
			t.Errorf("%s demands %q in %q", s.Name, s.Demand, s.Spec)
		}
	}
}
