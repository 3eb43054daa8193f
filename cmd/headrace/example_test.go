package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commandLine splits the first command of a line as a shell does: quotes hold text together, and a pipe or a redirection
// ends it.
func commandLine(line string) (args []string, err error) {
	var word strings.Builder
	var quote rune
	begun := false
	end := func() {
		if begun {
			args = append(args, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case strings.ContainsRune("|<>;&#", r):
			end()
			return args, nil
		case r == ' ':
			end()
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	if quote != 0 {
		return nil, fmt.Errorf("%c is not closed", quote)
	}
	return args, nil
}

// examples are the lines of a command's help that call the command, those behind a pipe included.
func examples(c *cobra.Command) (lines []string) {
	for line := range strings.Lines(c.Example) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "headrace ") {
			lines = append(lines, line)
		} else if _, piped, ok := strings.Cut(line, "| headrace "); ok {
			lines = append(lines, "headrace "+piped)
		}
	}
	for line := range strings.Lines(c.Long) {
		if label, rest, ok := strings.Cut(strings.TrimSpace(line), ":  "); ok && label != "" && strings.HasPrefix(strings.TrimSpace(rest), "headrace ") {
			lines = append(lines, strings.TrimSpace(rest))
		}
	}
	return lines
}

// named are the arguments that name files to read.
func named(args []string) (files []string) {
	for _, arg := range args {
		if ext := filepath.Ext(arg); slices.Contains([]string{".hr", ".csv", ".gz", ".json", ".ndjson", ".txt"}, ext) {
			files = append(files, arg)
		}
	}
	return files
}

// checkExample judges a line without running it, seen from the directory root.
func checkExample(line, root string) error {
	args, err := commandLine(line)
	if err != nil {
		return err
	}
	cmd, rest, err := (&app{}).root().Find(args[1:])
	if err != nil {
		return err
	}
	if !cmd.HasParent() || cmd.HasSubCommands() {
		return fmt.Errorf("%s is no command that does something", cmd.CommandPath())
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	if err := cmd.ValidateFlagGroups(); err != nil {
		return err
	}
	for _, file := range named(cmd.Flags().Args()) {
		if found, err := filepath.Glob(filepath.Join(root, file)); err != nil || len(found) == 0 {
			return fmt.Errorf("%s: %w", file, os.ErrNotExist)
		}
	}
	return nil
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}

// A reader of the help who copies an example from the root of the repository gets a command that can run.
func TestExamplesOfTheHelpAreCommandsThatCanRun(t *testing.T) {
	checked := 0
	walk((&app{}).root(), func(c *cobra.Command) {
		lines := examples(c)
		if c.Example != "" && len(lines) == 0 {
			t.Errorf("%s: no line of its example calls the command", c.CommandPath())
		}
		for _, line := range lines {
			checked++
			if err := checkExample(line, "../.."); err != nil {
				t.Errorf("%s: %s: %v", c.CommandPath(), line, err)
			}
		}
	})
	if checked < 20 {
		t.Errorf("%d examples were found", checked)
	}
}

// The test above notices what it is there for.
func TestExamplesThatCannotRunAreNoticed(t *testing.T) {
	for _, line := range []string{
		"headrace aply examples/flights/flights.hr", "headrace topic", "headrace topic crate x", "headrace apply", "headrace apply nothing.hr",
		"headrace apply examples/flights/flights.hr --dry", "headrace produce", "headrace consume x -n five", "headrace produce x -f '%k",
		"headrace fmt examples/*/*.csv",
	} {
		if err := checkExample(line, "../.."); err == nil {
			t.Errorf("%s: taken", line)
		}
	}
	for _, line := range []string{"headrace produce x -f '%k | %v' < pairs.tsv", "headrace consume x -O -10 | head"} {
		if err := checkExample(line, "../.."); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}
