package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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
	b.WriteString("# Error codes\n\nEvery error names a stable code. `headrace explain-error CODE` shows the same text. E0xxx are the language's (E06xx\n" +
		"are row errors, found in the `hr-code` header of side topics), W0xxx warnings, E1xxx the server's, E2xxx the command's.\n")
	for _, c := range allCodes() {
		fmt.Fprintf(&b, "\n## %s\n\n%s. %s\n", c.Code, upperFirst(strings.TrimSuffix(c.Title, ".")), c.Why)
		if c.Fix != "" {
			fmt.Fprintf(&b, "\nFix: %s\n", c.Fix)
		}
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```text\n%s\n```\n", strings.TrimRight(c.Example, "\n"))
		}
	}
	return b.String()
}

func upperFirst(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}

func cliPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# The command\n\n`headrace COMMAND --help` shows the same text. Data goes to standard output, talk to standard error. Exit codes: 0 ok,\n" +
		"1 failed, 2 usage, 3 not found, 4 exists or conflict, 5 denied, 6 unreachable, 7 invalid module or schema, 8 partly done,\n130 interrupted.\n")
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c != root {
			fmt.Fprintf(&b, "\n## %s\n\n", c.CommandPath())
			text := c.Long
			if text == "" {
				text = c.Short + "."
			}
			fmt.Fprintf(&b, "%s\n\n```text\n%s\n", text, c.UseLine())
			if f := c.LocalFlags(); f.HasAvailableFlags() {
				fmt.Fprintf(&b, "\n%s", f.FlagUsages())
			}
			if c.Example != "" {
				fmt.Fprintf(&b, "\n%s\n", c.Example)
			}
			b.WriteString("```\n")
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return b.String()
}
