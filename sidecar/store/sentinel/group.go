package sentinel

import (
	"fmt"
	"slices"
	"strings"
)

// NewGroup returns the group of the Sentinels of a URL, of which none was asked.
func NewGroup(master string, seeds []string) *Group {
	g := &Group{Master: master, members: make(map[string]*Member), failovers: make(map[*Member]*failover)}
	g.Use(seeds, false)
	return g
}

// Use replaces what the URL says of the Sentinels. isNew: with another user or password, so that each one is another.
func (g *Group) Use(seeds []string, isNew bool) {
	for address, m := range g.members {
		if m.isSeed = slices.Contains(seeds, address); isNew {
			delete(g.members, address)
		}
	}
	for _, address := range seeds {
		g.add(address, "", true)
	}
}

// add has a Sentinel asked.
func (g *Group) add(address, runID string, isSeed bool) {
	if g.members[address] == nil && len(g.members) < maxSentinels && !g.closed {
		g.members[address] = &Member{Address: address, runID: runID, isSeed: isSeed}
	}
}

// Close has no Sentinel be asked any more.
func (g *Group) Close() {
	g.closed = true
	clear(g.members)
}

// Members returns the Sentinels that are to be asked.
func (g *Group) Members() (members []*Member) {
	for _, m := range g.members {
		members = append(members, m)
	}
	return members
}

// Answered takes in a round of answers, for which so many Sentinels were asked at a time. isCut: the round ended because
// it is not needed any more. It returns the answers that count, and what they say.
func (g *Group) Answered(now, began int64, asked int, isCut bool, views []View) ([]View, Verdict) {
	for i := range views {
		if v := &views[i]; v.Denied != nil && !g.isDenied {
			g.isDenied = true
			g.note(Note{Kind: Denied, Address: v.Member.Address, Err: v.Denied})
		}
	}
	views, verdict := Choose(views)
	if !isCut {
		g.tally(asked, views)
	}
	g.learn(views)
	g.review(now, began, views)
	return views, verdict
}

// Locate returns the address at which the master is by a verdict; "": none. isNamed is false while no Sentinel answers:
// it is the last address, which counts only if the server there is still the same.
func (g *Group) Locate(now int64, v Verdict) (address string, isNamed bool) {
	switch {
	case v.Master == "" && g.last != "" && now-g.lastAt < trustLast:
		return g.last, false
	case v.Master == "", v.IsDown:
		return "", false
	}
	if v.IsAgreed {
		g.isDisagreed = false
	}
	g.last, g.lastAt = v.Master, now
	return v.Master, true
}

// IsElsewhere reports whether the master is at another address than it was last.
func (g *Group) IsElsewhere(now int64, v Verdict) bool {
	if v.Master == g.last && v.Master != "" {
		g.lastAt = now
	}
	return v.Master != "" && v.Master != g.last && !v.IsDown
}

// Last is the address at which the master was found last.
func (g *Group) Last() string { return g.last }

// Counted returns how many Sentinels there are, and answer.
func (g *Group) Counted() Count { return g.count }

// Notes returns what there is to say since the last call.
func (g *Group) Notes() []Note {
	notes := g.notes
	g.notes = nil
	return notes
}

// tally notes how many Sentinels answered in a round, and notes that a majority does not any more, or does again.
func (g *Group) tally(asked int, views []View) {
	before := g.count
	g.count = Count{Known: asked}
	for _, v := range views {
		if v.Master != "" {
			g.count.Answering++
			g.count.Known = max(g.count.Known, 1+len(v.Peers))
		}
	}
	if g.count.Answering == 0 {
		g.count.Known = max(asked, before.Known) // a learned one that others see down is not asked any more
	}
	missed := g.misses
	if g.misses++; g.count.HasMajority() {
		g.misses = 0
	}
	switch {
	case g.misses == missesReported:
		g.note(Note{Kind: Lost, Text: fmt.Sprintf("%d of %d Sentinels of the master %q answer: if it fails, no replica replaces it, or this sidecar does not learn of that; start them, or correct their addresses in the Redis URL, or what they permit", g.count.Answering, g.count.Known, g.Master)})
	case g.misses == 0 && missed >= missesReported:
		g.note(Note{Kind: Back, Count: g.count})
	}
}

// learn adds the Sentinels that others know, and removes those that were learned and that none knows,
// or all see down. One that the URL has under another address is not asked twice.
func (g *Group) learn(views []View) {
	known := make(map[string]string) // addresses by run id
	for _, v := range views {
		if v.Member.runID == "" {
			v.Member.runID = v.RunID
		}
		for _, p := range v.Peers {
			if !p.IsDown {
				known[p.RunID] = p.Address
			}
		}
	}
	if len(known) == 0 {
		return
	}
	asked := make(map[string]bool)
	for _, m := range g.members {
		if m.isSeed && m.runID != "" {
			asked[m.runID] = true
		}
	}
	for _, m := range g.members {
		if !m.isSeed && (asked[m.runID] || known[m.runID] != m.Address) {
			delete(g.members, m.Address)
		}
	}
	for runID, address := range known {
		if !asked[runID] {
			g.add(address, runID, false)
		}
	}
}

// Disagree notes which Sentinel names which master, once.
func (g *Group) Disagree(views []View) {
	if g.isDisagreed {
		return
	}
	g.isDisagreed = true
	var texts []string
	for _, v := range views {
		if v.Master != "" {
			texts = append(texts, fmt.Sprintf("%s: %s, epoch %d", v.Member.Address, v.Master, v.Epoch))
		}
	}
	slices.Sort(texts)
	g.note(Note{Kind: Disagree, Text: strings.Join(texts, "; ")})
}
