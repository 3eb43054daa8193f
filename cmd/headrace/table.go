package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
)

// Output forms of read commands.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// outputFlag adds -o to a read command.
func (a *app) outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", outputTable, "output form: table or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp))
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if a.output != outputTable && a.output != outputJSON {
			return usageError(cmd, fmt.Sprintf("-o %s: want table or json", a.output))
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
}

// asJSON reports whether -o json was asked for, and if so writes v.
func (a *app) asJSON(v any) (bool, error) {
	if a.output != outputJSON {
		return false, nil
	}
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return true, enc.Encode(v)
}

// A column of a table: numbers stand to the right. An optional one is left out when it has nothing.
type column struct {
	name     string
	right    bool
	optional bool
}

// table writes rows under a header, without lines, so that the output can be cut by other programs.
func (a *app) table(columns []column, rows [][]any) {
	columns, rows = withoutEmpty(columns, rows)
	t := table.NewWriter()
	s := table.StyleDefault
	s.Options = table.OptionsNoBordersAndSeparators
	s.Box.PaddingLeft, s.Box.PaddingRight = "", "  "
	s.Format.Header = text.FormatUpper
	t.SetStyle(s)
	header := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, c := range columns {
		header[i] = c.name
		configs[i].Number = i + 1
		if c.right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.AppendHeader(header)
	t.SetColumnConfigs(configs)
	for _, r := range rows {
		t.AppendRow(r)
	}
	for line := range strings.Lines(t.Render() + "\n") {
		fmt.Fprintln(a.out, strings.TrimRight(line, " \n"))
	}
}

// withoutEmpty leaves out the optional columns without a value.
func withoutEmpty(columns []column, rows [][]any) ([]column, [][]any) {
	var keep []int
	for i, c := range columns {
		if !c.optional || slices.ContainsFunc(rows, func(r []any) bool { return r[i] != "" }) {
			keep = append(keep, i)
		}
	}
	cols := make([]column, len(keep))
	for k, i := range keep {
		cols[k] = columns[i]
	}
	out := make([][]any, len(rows))
	for r := range rows {
		for _, i := range keep {
			out[r] = append(out[r], rows[r][i])
		}
	}
	return cols, out
}

// count writes a number with thousands separated by commas, for people.
func count[T ~int | ~int32 | ~int64 | ~uint64](n T) string {
	s := fmt.Sprint(n)
	start := 0
	if s[0] == '-' {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural writes a number and its noun.
func plural[T ~int | ~int32 | ~int64](n T, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return count(n) + " " + noun
}

// size writes bytes in binary units.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n), -1
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[u])
}
