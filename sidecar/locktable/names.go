package locktable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// NamePattern is a name, or the beginning of names if it ends with "*".
type NamePattern string

// Matches reports whether a name matches the pattern.
func (p NamePattern) Matches(name string) bool {
	last := len(p) - 1
	if last < 0 || p[last] != '*' {
		return string(p) == name
	}
	return len(name) >= last && name[:last] == string(p[:last])
}

// Fault says what is wrong with a pattern of at most so many bytes; "": nothing.
func (p NamePattern) Fault(most int) string {
	switch s := string(p); {
	case s == "" || len(s) > most || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Sprintf("choose 1 to %d printable bytes", most)
	case strings.Contains(s[:len(s)-1], "*"):
		return "\"*\" can stand at the end only"
	}
	return ""
}

// MaxNamePatterns bounds Config.NamePatterns.
const MaxNamePatterns = 16

// Cells is how much of MaxLocks a lock of this name takes: how many cells of the state
// file it has, which are of 128 bytes. Names of up to 32 bytes need one, and each further
// 120 bytes or a part of them another one.
func Cells(name string) int { return 1 + (max(0, len(name)-32)+119)/120 }
