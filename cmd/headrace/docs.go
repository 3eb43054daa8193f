package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// docsCmd writes the reference pages that come from the code itself.
func (a *app) docsCmd() *cobra.Command {
	var (
		dir   string
		check bool
	)
	cmd := &cobra.Command{
		Use: "docs", Short: "Write docs/errors.md and docs/cli.md from the code", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			for _, name := range []string{"HEADRACE_SERVER", "HEADRACE_HTTP", "HEADRACE_DATA_DIR"} {
				if err := os.Unsetenv(name); err != nil { // they are defaults of flags
					return err
				}
			}
			for name, text := range map[string]string{"errors.md": errorsPage(), "cli.md": cliPage((&app{}).root())} {
				path := filepath.Join(dir, name)
				if !check {
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						return err
					}
					continue
				}
				have, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if !bytes.Equal(have, []byte(text)) {
					return fail("E2007", exitFailed, "%s is not what the code says; run `make docs`", path)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "docs", "directory of the pages")
	cmd.Flags().BoolVar(&check, "check", false, "compare instead of writing")
	return cmd
}

func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Error codes\n\nEvery error has a stable code. `headrace explain-error CODE` shows the text below.\n")
	codes := allCodes()
	slices.SortStableFunc(codes, func(x, y codeInfo) int { return cmp.Compare(codePart(x.Code), codePart(y.Code)) })
	part := -1
	for _, c := range codes {
		if p := codePart(c.Code); p != part {
			part = p
			fmt.Fprintf(&b, "\n## %s\n", codeParts[part])
		}
		fmt.Fprintf(&b, "\n### %s: %s\n\n%s\n", c.Code, strings.TrimSuffix(c.Title, "."), c.Why)
		if c.Fix != "" {
			fmt.Fprintf(&b, "\nFix: %s\n", c.Fix)
		}
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```text\n%s\n```\n", strings.TrimRight(c.Example, "\n"))
		}
	}
	return b.String()
}

var codeParts = []string{
	"The language", "Of the language, not built yet", "Warnings of the language",
	"Rows (in the `hr-code` header of side topics)", "The log and the server", "The command",
}

// codePart is the part of the page that a code stands in, an index into codeParts.
func codePart(code string) int {
	for i, prefix := range []string{"E09", "W", "E06", "E1", "E2"} {
		if strings.HasPrefix(code, prefix) {
			return i + 1
		}
	}
	return 0
}

func cliPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# The command

` + "`headrace COMMAND --help`" + ` shows the same text. Data goes to standard output, talk to standard error; ` + "`-o json`" + ` gives
read commands the fields of the API.

| exit code | meaning |
| --- | --- |
| 0 | ok |
| 1 | failed |
| 2 | the command line is wrong |
| 3 | not found |
| 4 | exists already, or conflict |
| 5 | denied |
| 6 | the server cannot be reached, or is not ready |
| 7 | the module, schema or input is invalid |
| 8 | partly done |
| 9 | a data directory is torn: the next start mends it |
| 10 | a data directory is rotten, or cannot be repaired without a loss |
| 130 | interrupted |

An error says what happened, why, what to do, and its [code](errors.md):

`)
	b.WriteString("```text\n")
	serverCode("E1001", exitNotFound, "topic %q does not exist", "orders").print(&b)
	b.WriteString("```\n\nEvery command takes\n\n```text\n" + root.PersistentFlags().FlagUsages() + "```\n")
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.Name() != "help" && c.Name() != "completion" {
				cliCommand(&b, c)
			}
		}
	}
	b.WriteString("\n### headrace completion\n\n`headrace completion bash|zsh|fish|powershell` prints a script for the shell; its `--help` says where to put it.\n")
	return b.String()
}

// cliCommand describes a command and those below it.
func cliCommand(b *strings.Builder, c *cobra.Command) {
	if c.Hidden {
		return
	}
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "\n### %s\n\n%s\n", c.CommandPath(), text)
	if !c.HasSubCommands() {
		fmt.Fprintf(b, "\n```text\n%s\n", c.UseLine())
		if f := c.LocalFlags(); f.HasAvailableFlags() {
			fmt.Fprintf(b, "\n%s", f.FlagUsages())
		}
		b.WriteString("```\n")
		if c.Example != "" {
			fmt.Fprintf(b, "\nFor example\n\n```text\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
		}
	}
	for _, sub := range c.Commands() {
		cliCommand(b, sub)
	}
}
