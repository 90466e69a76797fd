package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// drawPlots draws what is worth a picture into dir. It needs the scenarios that
// the pictures are of.
func drawPlots(r *Results, dir string) error {
	for _, plot := range []struct {
		file string
		draw func(*Results) (*drawing, error)
	}{
		{"throughput.svg", drawThroughput},
		{"owner-changes.svg", drawOwnerChanges},
		{"waits.svg", drawWaits},
	} {
		d, err := plot.draw(r)
		if err != nil {
			return fmt.Errorf("%s: %w", plot.file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, plot.file), []byte(d.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func drawThroughput(r *Results) (*drawing, error) {
	a, err := r.near("uncontended 8x8", "8 processes × 8 workers")
	if err != nil {
		return nil, err
	}
	b, err := r.near("uncontended 64x1", "64 processes × 1 worker")
	if err != nil {
		return nil, err
	}
	return r.drawFarAndNear(PairsPerSecond, []farAndNear{a, b},
		fmt.Sprintf("A lock for each worker: locksidecar does %s as many pairs as the best peer,\n%s when Redis is %s away",
			ratioText(r.ratio(a.near, PairsPerSecond)), ratioText(r.ratio(a.far, PairsPerSecond)), away(a.far)),
		"Pairs of acquire and release per second, on a log scale; the ratio is that of 8 × 8. Palest: no locks, but what the machine allows.")
}

func drawOwnerChanges(r *Results) (*drawing, error) {
	a, err := r.near("contended 16x1", "Released at once")
	if err != nil {
		return nil, err
	}
	b, err := r.near("contended 16x1 1ms", "Held for 1 ms")
	if err != nil {
		return nil, err
	}
	return r.drawFarAndNear(OwnerChangesPerSecond, []farAndNear{a, b},
		fmt.Sprintf("One lock wanted by 16 processes: locksidecar passes it on %s as often as the best peer,\n%s when Redis is %s away",
			ratioText(r.ratio(a.near, OwnerChangesPerSecond)), ratioText(r.ratio(a.far, OwnerChangesPerSecond)), away(a.far)),
		"Changes of owner between processes per second, on a log scale; the ratio is that of a lock released at once.")
}

// farAndNear is a scenario with Redis on loopback and behind the proxy.
type farAndNear struct {
	heading   string
	near, far *ScenarioResult
}

func (r *Results) near(name, heading string) (farAndNear, error) {
	near, err := r.scenario(name)
	if err != nil {
		return farAndNear{}, err
	}
	far, err := r.scenario(name + " wan")
	return farAndNear{heading, near, far}, err
}

func (r *Results) scenario(name string) (*ScenarioResult, error) {
	for i := range r.Scenarios {
		if r.Scenarios[i].Name == name {
			return &r.Scenarios[i], nil
		}
	}
	return nil, fmt.Errorf("the results have no scenario %q: run it too", name)
}

// ratio is ours to the best peer's, as the tables have it.
func (r *Results) ratio(s *ScenarioResult, m Metric) float64 {
	for _, v := range r.Verdicts {
		if v.Scenario == s.Name && v.Metric == m && v.Ratio > 0 {
			return v.Ratio
		}
	}
	ours, best := 0.0, 0.0
	for _, c := range s.Contenders {
		switch c.Role {
		case Ours:
			ours = c.Median[m]
		case Peer:
			best = max(best, c.Median[m])
		}
	}
	if best == 0 {
		return math.MaxFloat64
	}
	return ours / best
}

// measured says how, for the line under the title.
func (r *Results) measured() string {
	return fmt.Sprintf("Median of %d runs of %.3g s, contenders in turn, on %d cores (%s).",
		r.Settings.Rounds, r.Settings.WindowMS/1e3, r.Machine.Cores, r.Machine.CPU)
}

// entrant is a contender in all scenarios of a picture.
type entrant struct {
	name   string
	role   Role
	values []float64 // by scenario; NaN: it has no figure
}

// entrants are who takes part in the scenarios: ours, then the peers from the best
// in the first scenario to the worst, then the limits.
func entrants(m Metric, scenarios ...*ScenarioResult) []*entrant {
	var all []*entrant
	for i, s := range scenarios {
		for _, c := range s.Contenders {
			at := slices.IndexFunc(all, func(e *entrant) bool { return e.name == c.Name })
			if at < 0 {
				at = len(all)
				all = append(all, &entrant{c.Name, c.Role, slices.Repeat([]float64{math.NaN()}, len(scenarios))})
			}
			if v, ok := c.Median[m]; ok {
				all[at].values[i] = v
			}
		}
	}
	order := []Role{Ours, Sibling, Peer, Limit}
	slices.SortStableFunc(all, func(a, b *entrant) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, a.role), slices.Index(order, b.role)),
			cmp.Compare(b.values[0], a.values[0])) // NaN is less than any
	})
	return all
}

