package locktable

// writeJournal stores what has changed. The process may die between any two calls, so
// after each of them the journal must be true of what clients were sent:
//   - The last hold number comes before the records that have it.
//   - A session that is not served any more comes before its holds, or a successor would
//     send lease events to its client.
//   - Other sessions come after the holds: their last deadline may have become an earlier
//     one, which is true only of the new records of their holds.
//   - The holds that have ended are deleted first. Then comes each lock with its largest hold
//     number, then its holds; or it is deleted. In between, it has fewer holds than it had or
//     will have: those have ended, or their clients have not been answered.
func (t *Table) writeJournal() {
	j, d := t.cfg.Journal, &t.dirty
	if j == nil {
		return
	}
	if d.lastHoldID != t.lastNum {
		d.lastHoldID = t.lastNum
		j.PutLastHoldID(d.lastHoldID)
	}
	for _, s := range d.sessions {
		if r := s.record(); r.Phase != SessionServing {
			j.PutSession(r)
		}
	}
	for h := d.ended; h != nil; h = d.ended {
		j.DeleteHold(h.slot)
		d.ended = h.next
		t.freeHold(h)
	}
	for i, l := range d.locks {
		l.setDirty(false)
		t.writeLock(j, l)
		if l.isForgotten() { // so the journal has nothing of it, and lacks nothing
			t.unused.put(l)
		}
		d.locks[i] = nil
	}
	d.locks = d.locks[:0]
	for d.retry && len(d.unstored) > 0 {
		l := d.unstored[len(d.unstored)-1]
		t.writeLock(j, l)
		_, isMissing := d.unstoredAt[l]
		d.retry = !isMissing // all of them have to be stored, so there is no use in trying others
	}
	d.retry = false
	for i, s := range d.sessions {
		s.isDirty = false
		if r := s.record(); r.Phase == SessionServing {
			j.PutSession(r)
		}
		d.sessions[i] = nil
	}
	d.sessions = d.sessions[:0]
}

// writeLock stores a lock and its holds, or deletes them.
func (t *Table) writeLock(j Journal, l *lock) {
	d := &t.dirty
	isStored := true
	switch {
	case l.hasRemoteState():
		d.lock = LockRecord{Name: l.name, MaxHoldID: l.claim.MaxHoldID(), Kind: l.kind()}
		m := t.manyOf(l)
		if m != nil {
			d.lock.Forced = m.forced
		}
		l.slot = j.PutLock(l.slot, &d.lock)
		isStored = l.slot != 0
		if m != nil {
			isStored = isStored && t.writeMany(j, l, m)
			m.changed = m.changed[:0]
		} else if h := l.holders.sole(); h != nil && isStored {
			isStored = t.writeHold(j, h)
		}
	case l.slot != 0:
		j.DeleteLock(l.slot)
		l.slot = 0
	}
	d.track(l, isStored)
}

// writeHold stores a hold. It returns whether there was room.
func (t *Table) writeHold(j Journal, h *hold) bool {
	t.fillRecord(&t.dirty.hold, h)
	h.slot = j.PutHold(h.slot, h.lock.slot, &t.dirty.hold)
	return h.slot != 0
}

// writeMany stores the holds of a lock that have changed, or all if what they have in common has. It returns
// whether there was room.
func (t *Table) writeMany(j Journal, l *lock, m *many) bool {
	_, all := t.dirty.unstoredAt[l]
	if isUnsure := l.claim.State().IsUnsure(); m.inDoubt != isUnsure {
		m.inDoubt, all = isUnsure, true
	}
	until := t.validUntil(l)
	orphans := m.orphans > 0 && m.storedUntil != until // those that are renewed have another deadline
	m.storedUntil = until
	isStored := true
	if all || orphans {
		for h := range t.holdsOf(l) {
			if all || h.isOrphan() {
				isStored = t.writeHold(j, h) && isStored
			}
		}
	}
	for _, id := range m.changed {
		if h := t.byHold[id]; h != nil && h.lock == l && !all {
			isStored = t.writeHold(j, h) && isStored
		}
	}
	return isStored
}

// track has unstored list the lock if, and only if, the journal lacks something of it.
func (d *dirtySet) track(l *lock, isStored bool) {
	i, isMissing := d.unstoredAt[l]
	switch {
	case isStored != isMissing:
	case !isStored:
		if d.unstoredAt == nil {
			d.unstoredAt = make(map[*lock]int)
		}
		d.unstoredAt[l] = len(d.unstored)
		d.unstored = append(d.unstored, l)
	default:
		last := len(d.unstored) - 1
		moved := d.unstored[last]
		d.unstored[i], d.unstoredAt[moved] = moved, i
		d.unstored[last] = nil
		d.unstored = d.unstored[:last]
		delete(d.unstoredAt, l)
	}
}

// Unstored is the number of locks of which the journal lacks something because there was no
// room for it. It is up to date after Effects.
func (t *Table) Unstored() int { return len(t.dirty.unstored) }

// RetryJournal has the next Effects store what found no room, if there is room now.
func (t *Table) RetryJournal() { t.dirty.retry = true }

func (t *Table) fillRecord(r *HoldRecord, h *hold) {
	*r = HoldRecord{
		ID: h.id, Token: h.token, Owner: h.owner, Session: h.session.id,
		Granted: h.granted, Deadline: h.deadline, End: h.endAt, KeepUntil: t.keepUntil(h),
		LeaseSeq: h.leaseSeq, LeaseMS: t.remainingLease(h), Entries: h.entries, CrashDelayMS: h.crashDelayMS,
		Permits: max(1, h.permits), Lease: h.lease, Mode: h.mode, Phase: h.phase,
		InDoubt: h.lock.claim.State().IsUnsure(),
	}
	if m := t.manyOf(h.lock); m != nil {
		r.Capacity = m.entryOf(h).of
	}
	if h.isOrphan() {
		r.Deadline = t.deadline(h)
	}
}

// Record is what the journal has of a session.
func (t *Table) Record(id SessionID) SessionRecord { return t.sessions[id].record() }

func (s *session) record() SessionRecord {
	r := SessionRecord{ID: s.id, LeaseSent: s.leaseSent, LeaseSeq: s.leaseSeq, Phase: SessionServing}
	if s.phase == SessionGivenUp || s.phase == SessionUnserved {
		r.Phase = s.phase
	}
	return r
}
