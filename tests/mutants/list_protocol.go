package main

// What the protocol promises: what is not allowed is refused, and costs little; and what
// the timing wheel promises, on which every deadline depends.

var protocolMutants = []mutant{
	{
		rule: "a frame is at most 64 KiB",
		in:   "protocol (*Reader).size",
		find: "if n == 0 || n > MaxFrame {",
		put:  "if n == 0 {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a frame is not empty",
		in:   "protocol (*Reader).size",
		find: "if n == 0 || n > MaxFrame {",
		put:  "if n > MaxFrame {",
		by:   test("protocol", "TestReaderReportsWhetherAnotherFrameIsBuffered"),
	},
	{
		rule: "a stream that ends within a frame is an error",
		in:   "protocol (*Reader).fill",
		find: "if err == io.EOF && r.end > r.start {",
		put:  "if false {",
		by:   test("protocol", "TestReaderReportsWhetherAnotherFrameIsBuffered"),
	},
	{
		rule: "a frame is one map",
		in:   "protocol (*parser).open",
		find: "if p.connError == nil && end != len(body) {",
		put:  "if false {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a key occurs once in a map",
		in:   "protocol (*parser).object",
		find: "case f != 0 && o.at[f] != 0:",
		put:  "case false:",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "an unknown key occurs once in a map",
		in:   "protocol (*parser).checkUnknownKeys",
		find: "if bytes.Equal(key(at), key(p.unknown[i])) {",
		put:  "if bytes.Equal(key(at), key(p.unknown[i])) && false {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a key is UTF-8",
		in:   "protocol (*parser).object",
		find: "case !utf8.Valid(key):",
		put:  "case false:",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a text is UTF-8",
		in:   "protocol (*object).bytes",
		find: "if !utf8.Valid(b) {",
		put:  "if false {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a key has one of the short formats",
		in:   "protocol (*parser).object",
		find: "if k.kind != kindStr || k.size == 5 {",
		put:  "if k.kind != kindStr {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "arrays and maps nest no deeper than allowed",
		in:   "protocol (*parser).skipContainer",
		find: "if open == depth {",
		put:  "if open == maxNesting {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a head does not name more than the frame has",
		in:   "protocol readHead",
		find: `if h.n > len(b)-h.size {
		return head{}
	}`,
		put: "",
		by:  test("protocol", "TestVectors"),
	},
	{
		rule: "a number below its range is refused",
		in:   "protocol (*parser).int",
		find: "case v < low, v > high:",
		put:  "case v > high:",
		by:   test("protocol", "TestRefusalsNameTheFieldAndTheRange"),
	},
	{
		rule: "a number above its range is refused",
		in:   "protocol (*parser).int",
		find: "case v < low, v > high:",
		put:  "case v < low:",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a value of another kind is refused",
		in:   "protocol (*object).head",
		find: "if h.kind != want {",
		put:  "if false {",
		by:   test("protocol", "TestRefusalsNameTheFieldAndTheRange"),
	},
	{
		rule: "an id is positive",
		in:   "protocol (*object).requestID",
		find: "v > 0 && !big",
		put:  "!big",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a text is no longer than allowed",
		in:   "protocol (*object).text",
		find: "if limit > 0 && len(b) > limit {",
		put:  "if false {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "the name of a lock has no control characters",
		in:   "protocol (*object).name",
		find: "if err := CheckName(name); err != nil {",
		put:  "if err := CheckName(name); false && err != nil {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a claim names a hold once",
		in:   "protocol (*RequestDecoder).checkDistinctHolds",
		find: "if d.numbers[i] == d.numbers[i-1] {",
		put:  "if false {",
		by:   test("protocol", "TestVectors"),
	},
	{
		rule: "a claim names pairs",
		in:   "protocol (*object).claimedHolds",
		find: "case h.n%2 != 0:",
		put:  "case false:",
		by:   test("protocol", "TestRefusalsNameTheFieldAndTheRange"),
	},
	{
		rule: "a claim is limited",
		in:   "protocol (*object).claimedHolds",
		find: "case h.n/2 > MaxClaims:",
		put:  "case false:",
		by:   test("protocol", "TestHostileFramesCostAtMostTheirSize"),
	},
	{
		rule: "a session is resumed by a client that can be resumed",
		in:   "protocol (*RequestDecoder).Decode",
		find: "if o.has(fieldResume) && !d.hello.Resumable {",
		put:  "if false {",
		by:   test("protocol", "TestRefusalsNameTheFieldAndTheRange"),
	},
	{
		rule: "an acquire without wait_ms waits forever",
		in:   "protocol (*object).acquire",
		find: "o.int(fieldWaitMS, Forever, 0, MaxDurationMS)",
		put:  "o.int(fieldWaitMS, 0, 0, MaxDurationMS)",
		by:   test("protocol", "TestEveryMessageDecodesAsItWasEncoded"),
	},
	{
		rule: "a request that is answered has an id",
		in:   "protocol (*RequestDecoder).Decode",
		find: "if needsID && id == 0 {",
		put:  "if needsID && false {",
		by:   test("protocol", "TestVectors"),
	},

	{
		rule: "a timer does not fire before its deadline",
		in:   "wheel (*Wheel).collectDue",
		find: "if t.deadline <= now {",
		put:  "if t.deadline <= now+1 {",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "a timer that is moved closer does not miss its tick",
		in:   "wheel (*Wheel).insert",
		find: "tick := max(w.current, w.tickOf(t.deadline))",
		put:  "tick := max(w.current, w.tickOf(t.deadline)+1)",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "a wheel that is advanced past a bucket moves its timers",
		in:   "wheel (*Wheel).collectDue",
		find: "w.enterTick(min(target, w.nextOccupied()))",
		put:  "w.enterTick(target)",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "the first deadline of a tick is known after it was walked",
		in:   "wheel (*Wheel).collectDue",
		find: `{
			earliest = min(earliest, t.deadline)
		}`,
		put: `{
		}`,
		by: test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "a timer that is added before the first one of its tick wakes the owner",
		in:   "wheel (*Wheel).insert",
		find: "if w.places[slot] == nil || t.deadline < w.earliest {",
		put:  "if w.places[slot] == nil {",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "a full wheel refuses a timer",
		in:   "wheel (*Wheel).Add",
		find: "if w.MaxPending > 0 && w.pending-w.deferred >= w.MaxPending {",
		put:  "if false {",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "timers in the backlog do not count for the limit of a wheel",
		in:   "wheel (*Wheel).Add",
		find: "w.pending-w.deferred",
		put:  "w.pending",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "a part of what is due is fired, and the rest stays due",
		in:   "wheel (*Wheel).fire",
		find: "t != nil && fired < limit",
		put:  "t != nil",
		by:   test("wheel", "TestWheelBehavesAsASortedList"),
	},
	{
		rule: "the backlog does not wake the owner",
		in:   "wheel (*Wheel).Next",
		find: `if w.pending == w.deferred {
		return 0, false
	}`,
		put: "",
		by:  test("wheel", "TestAdvanceSomeLeavesTheRestDue"),
	},
}
