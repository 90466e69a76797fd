package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// completionCmd prints the completions of a shell. They are made from the declarations of the
// commands and flags, so a new command needs nothing here.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `The packages for Debian and Fedora install the completions. Without them, source the output, or write it
into a directory where the shell looks for completions.

Examples:

    source <(locksidecar completion bash)
    locksidecar completion bash > /usr/share/bash-completion/completions/locksidecar
    locksidecar completion zsh > /usr/share/zsh/vendor-completions/_locksidecar
    locksidecar completion fish > /usr/share/fish/vendor_completions.d/locksidecar.fish`
}

func (c *completionCmd) Run(parsed *kong.Context, out io.Writer) error {
	shells := map[string]func(root *kong.Node) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	_, err := io.WriteString(out, shells[c.Shell](parsed.Model.Node))
	return err
}

// visibleCommands returns the commands below a node that help texts list.
func visibleCommands(node *kong.Node) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(node.Children), func(n *kong.Node) bool { return n.Hidden || n.Type != kong.CommandNode })
}

// visibleFlags returns the flags of a node, then those that it has from the program.
func visibleFlags(node *kong.Node) []*kong.Flag {
	groups := node.AllFlags(true)
	slices.Reverse(groups)
	return slices.Concat(groups...)
}

// allNodes returns the program and every visible command, parents first.
func allNodes(root *kong.Node) []*kong.Node {
	nodes := []*kong.Node{root}
	for _, child := range visibleCommands(root) {
		nodes = append(nodes, allNodes(child)...)
	}
	return nodes
}

// commandPath returns the words that select a command: "" for the program, " serve".
func commandPath(node *kong.Node) string {
	if node.Parent == nil {
		return ""
	}
	return commandPath(node.Parent) + " " + node.Name
}

func takesValue(f *kong.Flag) bool { return !f.IsBool() && !f.IsCounter() }

// namesFile reports whether a flag or an argument is a file: its placeholder says so.
func namesFile(placeholder string) bool {
	return slices.Contains([]string{"PATH", "FILE", "DIR"}, placeholder)
}

// isLockName reports whether an argument is the name of a lock that processes of this host hold or wait for: it has
// the tag complete:"locks".
func isLockName(v *kong.Value) bool { return v.Tag != nil && v.Tag.Get("complete") == "locks" }

// namesCmd prints the names that complete such an argument. Completions of bash and fish read them as a shell reads
// words, so a name with any other character than those of quoteForShell is left out.
type namesCmd struct{ socketFlag }

// namesTimeout is how long a person who presses Tab waits for a daemon that hangs.
const namesTimeout = time.Second

func (c *namesCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	client, err := locksidecar.Dial(ctx, c.Socket)
	if err != nil {
		return nil // a completion has no place for an error
	}
	defer client.Close()
	rows, err := client.List(ctx)
	if err != nil {
		return nil
	}
	for i := range rows {
		if name := rows[i].Name; name == quoteForShell(name) {
			fmt.Fprintln(out, name)
		}
	}
	return nil
}

func choices(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}

// commandIndex returns which positional argument begins a command line of another program;
// -1: none does.
func commandIndex(node *kong.Node) int {
	return slices.IndexFunc(node.Positional, func(p *kong.Positional) bool { return p.PassthroughMode != kong.PassThroughModeNone })
}

// summary returns the first sentence of a help text, on one line, for a list of completions.
func summary(help string) string {
	help = strings.Join(strings.Fields(help), " ")
	for _, end := range []string{" (default", ". ", "; "} {
		help, _, _ = strings.Cut(help, end)
	}
	return strings.TrimSuffix(help, ".")
}

const bashHead = `# Completions of locksidecar for bash: locksidecar completion bash.

