package pipeline

import (
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// slots returns the slot of a name, if the server is a node of a Cluster: one run of a script has keys of one slot
// there. nil: it is none.
func (m *Machine) slots() func(name string) uint16 {
	if !m.cfg.IsNode {
		return nil
	}
	return m.encoder.Keys.SlotOf
}

// runBatch makes the runs of ops, which are one batch, in an order of its own.
func (m *Machine) runBatch(now int64, ops []redisop.Op) {
	slot := m.slots()
	wire.SortForBatching(now, ops, slot)
	for len(ops) > 0 {
		s, n := wire.BatchPrefix(ops, slot)
		m.runScript(now, call{script: s}, ops[:n])
		ops = ops[n:]
	}
	m.queueWait(now)
}

// runAsking runs one operation of a slot that another node has.
func (m *Machine) runAsking(now int64, ops []redisop.Op) {
	m.ask(now, asking, "asking")
	m.runScript(now, call{script: wire.ScriptOf(&ops[0]), isAsking: true}, ops)
	m.queueWait(now)
}

// runScript makes the command that runs a script for ops, and arranges them.
func (m *Machine) runScript(now int64, cl call, ops []redisop.Op) {
	cl.ops = len(ops)
	if m.cfg.Replicas > 0 {
		cl.isOwed = m.durability.note(ops)
	}
	m.register(now, cl)
	lifts := m.encoder.Lifts
	m.encoder.Lifts = lifts || cl.isAsking // a counter has come here before its slot: see askClock
	begin := len(m.out)
	m.out = m.encoder.AppendRun(m.out, wire.Run{Script: cl.script, ByText: cl.byText}, now, m.ID.Above(now), ops)
	m.made += int64(len(m.out) - begin)
	m.encoder.Lifts = lifts
	for i := range ops {
		m.flight.push(ops[i])
	}
}

// onRun takes in the results of a run of a script. The error is that of a connection that cannot be used further.
func (m *Machine) onRun(now int64, answer *wire.Reply) error {
	cl := *m.calls.front()
	m.onTrip(now, &cl)
	m.minRTT = min(m.minRTT, now-cl.sent)
	if cl.byText {
		delete(m.isLoading, cl.script)
	}
	if answer.Kind == '-' {
		switch word := wire.Code(answer.Text); {
		case word == "NOSCRIPT" && (!cl.again || !m.Loads && !cl.byText) && m.drains == "":
			m.teach(now, &cl)
			return nil
		case word == "ASK" && cl.ops > 1 && m.drains == "":
			m.split(now, &cl) // Redis 6.2 also says it if only some of the keys are gone
			return nil
		case word == "ASK" && !cl.isAsking && m.cfg.IsNode:
			if r, ok := wire.ParseRedirect(answer.Text, m.Server.Address); ok {
				m.asked = append(m.asked, askedOps{r, m.takeBack(&cl)})
				return nil
			}
		case m.noteRedirect(answer.Text):
		case cl.ops > 1 && (wire.OutcomeOf(word) == redisop.Refused || word == "TRYAGAIN") && m.drains == "":
			m.split(now, &cl)
			return nil
		}
	}
	at := len(m.results)
	for _, op := range m.flight.head(cl.ops) {
		m.results = append(m.results, redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Sent: cl.sent, Conn: m.id})
	}
	results := m.results[at:]
	if err := m.decode(&cl, answer, results); err != nil {
		m.results = m.results[:at] // they are still in flight
		return err
	}
	for i := range results {
		if token := results[i].Token; token != 0 && m.flight.head(cl.ops)[i].Of != redisop.KindPermits { // these need no floor
			m.raiseFloor(now, token)
		}
		m.noteResult(&results[i])
	}
	if why := m.failover(); why != "" {
		notSynced(results, nil, why)
	}
	if m.cfg.Replicas > 0 {
		if r := &results[0]; cl.isAsking && (r.Kind == redisop.Drop || r.Outcome == redisop.HeldByOther) {
			notSynced(results, nil, slotIsMoving)
		}
		m.durability.withhold(m.flight.head(cl.ops), at, cl.isOwed)
	}
	m.calls.drop(1)
	m.flight.drop(cl.ops)
	if m.isIdle() {
		m.setLiveness(idle)
	}
	return nil
}

