package state

import (
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// write makes a store that no successor looks at before the next publish.
func (f *File) write(p *uint64, v uint64) {
	*p = v
	if f.host.stored != nil {
		f.host.stored(f.img, f.seq.img)
	}
}

// publish makes a store that counts. All stores before it are made before it.
func (f *File) publish(p *uint64, v uint64) {
	atomic.StoreUint64(p, v)
	f.changed = true
	if f.host.stored != nil {
		f.host.stored(f.img, f.seq.img)
	}
}

// update publishes what is not there already.
func (f *File) update(p *uint64, v uint64) {
	if *p != v {
		f.publish(p, v)
	}
}

// newRecord writes a text into a free cell from word from on, and into as many parts as it
// takes. The record appears when word is published as the first word of its cell. slot 0:
// there is no room.
func (f *File) newRecord(kind, from int, text string) (slot uint32, word uint64, sum uint32) {
	n := parts(len(text), from)
	var at [1 + maxParts + 1]uint32 // the last one stays 0: no further part
	for i := range 1 + n {
		if at[i] = f.allocCell(); at[i] == 0 {
			for i--; i >= 0; i-- {
				f.freeCell(at[i])
			}
			f.markIncomplete()
			return 0, 0, 0
		}
	}
	word = head(kind, 0, len(text), at[1])
	rest, s := f.writeText(f.img.cell(at[0])[from:], text, 0)
	for i := 1; i <= n; i++ {
		c := f.img.cell(at[i])
		rest, s = f.writeText(c[partText:], rest, s)
		f.write(&c[0], head(kindPart, i, 0, at[i+1]))
	}
	return at[0], word, fold(s)
}

// writeText fills words with a text, and returns what does not fit, and the sum of the words.
func (f *File) writeText(to []uint64, text string, sum uint64) (string, uint64) {
	for i := 0; i < len(to) && text != ""; i++ {
		w := load(text)
		f.write(&to[i], w)
		sum = mix(sum, w)
		text = text[min(8, len(text)):]
	}
	return text, sum
}

// hasText reports whether a record has this text, which begins at word from.
func (f *File) hasText(c *cell, from int, text string) bool {
	if textLen(c[0]) != len(text) {
		return false
	}
	for has := c[from:]; ; has = c[partText:] {
		for _, w := range has {
			if text == "" {
				return true
			}
			if w != load(text) {
				return false
			}
			text = text[min(8, len(text)):]
		}
		if text == "" {
			return true
		}
		c = f.img.cell(nextOf(c[0]))
	}
}

// remove makes a record vanish, and frees its cells.
func (f *File) remove(slot uint32) {
	word := f.img.cell(slot)[0]
	f.publish(&f.img.cell(slot)[0], 0)
	f.freeCell(slot)
	for at := nextOf(word); at != 0; {
		c := f.img.cell(at)
		next := nextOf(c[0])
		f.write(&c[0], 0)
		f.freeCell(at)
		at = next
	}
}

// allocCell returns a free cell; 0: there is none.
func (f *File) allocCell() uint32 {
	if i := f.free; i != 0 {
		f.free = uint32(f.img.cell(i)[1])
		return i
	}
	if f.next == f.end && !f.grow() {
		return 0
	}
	i := f.next
	f.next++
	return i
}

// freeCell puts a cell into the free list. Its first word is 0, or was not published.
func (f *File) freeCell(i uint32) {
	c := f.img.cell(i)
	f.write(&c[1], uint64(f.free))
	f.free = i
}

// truncate shortens a text to at most n bytes of valid UTF-8.
func truncate(s string, n int) string {
	if len(s) > n {
		for s = s[:n]; len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]); {
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "")
}