# The functions whose names begin with __locksidecar get the words of the command as one string.
`

const bashBody = `
_locksidecar() {
	local path='' arguments=0 i=1 word flag=''
	local cur=${COMP_WORDS[COMP_CWORD]}
	local commands flags values files locks command
	COMPREPLY=()
	__locksidecar_words ""
	while ((i < COMP_CWORD)); do
		word=${COMP_WORDS[i]}
		if [[ -z $flag && $word == -- ]]; then
			flag=--
		elif [[ $flag != -- && $word == -* ]]; then
			flag=
			if [[ " $values " == *" $word "* ]]; then
				flag=$word
			fi
		elif [[ $flag == -* && $flag != -- ]]; then
			# bash splits --flag=value into three words.
			if [[ $word != = ]]; then
				flag=
			fi
		elif [[ " $commands " == *" $word "* && $arguments == 0 ]]; then
			path+=" $word"
			__locksidecar_words "$path"
		else
			if ((arguments == command)); then
				break
			fi
			((++arguments))
		fi
		((++i))
	done
	if [[ $cur == = ]]; then
		cur=
	fi
	if ((arguments == command)) && [[ -z $flag || $flag == -- ]] && { [[ $flag == -- || $cur != -* ]] || ((i < COMP_CWORD)); }; then
		if declare -F _command_offset >/dev/null; then
			_command_offset "$i"
		elif ((i == COMP_CWORD)); then
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		else
			compopt -o default 2>/dev/null
		fi
	elif [[ $flag == -* && $flag != -- ]]; then
		if [[ " $files " == *" $flag "* ]]; then
			compopt -o filenames 2>/dev/null
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -W "$(__locksidecar_choices "$path $flag")" -- "$cur")
		fi
	elif [[ $flag != -- && $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
	elif [[ -n $locks ]]; then
		# bash splits a name at : and =, and completes the last part.
		word=${COMP_LINE:0:COMP_POINT}
		word=${word##*[[:space:]]}
		mapfile -t COMPREPLY < <(compgen -W "$(locksidecar names 2>/dev/null)" -- "$word")
		COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[:=]}"}"}")
	elif [[ " $files " == *" $arguments "* ]]; then
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -W "$commands $(__locksidecar_choices "$path $arguments")" -- "$cur")
	fi
}

