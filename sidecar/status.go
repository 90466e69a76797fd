package sidecar

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// takeover is what the sidecar found of its predecessor when it was started.
type takeover struct {
	reset  string // why the state could not be used; "": it was used, or there was none
	holds  int    // that were taken over
	opened int    // sessions whose clients may come back
	ended  int    // sessions whose processes had ended
	back   int    // sessions whose clients came back
}

// lossWindow counts the holds that were lost in the last hour, by minute and reason.
type lossWindow [60]lossMinute

type lossMinute struct {
	minute int64                         // since the host was started
	counts [locktable.LossReasons]uint32 // by the index of locktable.LossReason
}

// add counts n losses for a reason.
func (w *lossWindow) add(now int64, why protocol.Reason, n uint32) {
	minute := now / int64(time.Minute)
	m := &w[minute%int64(len(w))]
	if m.minute != minute {
		*m = lossMinute{minute: minute}
	}
	for i := range m.counts {
		if locktable.LossReason(i) == why {
			m.counts[i] += n
		}
	}
}

// rows returns the reasons for which holds were lost.
func (w *lossWindow) rows(now int64) (rows []protocol.LossRow) {
	first := now/int64(time.Minute) - int64(len(w)) + 1
	for i := range locktable.LossReasons {
		row := protocol.LossRow{Reason: locktable.LossReason(i)}
		for j := range w {
			if w[j].minute >= first {
				row.Count += w[j].counts[i]
			}
		}
		if row.Count > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

// surveyTimeout bounds how long a status request waits for the survey of the locks.
const surveyTimeout = 2 * time.Second

// statusRequest is a status request with what is not the loop's.
type statusRequest struct {
	*protocol.Status
	survey  *locktable.Survey // nil: the loop did not make one in time
	shards  []Shard           // of a Cluster; nil: Redis is none
	trouble string
}

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

// older returns the row of the older one of the two.
func older(now int64, row *protocol.AgeRow, o *locktable.Oldest) *protocol.AgeRow {
	age := (now - o.Since) / int64(time.Millisecond)
	if o.Since == 0 || row != nil && row.AgeMS >= age {
		return row
	}
	return &protocol.AgeRow{Name: o.Name, Session: uint64(o.Session), PID: o.Peer.PID, UID: o.Peer.UID, Cmd: o.Peer.Cmd, AgeMS: max(0, age)}
}
