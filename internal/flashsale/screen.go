package flashsale

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"
)

// A screen draws the demo: with a live line and colors on a terminal, in plain
// lines elsewhere.
type screen struct {
	out   io.Writer
	tty   bool
	color bool
	live  bool      // a live line is on the screen
	drawn time.Time // when progress was last drawn
}

func newScreen(out *os.File) *screen {
	_, err := unix.IoctlGetTermios(int(out.Fd()), unix.TCGETS)
	tty := err == nil
	return &screen{out: out, tty: tty, color: tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (s *screen) paint(color, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// columns is how wide a line is at most.
const columns = 80

// print prints a text after a prefix. What does not fit into a line continues below the text.
func (s *screen) print(prefix, text string) {
	s.erase()
	indent := ansi.StringWidth(prefix)
	text = ansi.Wordwrap(text, columns-indent, "")
	fmt.Fprintln(s.out, prefix+strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indent)))
}

// say prints whole lines.
func (s *screen) say(format string, args ...any) {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		text := strings.TrimLeft(line, " ")
		s.print(line[:len(line)-len(text)], text)
	}
}

func (s *screen) heading(number int, text string) {
	s.print("", "")
	s.print("  "+s.paint(cyan+";"+bold, strconv.Itoa(number))+"  ", s.paint(bold, text))
	s.drawn = time.Now() // the first plain progress line after one interval
}

func (s *screen) good(format string, args ...any) {
	s.print("     "+s.paint(green, "✓")+" ", fmt.Sprintf(format, args...))
}

func (s *screen) bad(format string, args ...any) {
	s.print("     "+s.paint(red, "✗")+" ", s.paint(red, fmt.Sprintf(format, args...)))
}

func (s *screen) row(label, format string, args ...any) {
	s.print("     "+s.paint(dim, fmt.Sprintf("%-20s", label))+" ", fmt.Sprintf(format, args...))
}

// progress shows the state of a phase; the number sold turns red as soon as
// more was sold than is missing from the stock.
func (s *screen) progress(stock, left, sold int, elapsed time.Duration) {
	interval := 80 * time.Millisecond
	if !s.tty {
		interval = time.Second
	}
	if time.Since(s.drawn) < interval {
		return
	}
	s.drawn = time.Now()

	const width = 30
	filled := min(max((left*width+stock-1)/stock, 0), width)
	count := fmt.Sprintf("%7s sold", thousands(sold))
	if sold > stock-left {
		count = s.paint(red, count)
	}
	line := fmt.Sprintf("     %s%s  %7s left %s   %4.1f s",
		s.paint(cyan, strings.Repeat("█", filled)), s.paint(dim, strings.Repeat("░", width-filled)),
		thousands(left), count, elapsed.Seconds())
	if !s.tty {
		fmt.Fprintln(s.out, line)
		return
	}
	fmt.Fprint(s.out, "\r\x1b[K"+line)
	s.live = true
}

// erase takes the live line away.
func (s *screen) erase() {
	if s.live {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.live = false
	}
}

// thousands writes 12345 as 12,345.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// millis writes a duration in ms with as many digits as matter.
func millis(ns int64) string {
	switch ms := float64(ns) / 1e6; {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}