complete -F _locksidecar locksidecar
`

func bashCompletion(root *kong.Node) string {
	var words, options strings.Builder
	for _, node := range allNodes(root) {
		var commands, flags, values, files []string
		locks := ""
		for _, child := range visibleCommands(node) {
			commands = append(commands, child.Name)
		}
		option := func(name string, v *kong.Value) {
			if all := choices(v); all != nil {
				fmt.Fprintf(&options, "\t%s) echo %s ;;\n", quote(commandPath(node)+" "+name), quote(strings.Join(all, " ")))
			}
		}
		for _, f := range visibleFlags(node) {
			flags = append(flags, "--"+f.Name)
			if takesValue(f) {
				values = append(values, "--"+f.Name)
				if namesFile(f.PlaceHolder) {
					files = append(files, "--"+f.Name)
				}
				option("--"+f.Name, f.Value)
			}
		}
		for i, p := range node.Positional {
			if namesFile(p.Tag.PlaceHolder) {
				files = append(files, fmt.Sprint(i))
			}
			if isLockName(p) {
				locks = "yes"
			}
			option(fmt.Sprint(i), p)
		}
		fmt.Fprintf(&words, "\t%s)\n\t\tcommands=%s\n\t\tflags=%s\n\t\tvalues=%s\n\t\tfiles=%s\n\t\tlocks=%s\n\t\tcommand=%d\n\t\t;;\n", quote(commandPath(node)),
			quote(strings.Join(commands, " ")), quote(strings.Join(flags, " ")), quote(strings.Join(values, " ")), quote(strings.Join(files, " ")), locks, commandIndex(node))
	}
	return bashHead +
		"__locksidecar_words() {\n\tcase $1 in\n" + words.String() + "\tesac\n}\n\n" +
		"# The choices for a flag, or for an argument by its number.\n" +
		"__locksidecar_choices() {\n\tcase $1 in\n" + options.String() + "\tesac\n}\n" + bashBody
}

// quote returns the text in single quotes, as bash and zsh read them.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func zshCompletion(root *kong.Node) string {
	var b strings.Builder
	b.WriteString("#compdef locksidecar\n# Completions of locksidecar for zsh: locksidecar completion zsh.\n" +
		"\n_locksidecar_locks() {\n\tlocal -a names=(${(f)\"$(locksidecar names 2>/dev/null)\"})\n\tcompadd -a names\n}\n")
	for _, node := range allNodes(root) {
		writeZshFunction(&b, node)
	}
	b.WriteString("\n# Autoloaded, or sourced after compinit.\nif [[ $funcstack[1] == _locksidecar ]]; then\n\t_locksidecar \"$@\"\nelse\n\tcompdef _locksidecar locksidecar\nfi\n")
	return b.String()
}

func zshFunction(node *kong.Node) string {
	return "_locksidecar" + strings.NewReplacer(" ", "_", "-", "_").Replace(commandPath(node))
}

// writeZshFunction writes the function that completes the words after a command.
func writeZshFunction(b *strings.Builder, node *kong.Node) {
	text := strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`)
	action := func(v *kong.Value, placeholder string) string {
		switch all := choices(v); {
		case all != nil:
			return "(" + strings.Join(all, " ") + ")"
		case namesFile(placeholder):
			return "_files"
		case isLockName(v):
			return "_locksidecar_locks"
		}
		return ""
	}
	commands := visibleCommands(node)
	fmt.Fprintf(b, "\n%s() {\n\tlocal curcontext=$curcontext state line\n\ttypeset -A opt_args\n\t_arguments -C -S -s", zshFunction(node))
	for _, f := range visibleFlags(node) {
		names := "--" + f.Name
		if f.Short != 0 {
			names = fmt.Sprintf("(-%c --%s)'{-%c,--%s}'", f.Short, f.Name, f.Short, f.Name)
		}
		spec := names + "[" + text.Replace(strings.ReplaceAll(summary(f.Help), "'", "’")) + "]"
		if takesValue(f) {
			spec = strings.Replace(spec, "[", "=[", 1) + ":" + text.Replace(f.FormatPlaceHolder()) + ":" + action(f.Value, f.PlaceHolder)
		}
		fmt.Fprintf(b, " \\\n\t\t'%s'", spec)
	}
	for i, p := range node.Positional {
		switch {
		case p.PassthroughMode != kong.PassThroughModeNone:
			fmt.Fprintf(b, " \\\n\t\t'*:::%s:_normal'", text.Replace(p.Name))
		case p.IsCumulative():
			fmt.Fprintf(b, " \\\n\t\t'*:%s:%s'", text.Replace(p.Name), action(p, p.Tag.PlaceHolder))
		case p.Required:
			fmt.Fprintf(b, " \\\n\t\t'%d:%s:%s'", i+1, text.Replace(p.Name), action(p, p.Tag.PlaceHolder))
		default:
			fmt.Fprintf(b, " \\\n\t\t'%d::%s:%s'", i+1, text.Replace(p.Name), action(p, p.Tag.PlaceHolder))
		}
	}
	if len(commands) == 0 {
		b.WriteString("\n}\n")
		return
	}
	b.WriteString(" \\\n\t\t'1: :->command' \\\n\t\t'*:: :->arguments'\n\tcase $state in\n\tcommand)\n\t\tlocal -a commands=(\n")
	for _, c := range commands {
		fmt.Fprintf(b, "\t\t\t%s\n", quote(strings.ReplaceAll(c.Name, ":", `\:`)+":"+summary(c.Help)))
	}
	b.WriteString("\t\t)\n\t\t_describe command commands\n\t\t;;\n\targuments)\n\t\tcurcontext=${curcontext%:*:*}:locksidecar-$words[1]:\n\t\tcase $words[1] in\n")
	for _, c := range commands {
		fmt.Fprintf(b, "\t\t%s) %s ;;\n", c.Name, zshFunction(c))
	}
	b.WriteString("\t\tesac\n\t\t;;\n\tesac\n}\n")
}

