// Package display makes the texts that the command line and the status page both show.
//
// The texts are the same for a terminal and for HTML. The caller aligns, cuts or escapes them.
package display

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Printable returns s with each character that is not printable replaced by a question mark. A
// space is printable; a tab, a line feed and an escape character are not. A byte that is not valid
// UTF-8 becomes U+FFFD.
//
// A process chooses its command line and the names of its locks. Without this, it could send escape
// sequences to the terminal of an operator.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Duration returns d in its two largest units, rounded down: "30d00h", "1h05m", "2m09s". From one
// second to a minute it returns seconds with one decimal, "7.8s". Below one second it returns
// milliseconds, "910ms", also if d is negative.
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d.%ds", d/time.Second, d.Milliseconds()/100%10)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d/time.Second%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d/time.Minute%60)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d/time.Hour%24)
}

// Expiry returns after which time a key in Redis expires, as Duration does. left is negative if the
// key has no expiry: Expiry then returns "no expiry".
func Expiry(left time.Duration) string {
	if left < 0 {
		return "no expiry"
	}
	return Duration(left)
}

// Count returns a number of things: "1 host", "2 hosts".
func Count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// Readers describes how many shared holds a read/write lock has.
func Readers(n int) string { return fmt.Sprintf("read ×%d", n) }

// Permits describes how many permits of a semaphore are held; of 0: how many it has is not known.
func Permits(held, of int) string {
	if of == 0 {
		return Count(held, "permit")
	}
	return fmt.Sprintf("%d of %d", held, of)
}
