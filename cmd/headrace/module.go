package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// readModule reads a .hr file, or standard input for "-".
func (a *app) readModule(file string) (name, text string, err error) {
	var raw []byte
	if file == "-" {
		raw, err = io.ReadAll(io.LimitReader(a.in, maxModule+1))
		name, file = "stdin", "stdin"
	} else {
		raw, err = os.ReadFile(file)
		name = strings.TrimSuffix(filepath.Base(file), ".hr")
	}
	if err != nil {
		return "", "", err
	}
	if len(raw) > maxModule {
		return "", "", fail("E2003", exitInvalid, "%s is larger than a module may be, 1 MiB", file)
	}
	return name, string(raw), nil
}

const maxModule = 1 << 20

// shownFile is what diagnostics call a file.
func shownFile(file string) string {
	if file == "-" {
		return "stdin"
	}
	return file
}

func (a *app) applyCmd() *cobra.Command {
	var (
		name   string
		params []string
		opts   client.ApplyOptions
	)
	cmd := &cobra.Command{
		Use: "apply FILE.hr", Short: "Bring the server to a module's text", Args: cobra.ExactArgs(1),
		Long: `Apply sends a module to the server and prints what changes: for each pipeline same (keeps its state),
extend (new), rebuild (computed again) or break. A break is refused unless --allow-break is given.
Applying the same text twice changes nothing.`,
		Example: "  headrace apply examples/flights/flights.hr\n  headrace apply --dry-run examples/retail/retail.hr",
		RunE: func(cmd *cobra.Command, args []string) error {
			base, text, err := a.readModule(args[0])
			if err != nil {
				return err
			}
			if name == "" {
				name = base
			}
			opts.File = shownFile(args[0])
			for _, p := range params {
				k, v, ok := strings.Cut(p, "=")
				if !ok {
					return usageError(cmd, fmt.Sprintf("-p %s: want name=value", p))
				}
				if opts.Params == nil {
					opts.Params = map[string]string{}
				}
				opts.Params[k] = v
			}
			r, err := a.api().Apply(cmd.Context(), name, text, opts)
			if err != nil {
				var e *client.Error
				if !errors.As(err, &e) || len(e.Plan) == 0 {
					return err
				}
				a.printPlan(e.Plan)
				if opts.AllowBreak {
					return err
				}
				return fail("E2009", exitConflict, "module %s is not applied: the change would break readers or writers", name)
			}
			for _, w := range diagnostics(r.Warnings) {
				fmt.Fprint(a.err, dsl.Render(w))
			}
			if done, err := a.asJSON(r); done {
				return err
			}
			a.printPlan(r.Plan)
			if opts.DryRun {
				fmt.Fprintf(a.err, "module %s: nothing was changed (--dry-run)\n", r.Name)
				return nil
			}
			fmt.Fprintf(a.err, "module %s version %d applied\n", r.Name, r.Version)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the module (default: the file's base name)")
	cmd.Flags().StringArrayVarP(&params, "param", "p", nil, "value of a param, `name=value`; may be repeated")
	cmd.Flags().BoolVar(&opts.DryRun, "dry-run", false, "print the plan difference only")
	cmd.Flags().BoolVar(&opts.AllowBreak, "allow-break", false, "carry out changes that break what readers rely on")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) printPlan(changes []client.PlanChange) {
	rows := make([][]any, len(changes))
	for i, c := range changes {
		rows[i] = []any{c.Change, c.Pipeline, c.Why}
	}
	a.table([]column{{name: "change"}, {name: "pipeline"}, {name: "why"}}, rows)
}

// A checkReport is what check says about one file.
type checkReport struct {
	File      string            `json:"file"`
	Topics    int               `json:"topics"`
	Pipelines int               `json:"pipelines"`
	Views     int               `json:"views"`
	Errors    []plan.Diagnostic `json:"errors"`
	Warnings  []plan.Diagnostic `json:"warnings"`
}

func (a *app) checkCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check FILE.hr...", Short: "Compile modules without a server, and show every error", Args: cobra.MinimumNArgs(1),
		Long: `Check compiles modules and shows every error and warning. It needs no server; with --server or --http it
asks one for topics that a module reads and does not declare.`,
		Example: "  headrace check examples/flights/flights.hr",
		RunE: func(cmd *cobra.Command, args []string) error {
			bad := &failure{exit: exitInvalid}
			topics := a.serverTopics(cmd)
			reports := make([]checkReport, 0, len(args))
			for _, file := range args {
				name, text, err := a.readModule(file)
				if err != nil {
					return err
				}
				m, err := dsl.Compile(shownFile(file), text, dsl.Options{Name: name, Catalog: topics.catalog()})
				if topics.err != nil {
					return topics.err
				}
				r := checkReport{File: shownFile(file), Errors: []plan.Diagnostic{}, Warnings: []plan.Diagnostic{}}
				var errs *dsl.Errors
				switch {
				case errors.As(err, &errs):
					r.Errors = errs.List
					bad.diagnostics = append(bad.diagnostics, errs.List...)
				case err != nil:
					return err
				default:
					r.Topics, r.Pipelines, r.Views = len(m.Topics), len(m.Pipelines), len(m.Views)
					r.Warnings = append(r.Warnings, m.Warnings...)
				}
				reports = append(reports, r)
			}
			failed := len(bad.diagnostics) > 0
			if done, err := a.asJSON(reports); done {
				bad.diagnostics = nil // they stand in the reports
				if err == nil && failed {
					return bad
				}
				return err
			}
			for _, r := range reports {
				for _, w := range r.Warnings {
					fmt.Fprint(a.err, dsl.Render(w))
				}
				if len(r.Errors) == 0 {
					fmt.Fprintf(a.out, "%s: %s, %s, %s\n", r.File, plural(r.Topics, "topic"), plural(r.Pipelines, "pipeline"), plural(r.Views, "view"))
				}
			}
			if failed {
				return bad
			}
			return nil
		},
	}
	a.outputFlag(cmd)
	return cmd
}

// serverTopics lets the compiler find topics on a server, if an address was given.
type serverTopics struct {
	ctx context.Context
	api *client.API // nil: none
	err error       // the first failure other than an unknown topic
}

func (a *app) serverTopics(cmd *cobra.Command) *serverTopics {
	s := &serverTopics{ctx: cmd.Context()}
	if cmd.Flags().Changed("server") || cmd.Flags().Changed("http") {
		s.api = a.api()
	}
	return s
}

func (s *serverTopics) catalog() dsl.Catalog {
	if s.api == nil {
		return nil
	}
	return s
}

// Topic implements dsl.Catalog. A topic without a schema is bytes.
func (s *serverTopics) Topic(name string) (*plan.Topic, bool) {
	t, err := s.api.Topic(s.ctx, name)
	if err != nil {
		var refused *client.Error
		if s.err == nil && (!errors.As(err, &refused) || refused.Status != http.StatusNotFound) {
			s.err = err
		}
		return nil, false
	}
	schema, err := client.ParseSchema(t.Schema)
	if err != nil {
		s.err = cmp.Or(s.err, err)
		return nil, false
	}
	if schema == nil {
		opaque := scalar.Type{Kind: scalar.KindBytes, Nullable: true}
		schema = &plan.Topic{Format: plan.FormatRaw, Schema: plan.Schema{Columns: []plan.Column{
			{Name: "key", Input: "key", Type: opaque}, {Name: "value", Input: "value", Type: opaque},
		}}}
	}
	schema.Name, schema.Partitions = t.Name, int(t.Partitions)
	return schema, true
}

func (a *app) fmtCmd() *cobra.Command {
	var write, check bool
	cmd := &cobra.Command{
		Use: "fmt [FILE.hr...]", Short: "Format modules", Args: cobra.ArbitraryArgs,
		Long:    "Fmt prints modules in their canonical form; without files it formats standard input.",
		Example: "  headrace fmt -w examples/flights/flights.hr\n  headrace fmt --check examples/*/*.hr",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"-"}
			}
			differ := false
			for _, file := range args {
				_, text, err := a.readModule(file)
				if err != nil {
					return err
				}
				out, diags := syntax.Format(text)
				if len(diags) > 0 {
					for i := range diags {
						diags[i].File = shownFile(file)
					}
					return invalidModule(diags)
				}
				switch {
				case check:
					if out != text {
						differ = true
						fmt.Fprintln(a.out, file)
					}
				case write && file != "-":
					if out != text {
						if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
							return err
						}
					}
				default:
					_, _ = io.Copy(a.out, bytes.NewReader([]byte(out)))
				}
			}
			if differ {
				return fail("E2008", exitFailed, "files are not formatted")
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the files instead of printing")
	cmd.Flags().BoolVar(&check, "check", false, "list files that differ, and fail if there are any")
	return cmd
}

