package history

import (
	"slices"
)

// checkTokens checks that tokens are unique, and increase in the order of the grants: an acquire
// that began after another one was granted has the larger token.
//
// With the holds sorted by token this is one pass: each acquire before a hold must have begun
// when that hold was granted. This is linearizability of a lock whose state is its last token:
// the tokens give the order in which the grants took effect, so no search is needed.
// checkExclusion checks whether two holds overlap.
//
// Each host reserves tokens of a semaphore, and grants them later: they increase on each host alone.
func (r *timeline) checkTokens(report *Report) {
	for lock, holds := range r.holds {
		latest := map[string]int64{} // by order: when the last acquire of the holds before began
		for i, h := range holds {
			if i > 0 && holds[i-1].token == h.token {
				report.violated("tokens", lock, h.granted, holdEvents(holds[i-1], h), "%v and %v have the same token", holds[i-1], h)
				continue
			}
			if latest[h.order()] > h.granted {
				// This is rare, so it may look at all of them.
				for _, before := range holds[:i] {
					if before.invoked <= h.granted || before.order() != h.order() {
						continue
					}
					if r.mayPredateDataLoss(lock, before, h) {
						report.Regressions++
						continue
					}
					report.violated("tokens", lock, before.granted, append(holdEvents(h, before), r.faultsNear(span{h.granted, before.granted})...),
						"%v began to acquire it after %v was granted", before, h)
				}
			}
			latest[h.order()] = max(latest[h.order()], h.invoked)
		}
	}
}

// order names the order in which the token of a hold is.
func (h *hold) order() string {
	if h.of > 1 {
		return h.client.host
	}
	return ""
}

// mayPredateDataLoss reports whether the sidecar of a later hold may have drawn its smaller token
// before Redis lost the lock, and handed the lock over before it noticed the loss, while
// another host has drawn the larger token since.
func (r *timeline) mayPredateDataLoss(lock string, smaller, larger *hold) bool {
	return smaller.client.host != larger.client.host && slices.ContainsFunc(r.faults, func(t *faultSpan) bool {
		return t.concerns(lock) && t.has(LosesData) && t.from <= larger.granted &&
			(t.to == never || smaller.invoked <= t.to+int64(r.rules.Lease))
	})
}

// checkReentry checks that an owner that acquires a lock it certainly holds gets the same token,
// also if its sidecar was restarted in between.
func (r *timeline) checkReentry(report *Report) {
	for lock, holds := range r.holds {
		type ownerKey struct {
			client *client
			owner  uint64
		}
		byOwner := map[ownerKey][]*hold{}
		for _, h := range holds {
			if h.owner != 0 {
				key := ownerKey{h.client, h.owner}
				byOwner[key] = append(byOwner[key], h)
			}
		}
		for _, mine := range byOwner {
			for i, later := range mine {
				for _, h := range mine[:i] {
					if h.granted < later.invoked && h.believedUntil > later.granted {
						report.violated("re-entry", lock, later.granted, holdEvents(h, later),
							"%v re-entered it and was granted token %d", h, later.token)
					}
				}
			}
		}
	}
}

// checkOrder checks the order of one client's waiters: one that was known to wait before another
// acquire began is granted first.
func (r *timeline) checkOrder(report *Report) {
	byOp := map[opKey]*acquire{}
	for _, a := range r.acquires {
		byOp[opKey{a.client.name, a.op}] = a
	}
	for _, a := range r.acquires {
		first := byOp[opKey{a.client.name, a.afterOp}]
		if a.afterOp == 0 || !a.granted || first == nil || !first.granted {
			continue
		}
		if first.token >= a.token {
			report.violated("order", a.lock, a.answered, append(acquireEvents(first, a), r.faultsNear(span{first.invoked, a.answered})...),
				"%s was granted it for op %d (token %d) before op %d (token %d), which waited before it",
				a.client.name, a.op, a.token, first.op, first.token)
		}
	}
}
