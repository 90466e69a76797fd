package history

import (
	"slices"
)

// checkTokens: a token is nobody else's, ever, and tokens rise in the order of
// the grants: whoever asked after another one had been granted, or was granted
// while or after another one believed, has the larger token.
//
// In the order of tokens this is one pass: everything before a hold must have
// begun, and have ended as far as it is certain, when that hold was granted.
// (That is the linearizability of a lock whose state is its last token: the
// tokens say in which order its grants took effect, so there is nothing to
// search for.) Whether two overlap is checkExclusion's to say.
func (r *run) checkTokens(report *Report) {
	for lock, holds := range r.holds {
		latest := int64(0) // when the last of those before was asked for
		for i, h := range holds {
			if i > 0 && holds[i-1].token == h.token {
				report.violated("tokens", lock, h.granted, excerpt(holds[i-1], h), "%v and %v have the same", holds[i-1], h)
				continue
			}
			if latest > h.granted {
				// Rare: it can look at all of them.
				for _, before := range holds[:i] {
					if before.invoked <= h.granted {
						continue
					}
					if r.drawnBefore(lock, before, h) {
						report.Regressions++
						continue
					}
					report.violated("tokens", lock, before.granted, append(excerpt(h, before), r.near(span{h.granted, before.granted})...),
						"%v asked for it after %v had it", before, h)
				}
			}
			latest = max(latest, h.invoked)
		}
	}
}

// drawnBefore tells whether the smaller token of a later hold may be one that its
// sidecar drew before Redis lost the lock, and handed over before it heard of
// that. Another host has drawn the larger one since.
func (r *run) drawnBefore(lock string, smaller, larger *hold) bool {
	return smaller.client.host != larger.client.host && slices.ContainsFunc(r.faults, func(t *trouble) bool {
		return t.concerns(lock) && t.has(LosesData) && t.from <= larger.granted &&
			(t.to == never || smaller.invoked <= t.to+int64(r.rules.Lease))
	})
}

// checkReentry: an owner that acquires what it certainly holds gets the token
// that it has, also if its sidecar was restarted in between.
func (r *run) checkReentry(report *Report) {
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
					if h.granted < later.invoked && h.ends > later.granted {
						report.violated("re-entry", lock, later.granted, excerpt(h, later),
							"%v entered what it held and was given token %d", h, later.token)
					}
				}
			}
		}
	}
}

// checkOrder: of one client's waiters, the one that was known to wait before
// another asked is served before it.
func (r *run) checkOrder(report *Report) {
	byOp := map[opKey]*acquire{}
	for _, a := range r.acquires {
		byOp[opKey{a.client.name, a.op}] = a
	}
	for _, a := range r.acquires {
		first := byOp[opKey{a.client.name, a.behind}]
		if a.behind == 0 || !a.granted || first == nil || !first.granted {
			continue
		}
		if first.token >= a.token {
			report.violated("order", a.lock, a.answered, append(excerptOf(first, a), r.near(span{first.invoked, a.answered})...),
				"%s was given it for op %d (token %d) before op %d (token %d), which waited before it",
				a.client.name, a.op, a.token, first.op, first.token)
		}
	}
}
