package policy

// Accounts is how many accounts there are.
func (l *Ledger) Accounts() int { return len(l.accounts) }
