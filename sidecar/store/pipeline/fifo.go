package pipeline

// maxIdleLane is how many items an empty lane has room for: 1.1 MiB of operations.
const maxIdleLane = 1 << 14

// A fifo is a queue.
type fifo[T any] struct {
	items []T
	first int
}

func (l *fifo[T]) len() int { return len(l.items) - l.first }

func (l *fifo[T]) push(v T) { l.items = append(l.items, v) }

// front is the oldest; there must be one.
func (l *fifo[T]) front() *T { return &l.items[l.first] }

// head returns the n oldest, which stay. It is good until the next push or drop.
func (l *fifo[T]) head(n int) []T { return l.items[l.first : l.first+n] }

// drop forgets the n oldest.
func (l *fifo[T]) drop(n int) {
	clear(l.head(n))
	l.first += n
	switch {
	case l.len() == 0:
		// A burst's memory is freed, but for what a host needs that holds a hundred thousand
		// locks: it renews thousands of them in a tenth of a second.
		if cap(l.items) > maxIdleLane {
			l.items = nil
		}
		l.items, l.first = l.items[:0], 0
	case l.first > len(l.items)/2:
		kept := copy(l.items, l.items[l.first:])
		clear(l.items[kept:])
		l.items, l.first = l.items[:kept], 0
	}
}

// newest is the one that was pushed last; there must be one.
func (l *fifo[T]) newest() *T { return &l.items[len(l.items)-1] }

// dropNewest forgets the newest; there must be one.
func (l *fifo[T]) dropNewest() {
	clear(l.items[len(l.items)-1:])
	if l.items = l.items[:len(l.items)-1]; l.len() == 0 {
		l.drop(0)
	}
}

// pop moves up to n of the oldest to the end of dst.
func (l *fifo[T]) pop(dst []T, n int) []T {
	n = min(n, l.len())
	dst = append(dst, l.head(n)...)
	l.drop(n)
	return dst
}