func (a *app) moduleCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "module", Short: "List, describe, stop and delete modules", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List modules", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			modules, err := a.api().Modules(cmd.Context())
			if err != nil {
				return err
			}
			if done, err := a.asJSON(modules); done {
				return err
			}
			rows := make([][]any, len(modules))
			for i, m := range modules {
				rows[i] = []any{m.Name, m.Version, m.State, len(m.Pipelines), len(m.Views), m.Reason}
			}
			a.table([]column{{name: "name"}, {name: "version", right: true}, {name: "state"}, {name: "pipelines", right: true}, {name: "views", right: true}, {name: "reason", optional: true}}, rows)
			return nil
		},
	}
	describe := &cobra.Command{
		Use: "describe NAME", Short: "Show a module with its text", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.api().Module(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if done, err := a.asJSON(m); done {
				return err
			}
			fmt.Fprintf(a.out, "name     %s\nversion  %d\nstate    %s\n", m.Name, m.Version, m.State)
			if m.Reason != "" {
				fmt.Fprintf(a.out, "reason   %s\n", m.Reason)
			}
			fmt.Fprintln(a.out)
			a.printPipelines(m.Pipelines)
			for _, v := range m.Views {
				fmt.Fprintf(a.out, "view %s of %s\n", v.Name, v.Source)
			}
			fmt.Fprintf(a.out, "\n%s", m.Text)
			return nil
		},
	}
	a.outputFlag(list)
	a.outputFlag(describe)
	cmd.AddCommand(list, describe)
	a.addChanges(cmd, "NAME", "a module's pipelines", "a module with what it derived")
	return cmd
}

