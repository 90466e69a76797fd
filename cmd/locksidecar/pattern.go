package main

import "strings"

// namePattern selects locks: the one with this name, or, with a star at the end, those whose names
// begin so. The empty pattern selects all.
type namePattern string

func (p namePattern) matches(name string) bool {
	start, isPattern := strings.CutSuffix(string(p), "*")
	return p == "" || name == string(p) || isPattern && strings.HasPrefix(name, start)
}

// withStar returns the pattern for all names that begin like those of p.
func (p namePattern) withStar() namePattern {
	if strings.HasSuffix(string(p), "*") {
		return p
	}
	return p + "*"
}

// whoCommand is the command that answers who has a lock.
func whoCommand(name string) string { return commandFor("who", name) }

// commandFor is the command line of a subcommand with the name of a lock.
func commandFor(subcommand, name string) string {
	if strings.HasPrefix(name, "-") {
		subcommand += " --"
	}
	return "locksidecar " + subcommand + " " + quoteForShell(name)
}

// quoteForShell returns a word as a POSIX shell reads it back.
func quoteForShell(word string) string {
	isPlain := word != "" && strings.IndexFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.,:/@%+=", r))
	}) < 0
	if isPlain {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