const fishBody = `
# Sets the command before the cursor, its arguments so far, and whether the next word is the
# value of a flag.
function __locksidecar_read --no-scope-shadowing
    set path
    set arguments
    set value 0
    set ended 0
    for word in (commandline -opc)[2..-1]
        if test $value = 1
            set value 0
        else if test $ended = 0; and test "$word" = --
            set ended 1
        else if set -q arguments[1]; and test (count $arguments) -gt (__locksidecar_command_index "$path")
            set -a arguments $word
        else if test $ended = 0; and string match -q -- '-*' $word
            if contains -- "$path $word" $__locksidecar_values
                set value 1
            end
        else if not set -q arguments[1]; and contains -- "$path $word" $__locksidecar_commands
            set path "$path $word"
        else
            set -a arguments $word
        end
    end
end

# Whether the command before the cursor is the one given, with so many arguments.
function __locksidecar_at
    __locksidecar_read
    test $value = 0; and test "$path" = "$argv[1]"; and test (count $arguments) = $argv[2]
end

# Whether the command before the cursor is the one given, and takes flags there, or their values.
function __locksidecar_flags_of
    __locksidecar_read
    test "$path" = "$argv[1]"; and test (count $arguments) -le (__locksidecar_command_index "$path")
end

# Whether the cursor is in the command line of another program.
function __locksidecar_in_command
    __locksidecar_read
    test $value = 0; and test (count $arguments) -ge (__locksidecar_command_index "$path")
end

function __locksidecar_complete_command
    __locksidecar_read
    set first (math (__locksidecar_command_index "$path") + 1)
    set words
    if test (count $arguments) -ge $first
        set words (string escape -- $arguments[$first..-1])
    end
    complete -C (string join ' ' -- $words (commandline -ct))
end

complete -c locksidecar -f
complete -c locksidecar -n __locksidecar_in_command -f -a '(__locksidecar_complete_command)'
`

func fishCompletion(root *kong.Node) string {
	var commands, values, index, rules strings.Builder
	rule := func(condition, format string, args ...any) {
		fmt.Fprintf(&rules, "complete -c locksidecar -n %s %s\n", fishQuote(condition), fmt.Sprintf(format, args...))
	}
	for _, node := range allNodes(root) {
		path := commandPath(node)
		if path != "" {
			fmt.Fprintf(&commands, " %s", fishQuote(path))
		}
		at := "__locksidecar_at " + fishQuote(path)
		for _, child := range visibleCommands(node) {
			rule(at+" 0", "-f -a %s -d %s", child.Name, fishQuote(summary(child.Help)))
		}
		for _, f := range visibleFlags(node) {
			name := "-l " + f.Name
			if f.Short != 0 {
				name = fmt.Sprintf("-s %c %s", f.Short, name)
			}
			if takesValue(f) {
				fmt.Fprintf(&values, " %s", fishQuote(path+" --"+f.Name))
				switch all := choices(f.Value); {
				case all != nil:
					name += " -x -a " + fishQuote(strings.Join(all, " "))
				case namesFile(f.PlaceHolder):
					name += " -r -F"
				default:
					name += " -x"
				}
			}
			rule("__locksidecar_flags_of "+fishQuote(path), "%s -d %s", name, fishQuote(summary(f.Help)))
		}
		for i, p := range node.Positional {
			if all := choices(p); all != nil {
				rule(fmt.Sprintf("%s %d", at, i), "-f -a %s", fishQuote(strings.Join(all, " ")))
			} else if namesFile(p.Tag.PlaceHolder) {
				rule(fmt.Sprintf("%s %d", at, i), "-F")
			} else if isLockName(p) {
				rule(fmt.Sprintf("%s %d", at, i), "-f -a '(locksidecar names 2>/dev/null)'")
			}
		}
		if i := commandIndex(node); i >= 0 {
			fmt.Fprintf(&index, "        case %s\n            echo %d\n", fishQuote(path), i)
		}
	}
	return "# Completions of locksidecar for fish: locksidecar completion fish.\n\n" +
		"set -g __locksidecar_commands" + commands.String() + "\n" +
		"# Flags that take a value, with their commands.\n" +
		"set -g __locksidecar_values" + values.String() + "\n\n" +
		"# Which argument of a command begins the command line of another program.\n" +
		"function __locksidecar_command_index\n    switch $argv[1]\n" + index.String() + "        case '*'\n            echo 1000\n    end\nend\n" +
		fishBody + rules.String()
}

// fishQuote returns the text in single quotes, in which fish has two escapes.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
