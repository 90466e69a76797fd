package wheel

// link appends t to the list of p. Precondition: t is not in a list.
func (w *Wheel[T]) link(t *Timer[T], p place) {
	t.place, t.next = p, nil
	first := w.places[p]
	if first == nil {
		w.places[p] = t
		w.setOccupied(p)
		t.prev = t
		return
	}
	t.prev = first.prev
	t.prev.next = t
	first.prev = t
}

// unlink removes t from its list.
func (w *Wheel[T]) unlink(t *Timer[T]) {
	if t.place == backlog {
		w.deferred--
	}
	first := w.places[t.place]
	if t == first {
		w.places[t.place] = t.next
		if t.next == nil {
			w.setFree(t.place)
		}
	} else {
		t.prev.next = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		first.prev = t.prev
	}
	t.place, t.next, t.prev = nowhere, nil, nil
}

// moveAll moves all timers of a place to the end of the list of another place.
func (w *Wheel[T]) moveAll(from, to place) {
	first := w.places[from]
	if first == nil {
		return
	}
	for t := first; t != nil; t = t.next {
		t.place = to
	}
	w.places[from] = nil
	w.setFree(from)
	if before := w.places[to]; before != nil {
		last := first.prev
		before.prev.next = first
		first.prev = before.prev
		before.prev = last
		return
	}
	w.places[to] = first
	w.setOccupied(to)
}

func (w *Wheel[T]) setOccupied(p place) { w.occupied[p/64] |= 1 << (p % 64) }
func (w *Wheel[T]) setFree(p place)     { w.occupied[p/64] &^= 1 << (p % 64) }
