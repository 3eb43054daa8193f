package main

import (
	"fmt"
	goruntime "runtime"
	"runtime/debug"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/server"
)

func (a *app) versionCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Show the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := map[string]string{"version": version, "go": goruntime.Version(), "platform": goruntime.GOOS + "/" + goruntime.GOARCH}
			if bi, ok := debug.ReadBuildInfo(); ok {
				for _, s := range bi.Settings {
					if s.Key == "vcs.revision" {
						v["commit"] = s.Value
					}
				}
			}
			if done, err := a.asJSON(v); done {
				return err
			}
			fmt.Fprintf(a.out, "headrace %s %s %s\n", v["version"], v["go"], v["platform"])
			return nil
		},
	}
	a.outputFlag(cmd)
	return cmd
}

func (a *app) explainCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain FILE.hr", Short: "Show how a module runs: stages, keys, shuffles, state, kernels", Args: cobra.ExactArgs(1),
		Example: "  headrace explain examples/flights/flights.hr",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, text, err := a.readModule(args[0])
			if err != nil {
				return err
			}
			topics := a.serverTopics(cmd)
			m, err := dsl.Compile(shownFile(args[0]), text, dsl.Options{Name: name, Catalog: topics.catalog()})
			if topics.err != nil {
				return topics.err
			}
			if err != nil {
				return err
			}
			out := runtime.Explain(m)
			if done, err := a.asJSON(map[string]any{"module": m.Name, "plan": strings.Split(strings.TrimRight(out, "\n"), "\n")}); done {
				return err
			}
			fmt.Fprint(a.out, out)
			return nil
		},
	}
	a.outputFlag(cmd)
	return cmd
}

// allCodes lists the error codes of the language, of rows, of the server and of the command.
func allCodes() []codeInfo {
	var out []codeInfo
	for _, c := range dsl.Codes() {
		out = append(out, codeInfo{Code: c.Code, Title: c.Title, Why: c.Explanation, Example: c.Example})
	}
	for _, c := range server.Codes() {
		out = append(out, codeInfo{Code: c.Code, Title: c.Title, Why: c.Why, Fix: c.Fix})
	}
	out = append(out, commandCodes...)
	sort.SliceStable(out, func(i, j int) bool { return out[i].Code < out[j].Code })
	return out
}

func (a *app) explainErrorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain-error [CODE]", Short: "Explain an error code, or list them all", Args: cobra.MaximumNArgs(1),
		Example: "  headrace explain-error E0104",
		RunE: func(_ *cobra.Command, args []string) error {
			codes := allCodes()
			if len(args) == 0 {
				if done, err := a.asJSON(codes); done {
					return err
				}
				rows := make([][]any, len(codes))
				for i, c := range codes {
					rows[i] = []any{c.Code, c.Title}
				}
				a.table([]column{{name: "code"}, {name: "what"}}, rows)
				return nil
			}
			for _, c := range codes {
				if strings.EqualFold(c.Code, args[0]) {
					if done, err := a.asJSON(c); done {
						return err
					}
					fmt.Fprintf(a.out, "%s %s\n  why: %s\n", c.Code, c.Title, c.Why)
					if c.Fix != "" {
						fmt.Fprintf(a.out, "  fix: %s\n", c.Fix)
					}
					if c.Example != "" {
						fmt.Fprintf(a.out, "  for example:\n%s\n", "    "+strings.ReplaceAll(strings.TrimRight(c.Example, "\n"), "\n", "\n    "))
					}
					return nil
				}
			}
			return fail("E2010", exitNotFound, "no error has the code %s", args[0])
		},
	}
	a.outputFlag(cmd)
	return cmd
}