// onTrip notes that Redis answered a command.
func (m *Machine) onTrip(now int64, cl *call) {
	m.served = true
	m.trip = now - cl.sent
}

// onLoaded takes in the answer to SCRIPT LOAD.
func (m *Machine) onLoaded(answer *wire.Reply) {
	delete(m.isLoading, m.calls.front().script)
	if answer.Kind == '-' {
		m.Loads = false // by text, from now on
	}
	m.onAnswered()
}

// teach runs the oldest call again, once, after loading its script: it certainly did not run.
func (m *Machine) teach(now int64, cl *call) {
	ops := m.takeBack(cl)
	isText := false
	if !m.isLoading[cl.script] {
		if m.Loads {
			m.load(now, cl.script)
		} else {
			m.isLoading[cl.script] = true
			isText = true
		}
	}
	if cl.isAsking {
		m.ask(now, asking, "asking")
	}
	m.runScript(now, call{byText: isText, script: cl.script, again: true, isAsking: cl.isAsking}, ops)
	m.queueWait(now)
}

// split runs the oldest call again, by halves, after Redis refused it as a whole: one lock that an ACL denies must not
// cost the others their renewal.
func (m *Machine) split(now int64, cl *call) {
	ops := m.takeBack(cl)
	half := len(ops) / 2
	m.runScript(now, call{script: cl.script, again: cl.again}, ops[:half])
	m.runScript(now, call{script: cl.script, again: cl.again}, ops[half:])
	m.queueWait(now)
}

// decode takes the reply to a run apart, one result for each of its operations.
func (m *Machine) decode(cl *call, answer *wire.Reply, results []redisop.Result) error {
	ops := m.flight.head(cl.ops)
	switch {
	case answer.Kind == '-':
		for i := range results {
			m.refuse(&results[i], ops[i].Of, answer.Text, len(results))
		}
	case cl.script == wire.Renew && answer.Kind == ':' && answer.Num == int64(len(results)):
		for i := range results {
			results[i].Outcome = redisop.Done
		}
	case cl.script == wire.AcquireRelease && len(results) == 1:
		return m.decodeStatus(&ops[0], answer, &results[0])
	case answer.Kind != '*', len(answer.List) != len(results):
		return &wire.UnexpectedReply{Script: cl.script, Reply: *answer}
	default:
		for i := range answer.List {
			if err := m.decodeStatus(&ops[i], &answer.List[i], &results[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// decodeStatus reads what a script returned for one operation into its result.
func (m *Machine) decodeStatus(op *redisop.Op, status *wire.Reply, r *redisop.Result) error {
	var refusal string
	var silent bool
	var err error
	switch op.Of {
	case redisop.KindPermits:
		refusal, err = wire.DecodePermits(*status, op, r)
	case redisop.KindReadWrite:
		refusal, err = wire.DecodeReadWrite(*status, op, r)
	default:
		refusal, silent, err = wire.Decode(*status, r)
	}
	if err != nil {
		return err
	}
	if refusal != "" {
		m.refuse(r, op.Of, refusal, 1)
	}
	if r.Outcome == redisop.NotALock {
		r.Msg = m.Server.NotALock(r.Name, r.Field)
	}
	if silent {
		m.silent = r.Name
	}
	return nil
}

// refuse makes the result of an operation on a lock of a kind that Redis refused with a text, together with others: of so
// many at once.
func (m *Machine) refuse(r *redisop.Result, kind redisop.LockKind, text string, of int) {
	text = wire.Reason(text)
	word, _, _ := strings.Cut(text, " ")
	r.Outcome = wire.OutcomeOf(word)
	if r.Outcome == redisop.Refused && of > 1 {
		r.Outcome = redisop.Retryable // it may be one of the others that was refused
	}
	if m.cfg.IsNode && (word == "MOVED" || word == "ASK") {
		r.Outcome = redisop.Retryable
	}
	if m.cfg.IsNode && word == "TRYAGAIN" && of == 1 {
		m.deliveries = append(m.deliveries, Delivery{Kind: TryAgain, Redirect: wire.Redirect{Slot: m.cfg.Keys.SlotOf(r.Name)}})
	}
	r.Msg = m.Server.Answered(kind, r.Name, text)
	if wire.EndsConnection(word) {
		m.drain(r.Msg)
	}
}
