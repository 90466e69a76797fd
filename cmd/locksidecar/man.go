package main

import (
	"fmt"
	"go/doc/comment"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// manCmd writes the manual pages. They are made from the help texts, so a new command needs
// nothing here.
type manCmd struct {
	Dir string `arg:"" placeholder:"DIR" help:"A directory, which is made if need be."`
}

func (manCmd) Help() string {
	return `Writes locksidecar.1, and a page for each command: locksidecar-serve.1 and so on. The packages are made with it.

Example:

    locksidecar man /usr/local/share/man/man1`
}

func (c *manCmd) Run(parsed *kong.Context) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	for _, node := range allNodes(parsed.Model.Node) {
		page := manPage(node)
		if err := os.WriteFile(filepath.Join(c.Dir, manName(node)+".1"), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func manName(node *kong.Node) string {
	return "locksidecar" + strings.ReplaceAll(commandPath(node), " ", "-")
}

// manPage returns the manual page of a command, or of the program.
func manPage(node *kong.Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"locksidecar %s\" \"User Commands\"\n", strings.ToUpper(roff(manName(node))), locksidecar.Version)
	// Without hyphenation and with a ragged margin, flags and names stay in one piece.
	b.WriteString(".nh\n.ad l\n")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(node)), roff(strings.TrimSuffix(node.Help, ".")))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff("locksidecar"+commandPath(node)))
	if usage := strings.TrimPrefix(node.Summary(), strings.TrimSpace(commandPath(node))); strings.TrimSpace(usage) != "" {
		fmt.Fprintf(&b, "%s\n", roff(strings.TrimSpace(usage)))
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff(node.Help))
	var sections strings.Builder // they come after the flags
	writeManDetail(&b, &sections, node.Detail)

	commands := visibleCommands(node)
	if len(commands) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range commands {
			fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(manName(c)), roff(c.Help))
		}
	}
	if len(node.Positional) > 0 {
		b.WriteString(".SH ARGUMENTS\n")
		for _, p := range node.Positional {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(p.Summary()), roff(p.Help))
		}
	}
	b.WriteString(".SH OPTIONS\n")
	for _, f := range visibleFlags(node) {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(f.String()), roff(showEnv(f.Value)))
	}
	b.WriteString(sections.String())
	b.WriteString(".SH SEE ALSO\n")
	if node.Parent == nil {
		b.WriteString("https://github.com/locksidecar/locksidecar\n")
	} else {
		fmt.Fprintf(&b, ".BR %s (1)\n", roff(manName(node.Parent)))
	}
	return b.String()
}

// writeManDetail writes the long help text of a command, which --help reads with the same
// parser: paragraphs, and indented lines that stay as they are. A line such as "Exit codes:"
// before indented lines makes them a section, which goes to sections.
func writeManDetail(b, sections *strings.Builder, detail string) {
	title := ""
	blocks := new(comment.Parser).Parse(strings.TrimSpace(detail)).Content
	for i, block := range blocks {
		if code, isCode := block.(*comment.Code); isCode {
			out, before := b, ".PP"
			if title != "" {
				out, before = sections, ".SH "+roff(title)
			}
			fmt.Fprintf(out, "%s\n.RS 4\n.nf\n%s\n.fi\n.RE\n", before, roff(strings.TrimSuffix(code.Text, "\n")))
			title = ""
			continue
		}
		text := plainText(block)
		title = ""
		if i+1 < len(blocks) {
			if _, isCode := blocks[i+1].(*comment.Code); isCode {
				title = manSection(text)
			}
		}
		if title == "" {
			fmt.Fprintf(b, ".PP\n%s\n", roff(text))
		}
	}
}

// manSection returns the section that a line of a help text begins; "": none.
func manSection(line string) string {
	title, isTitle := strings.CutSuffix(line, ":")
	switch {
	case !isTitle || len(strings.Fields(title)) > 3:
		return ""
	case title == "Example":
		return "EXAMPLES"
	case title == "Exit codes":
		return "EXIT STATUS"
	}
	return strings.ToUpper(title)
}

// plainText returns a paragraph, or another block, as one text with its own line breaks.
func plainText(block comment.Block) string {
	printer := comment.Printer{TextWidth: -1}
	return strings.TrimSpace(string(printer.Text(&comment.Doc{Content: []comment.Block{block}})))
}

// roff escapes a text. A line that begins with a control character would be a request, and
// programs disagree on the encoding of characters beyond ASCII.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`).Replace(text)
	var ascii strings.Builder
	for _, r := range text {
		if r < 0x80 {
			ascii.WriteRune(r)
		} else {
			fmt.Fprintf(&ascii, `\[u%04X]`, r)
		}
	}
	lines := strings.Split(ascii.String(), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