// addChanges adds stop, resume and delete.
func (a *app) addChanges(cmd *cobra.Command, arg, stops, deletes string) {
	change := func(verb, past, short string, do func(*cobra.Command, string) error) *cobra.Command {
		return &cobra.Command{
			Use: verb + " " + arg, Short: short, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				if cmd.Parent().Name() == "pipeline" {
					if err := pipelineName(args[0]); err != nil {
						return err
					}
				}
				if err := do(cmd, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "%s %s\n", args[0], past)
				return nil
			},
		}
	}
	cmd.AddCommand(
		change("stop", "stopped", "Stop "+stops+"; progress and state stay", func(c *cobra.Command, n string) error { return a.api().Stop(c.Context(), n) }),
		change("resume", "resumed", "Let stopped or paused pipelines go on", func(c *cobra.Command, n string) error { return a.api().Resume(c.Context(), n) }),
		change("delete", "deleted", "Delete "+deletes, func(c *cobra.Command, n string) error { return a.api().Delete(c.Context(), n) }),
	)
}

func (a *app) pipelineCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pipeline", Short: "List, describe, stop and delete pipelines", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List pipelines", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pipelines, err := a.api().Pipelines(cmd.Context())
			if err != nil {
				return err
			}
			if done, err := a.asJSON(pipelines); done {
				return err
			}
			a.printPipelines(pipelines)
			return nil
		},
	}
	describe := &cobra.Command{
		Use: "describe MODULE/TOPIC", Short: "Show a pipeline's progress, watermark and counters", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := pipelineName(args[0]); err != nil {
				return err
			}
			p, err := a.api().Pipeline(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if done, err := a.asJSON(p); done {
				return err
			}
			a.describePipeline(&p)
			return nil
		},
	}
	a.outputFlag(list)
	a.outputFlag(describe)
	cmd.AddCommand(list, describe)
	a.addChanges(cmd, "MODULE/TOPIC", "a pipeline", "a pipeline with what it derived")
	return cmd
}

// pipelineName refuses the name of a module, whose other pipelines would be meant too.
func pipelineName(name string) error {
	if module, topic, ok := strings.Cut(name, "/"); !ok || module == "" || topic == "" {
		return serverCode("E1065", exitNotFound, "%q is no pipeline", name)
	}
	return nil
}

func (a *app) printPipelines(pipelines []client.Pipeline) {
	rows := make([][]any, len(pipelines))
	for i, p := range pipelines {
		rows[i] = []any{p.Name, p.State, p.Watermark, count(p.Lag), count(p.Counters.In), count(p.Counters.Out), count(p.Counters.Late), count(p.Counters.Invalid), count(p.Counters.Failed), p.Reason}
	}
	a.table([]column{{name: "name"}, {name: "state"}, {name: "watermark"}, {name: "lag", right: true}, {name: "in", right: true}, {name: "out", right: true}, {name: "late", right: true}, {name: "invalid", right: true}, {name: "failed", right: true}, {name: "reason", optional: true}}, rows)
}

func (a *app) describePipeline(p *client.Pipeline) {
	fmt.Fprintf(a.out, "name       %s\nstate      %s\n", p.Name, p.State)
	if p.Reason != "" {
		fmt.Fprintf(a.out, "reason     %s\n", p.Reason)
	}
	fmt.Fprintf(a.out, "source     %s\ntopic      %s\nversion    %s\nstep       %d\nlag        %s records\nstate      %s in %s keys\n",
		p.Source, p.Topic, p.Version, p.Step, count(p.Lag), size(p.StateBytes), count(p.StateRows))
	fmt.Fprintf(a.out, "watermark  %s", p.Watermark)
	if p.HeldBy >= 0 {
		fmt.Fprintf(a.out, ", held by source partition %d", p.HeldBy)
	}
	fmt.Fprintf(a.out, "\nrows       %s in, %s out, %s late, %s invalid, %s failed\n\n",
		count(p.Counters.In), count(p.Counters.Out), count(p.Counters.Late), count(p.Counters.Invalid), count(p.Counters.Failed))
	rows := make([][]any, len(p.Counters.Stages))
	for i, s := range p.Counters.Stages {
		rows[i] = []any{i + 1, s.Stage, count(s.In), count(s.Out), count(s.Filtered), count(s.Late), count(s.Failed)}
	}
	a.table([]column{{name: "stage", right: true}, {name: "what"}, {name: "in", right: true}, {name: "out", right: true}, {name: "filtered", right: true}, {name: "late", right: true}, {name: "failed", right: true}}, rows)
	rows = rows[:0]
	for _, s := range p.Partitions {
		rows = append(rows, []any{s.Partition, s.Next, s.End, s.End - s.Next, s.Watermark})
	}
	fmt.Fprintln(a.out)
	a.table([]column{{name: "partition", right: true}, {name: "next", right: true}, {name: "log end", right: true}, {name: "lag", right: true}, {name: "watermark"}}, rows)
}