// colour is that of lines and dots.
func (role Role) colour() string {
	switch role {
	case Ours:
		return accent
	case Sibling:
		return kin
	case Limit:
		return pale
	}
	return grey
}

// name is the style of a contender's name.
func (role Role) name() style {
	s := style{size: 12.5, fill: ink, anchor: "start"}
	switch role {
	case Ours:
		s.fill, s.bold = accent, true
	case Sibling:
		s.fill = accent
	case Limit:
		s.fill = faint
	}
	return s
}

// heads sets title and explanation and returns where there is room below them.
func (d *drawing) heads(title string, explanation ...string) (bottom float64) {
	d.title = strings.ReplaceAll(title, "\n", " ")
	y := 34.0
	for line := range strings.SplitSeq(title, "\n") {
		d.text(margin, y, style{size: 17, fill: ink, anchor: "start", bold: true}, "%s", line)
		y += 23
	}
	y += 1
	for _, line := range explanation {
		d.text(margin, y, style{size: 12, fill: faint, anchor: "start"}, "%s", line)
		y += 17
	}
	return y
}

const margin = 24.0

// drawFarAndNear has a row for each contender and a panel for each pair of
// scenarios: a dot for Redis on loopback, a ring for Redis behind the proxy, and a
// line that is what the way costs.
func (r *Results) drawFarAndNear(m Metric, panels []farAndNear, title, what string) (*drawing, error) {
	const (
		width, names = 860.0, 128.0
		row          = 25.0
		between      = 34.0
		room         = 46.0 // for the figures beside dots
	)
	var all []*ScenarioResult
	for _, p := range panels {
		all = append(all, p.near, p.far)
	}
	rows := entrants(m, all...)
	var values []float64
	for _, e := range rows {
		for _, v := range e.values {
			if v >= 1 {
				values = append(values, v)
			}
		}
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("nobody has a figure of %s", m)
	}
	d := &drawing{width: width}
	top := d.heads(title, what, r.measured()) + 24
	y := make([]float64, len(rows))
	bottom := top + 48
	for i, e := range rows {
		if i > 0 {
			bottom += row
			if before := rows[i-1].role; e.role != before && e.role != Sibling {
				bottom += row / 3
			}
		}
		y[i] = bottom
		d.text(margin, bottom+4.5, e.role.name(), "%s", e.name)
	}
	bottom += 18
	d.height = bottom + 38
	each := (width - 2*margin - names - between*float64(len(panels)-1)) / float64(len(panels))
	for i, p := range panels {
		left := margin + names + float64(i)*(each+between)
		d.text(left, top, style{size: 13, fill: ink, anchor: "start", bold: true}, "%s", p.heading)
		key := style{size: 11, fill: faint, anchor: "start"}
		d.dot(point{left + 5, top + 16}, ring, faint, faint)
		d.text(left+15, top+20, key, "Redis on loopback")
		d.dot(point{left + 130, top + 16}, ring, paper, faint)
		d.text(left+140, top+20, key, "Redis %s away", away(p.far))
		x := scaleOver(values, left+room, left+each-room)
		for _, v := range x.decades() {
			d.line(rule, 1, point{x.at(v), y[0] - 14}, point{x.at(v), bottom})
			d.text(x.at(v), bottom+17, style{size: 11, fill: faint, anchor: "middle"}, "%s", short(v))
		}
		for k, e := range rows {
			d.dumbbell(x, y[k], e.role, e.values[2*i], e.values[2*i+1])
		}
	}
	return d, nil
}

