package sidecar

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// surveyTimeout bounds how long a status request waits for the survey of the locks.
const surveyTimeout = 2 * time.Second

// onStatus answers a status request.
func (l *loop) onStatus(now int64, cl *session, r *statusRequest) {
	if r.survey == nil {
		l.refuse(cl.conn, r.ID, protocol.Unavailable, fmt.Sprintf("the sidecar is overloaded: it did not look at all its locks within %v", surveyTimeout))
		return
	}
	m := &protocol.StatusOK{ID: r.ID, StatusRow: l.statusRow(now, r)}
	if p := cl.policy; p != nil {
		m.Hidden = p.Hidden()
		p.Terms().RedactOldest(&m.StatusRow)
	}
	l.queueReply(cl.conn, m)
}

// statusRow is the status, before what a policy hides. Precondition: the locks were surveyed.
func (l *loop) statusRow(now int64, r *statusRequest) protocol.StatusRow {
	stats := l.table.Stats()
	redis := l.redis.Load()
	m := protocol.StatusRow{
		NowNS: now, StartedNS: l.startedAt, Version: l.cfg.Version, Build: l.cfg.Build,
		Redis: redis.status, Degraded: redis.isDegraded, RedisAddress: l.store.Address(), RedisRunID: redis.runID, RedisRisk: redis.risk, KeyPrefix: l.cfg.KeyPrefix,
		RoundTripNS: int64(l.store.RoundTrip()), Trouble: r.trouble,
		Sessions: len(l.sessions), Held: stats.Holds, Waiting: stats.Waiters,
		RenewalsLate: r.survey.RenewalsLate, Lost: l.losses.rows(now),
	}
	if r.shards != nil {
		why, all := l.noteSilence(now, r.shards)
		if m.Redis == "ok" && why != "" {
			m.Redis, m.Degraded = why, !all
		}
		addShards(&m, r.shards)
	} else if silence := l.table.Silence(now); m.Redis == "ok" && silence >= l.table.TryWithin() {
		m.Redis = fmt.Sprintf("Redis has not answered for %v", silence.Round(time.Millisecond))
	}
	for i := range r.survey.Groups {
		g := &r.survey.Groups[i]
		m.OldestWaiter = older(now, m.OldestWaiter, &g.OldestWaiter)
		m.OldestHold = older(now, m.OldestHold, &g.OldestHold)
	}
	// The survey may be a little older than the counts.
	if m.Waiting == 0 {
		m.OldestWaiter = nil
	}
	if m.Held == 0 {
		m.OldestHold = nil
	}
	if t := &l.takeover; t.holds > 0 || t.ended > 0 || t.reset != "" {
		m.Restart = &protocol.RestartRow{Reason: t.reset, Held: t.holds, Sessions: t.opened, Ended: t.ended, Back: t.back}
		for _, cl := range l.sessions {
			if cl.phase.IsAway() || cl.phase == locktable.SessionGivenUp {
				m.Restart.Away++
			}
		}
	}
	return m
}

// noteSilence notes which shards owe answers without having given any for long, and returns the sentence
// about the first one, and whether all do.
func (l *loop) noteSilence(now int64, shards []Shard) (why string, all bool) {
	all = true
	for i := range shards {
		s := &shards[i]
		silence := l.table.ShardSilence(now, s.Shard)
		if silence < l.table.TryWithin() || s.Redis != "ok" {
			all = false
			continue
		}
		s.Redis = fmt.Sprintf("Redis at %s has not answered for %v", s.Address, silence.Round(time.Millisecond))
		if why == "" {
			why = s.Redis
		}
	}
	return why, all
}

// older returns the row of the older one of the two.
func older(now int64, row *protocol.AgeRow, o *locktable.Oldest) *protocol.AgeRow {
	age := (now - o.Since) / int64(time.Millisecond)
	if o.Since == 0 || row != nil && row.AgeMS >= age {
		return row
	}
	return &protocol.AgeRow{Name: o.Name, Session: uint64(o.Session), PID: o.Peer.PID, UID: o.Peer.UID, Cmd: o.Peer.Cmd, AgeMS: max(0, age)}
}
