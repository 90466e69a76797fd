package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Colours of the plots. Ours has the only one; all else is grey. The page of a
// code host may be dark, so a picture brings its own white.
const (
	paper  = "#ffffff"
	ink    = "#1f2328"
	faint  = "#656d76" // text that explains
	rule   = "#e4e7eb" // grid
	accent = "#0b5fd6"
	kin    = "#7fb0f0" // our other SDK
	grey   = "#8d959e" // peers
	pale   = "#c3c9d0" // limits
)

// A drawing is an SVG picture under way. Its unit is the pixel.
type drawing struct {
	width, height float64
	title         string // for those who do not see the picture
	body          strings.Builder
}

// A style is how text is set.
type style struct {
	size   float64
	fill   string
	anchor string // "start", "middle", "end"
	bold   bool
}

func (d *drawing) text(x, y float64, s style, format string, args ...any) {
	weight := ""
	if s.bold {
		weight = ` font-weight="600"`
	}
	fmt.Fprintf(&d.body, `<text x="%s" y="%s" font-size="%s" fill="%s" text-anchor="%s"%s>%s</text>`+"\n",
		px(x), px(y), px(s.size), s.fill, s.anchor, weight, html.EscapeString(fmt.Sprintf(format, args...)))
}

// point is a place in a drawing.
type point struct{ x, y float64 }

// line draws through the points.
func (d *drawing) line(stroke string, width float64, points ...point) {
	var path strings.Builder
	for i, p := range points {
		path.WriteByte("ML"[min(i, 1)])
		path.WriteString(px(p.x) + " " + px(p.y))
	}
	fmt.Fprintf(&d.body, `<path d="%s" fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round" stroke-linecap="round"/>`+"\n",
		path.String(), stroke, px(width))
}

func (d *drawing) dot(at point, r float64, fill, stroke string) {
	fmt.Fprintf(&d.body, `<circle cx="%s" cy="%s" r="%s" fill="%s" stroke="%s" stroke-width="2"/>`+"\n",
		px(at.x), px(at.y), px(r), fill, stroke)
}

func (d *drawing) String() string {
	w, h := px(d.width), px(d.height)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" font-family="system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif">
<title>%s</title>
<rect width="%s" height="%s" rx="6" fill="%s"/>
%s</svg>
`, w, h, w, h, html.EscapeString(d.title), w, h, paper, d.body.String())
}

// px is a length as short as it can be written.
func px(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}

// A scale maps values to pixels, each tenfold the same way.
type scale struct {
	low, high float64 // values
	from, to  float64 // pixels
}

// scaleOver has room for all values, which are positive, and a little more.
func scaleOver(values []float64, from, to float64) scale {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return scale{low: low, high: high, from: from, to: to}
}

func (s scale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	return s.from + (s.to-s.from)*math.Log(v/s.low)/math.Log(s.high/s.low)
}

// decades are the powers of ten on the scale.
func (s scale) decades() []float64 {
	var all []float64
	for e := math.Ceil(math.Log10(s.low) - 1e-9); e <= math.Floor(math.Log10(s.high)+1e-9); e++ {
		all = append(all, math.Pow(10, e))
	}
	return all
}

// apart moves the positions, which are sorted, until neighbours are gap apart and
// all are between low and high, and as little as that takes.
func apart(at []float64, gap, low, high float64) []float64 {
	placed := append([]float64(nil), at...)
	next := low
	for i := range placed {
		placed[i] = max(placed[i], next)
		next = placed[i] + gap
	}
	next = high
	for i := len(placed) - 1; i >= 0; i-- {
		placed[i] = min(placed[i], next)
		next = placed[i] - gap
	}
	return placed
}