// dumbbell draws one contender's two figures.
func (d *drawing) dumbbell(x scale, y float64, role Role, near, far float64) {
	if math.IsNaN(near) && math.IsNaN(far) {
		d.text(x.from, y+4, style{size: 11, fill: faint, anchor: "start"}, "no figure")
		return
	}
	if !math.IsNaN(near) && !math.IsNaN(far) {
		d.line(role.colour(), 2, point{x.at(near), y}, point{x.at(far), y})
	}
	figure := style{size: 11, fill: faint}
	if role == Ours {
		figure.fill, figure.bold = accent, true
	}
	left, right := figure, figure
	left.anchor, right.anchor = "end", "start"
	if !math.IsNaN(far) {
		at := point{x.at(far), y}
		radius := ring
		if math.Abs(at.x-x.at(near)) < 2*ring {
			radius = 1.7 * ring // around the dot
		}
		d.dot(at, radius, paper, role.colour())
		if far > near {
			d.text(at.x+beside, y+4, right, "%s", short(far))
		} else {
			d.text(at.x-beside, y+4, left, "%s", short(far))
		}
	}
	if !math.IsNaN(near) {
		at := point{x.at(near), y}
		d.dot(at, ring, role.colour(), role.colour())
		if far > near {
			d.text(at.x-beside, y+4, left, "%s", short(near))
		} else {
			d.text(at.x+beside, y+4, right, "%s", short(near))
		}
	}
}

const (
	ring   = 4.5  // radius
	beside = 11.0 // from the middle of a dot to its figure
)

func drawWaits(r *Results) (*drawing, error) {
	p, err := r.near("contended 16x1", "")
	if err != nil {
		return nil, err
	}
	const (
		width, names = 860.0, 132.0
		ticks        = 46.0 // width of the y axis' labels
		high         = 330.0
	)
	ours, best := shortest(p.far, WaitMaxMS)
	if ours == 0 || math.IsInf(best, 1) {
		return nil, fmt.Errorf("%q has no longest wait of ours, or of no peer: see the errors of its runs", p.far.Name)
	}
	d := &drawing{width: width}
	top := d.heads(
		fmt.Sprintf("One lock wanted by 16 processes, Redis %s away:\nthe longest wait is %s with locksidecar and %s with the best peer", away(p.far), long(ours), long(best)),
		"How long acquire takes, on a log scale, from the median of all waits to the longest; waits that the end cut short are counted.",
		r.measured()) + 24
	bottom := top + 16 + high
	d.height = bottom + 52

	panels := []struct {
		heading string
		curves  []curve
	}{
		{"Redis on loopback", curves(p.near)},
		{"Redis " + away(p.far) + " away", curves(p.far)},
	}
	var values []float64
	for _, panel := range panels {
		for _, c := range panel.curves {
			for _, q := range c.waits {
				values = append(values, q.MS)
			}
		}
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("nobody has a distribution of waits")
	}
	y := scaleOver(values, bottom, top+16)
	each := (width - 2*margin - ticks) / float64(len(panels))
	for i, panel := range panels {
		left := margin + ticks + float64(i)*each
		right := left + each - names
		d.text(left, top, style{size: 13, fill: ink, anchor: "start", bold: true}, "%s", panel.heading)
		for _, v := range y.decades() {
			d.line(rule, 1, point{left, y.at(v)}, point{right, y.at(v)})
			if i == 0 {
				d.text(left-10, y.at(v)+4, style{size: 11, fill: faint, anchor: "end"}, "%s", long(v))
			}
		}
		for _, q := range []float64{.5, .9, .99, .999, 1} {
			x := left + rank(q)*(right-left)
			label := fmt.Sprintf("%.4g%%", q*100)
			if q == 1 {
				label = "longest"
			}
			d.line(rule, 1, point{x, top + 16}, point{x, bottom})
			d.text(x, bottom+18, style{size: 11, fill: faint, anchor: "middle"}, "%s", label)
		}
		d.text((left+right)/2, bottom+37, style{size: 11, fill: faint, anchor: "middle"}, "this share of waits is shorter")
		d.curves(panel.curves, left, right, y)
	}
	return d, nil
}

