package wan

import "slices"

// A fifo is a queue whose items stand together in memory.
type fifo[T any] struct {
	items []T
	head  int // items before it are gone
}

// keep is how many items an empty queue keeps room for.
const keep = 1 << 20

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(items ...T) {
	// Moving at least as much as is gained costs a constant for each item.
	if len(q.items)+len(items) > cap(q.items) && q.head >= q.len() {
		q.items = slices.Delete(q.items, 0, q.head)
		q.head = 0
	}
	q.items = append(q.items, items...)
}

func (q *fifo[T]) first() (item T, ok bool) {
	if q.len() == 0 {
		return item, false
	}
	return q.items[q.head], true
}

// next returns the first n items, which stay. It is good until the next push.
func (q *fifo[T]) next(n int) []T { return q.items[q.head:][:n] }

// drop removes the first n items.
func (q *fifo[T]) drop(n int) {
	q.head += n
	if q.len() > 0 {
		return
	}
	q.head = 0
	if q.items = q.items[:0]; cap(q.items) > keep {
		q.items = nil
	}
}
