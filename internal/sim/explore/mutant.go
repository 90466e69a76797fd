package explore

import "github.com/locksidecar/locksidecar/sidecar/locktable"

// Mutant is a faulty table, which breaks one rule.
type Mutant struct {
	Name     string
	Rule     string
	Detected string

	onEffects func(w *world, h *host, e []locktable.Effect) []locktable.Effect
	onMessage func(w *world, h *host, m *locktable.Message) (forward bool)
	onResult  func(w *world, h *host, r *locktable.Result)
	onRestore func(h *host, s *locktable.Snapshot)
	late      int64
}

// notes are what a mutant has noted of a host.
type notes struct {
	at   int64
	num  uint64
	flag bool
}

func (n *notes) digest(w *world) uint64 {
	if *n == (notes{}) {
		return 0
	}
	return hash([]uint64{uint64(max(n.at-w.now, -lease)), n.num, uint64(n.at)})
}

func (m *Mutant) effects(w *world, h *host, e []locktable.Effect) []locktable.Effect {
	if m == nil || m.onEffects == nil {
		return e
	}
	return m.onEffects(w, h, e)
}

func (m *Mutant) message(w *world, h *host, msg *locktable.Message) bool {
	return m == nil || m.onMessage == nil || m.onMessage(w, h, msg)
}

func (m *Mutant) result(w *world, h *host, r *locktable.Result) {
	if m != nil && m.onResult != nil {
		m.onResult(w, h, r)
	}
}

func (m *Mutant) restore(h *host, s *locktable.Snapshot) {
	if m != nil && m.onRestore != nil {
		m.onRestore(h, s)
	}
}

func (m *Mutant) lateBy() int64 {
	if m == nil {
		return 0
	}
	return m.late
}