// curve is one contender's distribution of waits.
type curve struct {
	name  string
	role  Role
	waits []Quantile // from the median up; of each the median over the runs
}

func curves(s *ScenarioResult) []curve {
	var all []curve
	for _, c := range s.Contenders {
		byRank := map[float64][]float64{}
		for _, run := range c.Runs {
			for _, w := range run.Waits {
				if w.Q >= .5 && run.Error == "" {
					// What is less than a µs is drawn as one.
					byRank[w.Q] = append(byRank[w.Q], max(w.MS, .001))
				}
			}
		}
		var waits []Quantile
		for q, ms := range byRank {
			slices.Sort(ms)
			waits = append(waits, Quantile{q, median(ms)})
		}
		if len(waits) == 0 {
			continue
		}
		slices.SortFunc(waits, func(a, b Quantile) int { return cmp.Compare(a.Q, b.Q) })
		all = append(all, curve{c.Name, c.Role, waits})
	}
	return all
}

// curves draws them, ours on top, and their names to the right of their ends.
func (d *drawing) curves(all []curve, left, right float64, y scale) {
	last := func(c curve) float64 { return y.at(c.waits[len(c.waits)-1].MS) }
	slices.SortStableFunc(all, func(a, b curve) int { return cmp.Compare(last(a), last(b)) })
	ends := make([]float64, len(all))
	for i, c := range all {
		ends[i] = last(c)
	}
	labels := apart(ends, 14.5, y.to, y.from)
	drawn := slices.Clone(all)
	slices.SortStableFunc(drawn, func(a, b curve) int { return cmp.Compare(prominence(a.role), prominence(b.role)) })
	for _, c := range drawn {
		var path []point
		for _, w := range c.waits {
			path = append(path, point{left + rank(w.Q)*(right-left), y.at(w.MS)})
		}
		d.line(c.role.colour(), 1.5+prominence(c.role), path...)
	}
	for i, c := range all {
		d.line(pale, 1, point{right + 3, ends[i]}, point{right + 15, labels[i]})
		s := c.role.name()
		s.size = 11.5
		d.text(right+19, labels[i]+4, s, "%s", c.name)
	}
}

// prominence is how much thicker than a peer's a line is.
func prominence(role Role) float64 {
	switch role {
	case Ours:
		return 1.5
	case Sibling:
		return .5
	}
	return 0
}

// rank is where on the axis a quantile stands, 0 … 1: the median first, then each
// ninth behind the point as far from the last, and the longest a step behind 99.99%.
func rank(q float64) float64 {
	from, to := math.Log10(2), 4.5
	if q == 1 {
		return 1
	}
	return (min(-math.Log10(1-q), 4) - from) / (to - from)
}

// shortest is our figure and the lowest of a peer.
func shortest(s *ScenarioResult, m Metric) (ours, best float64) {
	best = math.Inf(1)
	for _, c := range s.Contenders {
		v, ok := c.Median[m]
		switch {
		case !ok:
		case c.Role == Ours:
			ours = v
		case c.Role == Peer:
			best = min(best, v)
		}
	}
	return ours, best
}

// away is the measured one of a scenario.
func away(s *ScenarioResult) string { return fmt.Sprintf("%.1f ms", s.RTTMS) }

// short writes a figure in the space beside a dot.
func short(v float64) string {
	switch {
	case v >= 99_950:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v >= 9_999.5:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e3), ".0") + "k"
	case v >= 999.5:
		n := int(v + .5)
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	case v > 0 && v < .95:
		return "<1"
	}
	return fmt.Sprintf("%.0f", v)
}

// long writes a length of time with two digits or more.
func long(ms float64) string {
	v, unit := ms, "ms"
	switch {
	case ms >= 999.5:
		v, unit = ms/1e3, "s"
	case ms < .9995:
		v, unit = ms*1e3, "µs"
	}
	if v >= 9.95 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.2g %s", v, unit)
}
