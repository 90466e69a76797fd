package sentinel

import (
	"cmp"
	"slices"
	"strings"
)

// Choose returns the answers that count, and what they say. The master is that of the newest configuration, which a
// majority of the Sentinels elected.
func Choose(views []View) ([]View, Verdict) {
	views = known(views)
	var named []View
	for _, v := range views {
		if v.Master != "" {
			named = append(named, v)
		}
	}
	if len(named) == 0 {
		return views, Verdict{}
	}
	votes, down := make(map[string]int), make(map[string]int)
	for _, v := range named {
		votes[v.Master]++
		if v.IsDown {
			down[v.Master]++
		}
	}
	best := slices.MaxFunc(named, func(a, b View) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(votes[a.Master], votes[b.Master]), strings.Compare(b.Master, a.Master))
	}).Master
	return views, Verdict{
		Master: best, IsAgreed: votes[best] == len(named), IsDown: 2*down[best] > votes[best],
		IsLed: slices.ContainsFunc(named, func(v View) bool { return v.Lead == LeadsTo && v.Master == best }),
	}
}

// known returns the answers that count: those of one group of Sentinels that know each other. An
// address may lead to a Sentinel of another group by now, which watches another master under the same
// name. That of a Sentinel that was learned has another run id then. Of those in the URL, the group
// counts that most of them are in; if there are two such groups, none counts.
func known(views []View) []View {
	for i := range views {
		v := &views[i]
		if v.Master != "" && !v.Member.isSeed && v.RunID != v.Member.runID {
			*v = v.stranger()
		}
	}
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
		if v := &views[i]; v.Master != "" && !slices.Contains(chosen, i) {
			*v = v.stranger()
		}
	}
	return views
}

// stranger is the view of a Sentinel that does not show that it is of the group: perhaps it may not.
func (v *View) stranger() View {
	return View{Member: v.Member, Err: cmp.Or(v.Denied, ErrStranger)}
}

// groupsOf returns the groups of Sentinels, by index, of which each knows, or is known by, another one of
// its group. Those that say nothing of others are one group.
func groupsOf(views []View) (groups [][]int) {
	knows := func(a, b *View) bool {
		return len(a.Peers) == 0 && len(b.Peers) == 0 && (a.RunID == "" || b.RunID == "") ||
			slices.ContainsFunc(a.Peers, func(p Peer) bool {
				return p.RunID == b.RunID || b.RunID == "" && p.Address == b.Member.Address
			})
	}
	for i := range views {
		if views[i].Master == "" {
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
func seedsOf(views []View, group []int) (n int) {
	for _, i := range group {
		if views[i].Member.isSeed {
			n++
		}
	}
	return n
}
