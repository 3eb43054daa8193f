package main

import (
	"encoding/json"
	"fmt"

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

// json reports whether -o json was asked for, and if so writes v.
func (a *app) asJSON(v any) (bool, error) {
	if a.output != outputJSON {
		return false, nil
	}
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return true, enc.Encode(v)
}

// A column of a table: numbers stand to the right.
type column struct {
	name  string
	right bool
}

// table writes rows under a header, without lines, so that the output can be cut by other programs.
func (a *app) table(columns []column, rows [][]any) {
	t := table.NewWriter()
	t.SetOutputMirror(a.out)
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
	t.Render()
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
