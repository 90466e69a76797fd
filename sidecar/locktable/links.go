package locktable

// links is the place of an element in a doubly linked list.
type links[T any] struct{ prev, next *T }

// list is a doubly linked list through links of its elements. An element may be in several
// lists; at says which of its links are those of this one.
type list[T any] struct {
	head, tail *T
	len        int
}

func (q *list[T]) push(v *T, at func(*T) *links[T]) {
	at(v).prev = q.tail
	if q.tail != nil {
		at(q.tail).next = v
	} else {
		q.head = v
	}
	q.tail = v
	q.len++
}

func (q *list[T]) pushFront(v *T, at func(*T) *links[T]) {
	at(v).next = q.head
	if q.head != nil {
		at(q.head).prev = v
	} else {
		q.tail = v
	}
	q.head = v
	q.len++
}

func (q *list[T]) remove(v *T, at func(*T) *links[T]) {
	l := at(v)
	if l.prev != nil {
		at(l.prev).next = l.next
	} else {
		q.head = l.next
	}
	if l.next != nil {
		at(l.next).prev = l.prev
	} else {
		q.tail = l.prev
	}
	l.prev, l.next = nil, nil
	q.len--
}

// pool keeps what most operations need for a moment, for the next one: otherwise that
// would be most of what there is to collect.
type pool[T any] struct {
	free []*T
}

const maxFree = 256

// get returns a T: a new one, or one as it was put back.
func (p *pool[T]) get() *T {
	last := len(p.free) - 1
	if last < 0 {
		return new(T)
	}
	v := p.free[last]
	p.free[last] = nil
	p.free = p.free[:last]
	return v
}

func (p *pool[T]) put(v *T) {
	if len(p.free) < maxFree {
		p.free = append(p.free, v)
	}
}
