package locktable

import (
	"cmp"
	"slices"
)

// tally counts things by what they have in common. Most have one or two of these.
type tally[K cmp.Ordered] []counted[K]

// counted is how many have a key in common: one at least.
type counted[K cmp.Ordered] struct {
	key K
	n   int
}

// add counts n more of a key, or less.
func (s *tally[K]) add(key K, n int) {
	i, isKnown := s.find(key)
	switch {
	case !isKnown:
		*s = slices.Insert(*s, i, counted[K]{key, n})
	case (*s)[i].n+n == 0:
		*s = slices.Delete(*s, i, i+1)
	default:
		(*s)[i].n += n
	}
}

// of is how many there are of a key.
func (s tally[K]) of(key K) int {
	if i, isKnown := s.find(key); isKnown {
		return s[i].n
	}
	return 0
}

// largest returns the largest key; the zero value: there is none.
func (s tally[K]) largest() (key K) {
	if len(s) > 0 {
		key = s[len(s)-1].key
	}
	return key
}

// other returns a key that is not this one, or else this one.
func (s tally[K]) other(key K) K {
	for _, c := range s {
		if c.key != key {
			return c.key
		}
	}
	return key
}

func (s tally[K]) find(key K) (i int, isKnown bool) {
	return slices.BinarySearchFunc(s, key, func(c counted[K], key K) int { return cmp.Compare(c.key, key) })
}

// ends counts the ends of the step that is under way. Each Advance begins one, and so does each input at another time.
type ends struct {
	at int64
	n  int
}

// take counts one more end, if one step may have it.
func (e *ends) take(now int64, most int) bool {
	if e.at != now {
		*e = ends{at: now}
	}
	if e.n >= most {
		return false
	}
	e.n++
	return true
}

// takenAt is how many ends a step has had that is under way now.
func (e *ends) takenAt(now int64) int {
	if e.at != now {
		return 0
	}
	return e.n
}
