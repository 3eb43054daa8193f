package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/dsl/plan"
)

// api is the server's HTTP API. A request that is not answered soon says so.
func (a *app) api() *client.API {
	api := client.NewAPI(a.http)
	api.Slow(2*patience, func(request string, waits time.Duration) {
		fmt.Fprintf(a.err, "no answer to %s after %v; waiting on\n", request, waits)
	})
	return api
}

func (a *app) topicCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topic", Short: "Create, list, describe, alter and delete topics", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.topicCreateCmd(), a.topicListCmd(), a.topicDescribeCmd(), a.topicAlterCmd(), a.topicDeleteCmd())
	return cmd
}

// each does something for every name, also behind one for which it fails. It tells every failure, and ends with the
// first one's exit code if nothing was done, else with that for partly.
func (a *app) each(ctx context.Context, names []string, do func(name string) error) error {
	var first *failure
	done := 0
	for _, name := range names {
		err := do(name)
		switch {
		case err == nil:
			done++
			continue
		case len(names) == 1 || ctx.Err() != nil:
			return err
		}
		f := explain(err)
		if first == nil {
			first = &failure{code: f.code, exit: f.exit}
		}
		f.print(a.err)
		if f.exit == exitUnreachable { // the next would fail for the same reason
			break
		}
	}
	if first == nil {
		return nil
	}
	if done > 0 {
		first.exit = exitPartly
	}
	fmt.Fprintf(a.err, "%d of %s done\n", done, plural(len(names), "topic"))
	return first
}

func (a *app) topicCreateCmd() *cobra.Command {
	var (
		partitions int32
		configs    []string
		dryRun     bool
	)
	cmd := &cobra.Command{
		Use: "create NAME...", Short: "Create topics", Args: cobra.MinimumNArgs(1),
		Example: "  headrace topic create orders -p 4\n  headrace topic create logs -c retention.ms=86400000",
		RunE: func(cmd *cobra.Command, args []string) error {
			if partitions < 1 {
				return usageError(cmd, fmt.Sprintf("-p %d: a topic has 1 to 10000 partitions", partitions))
			}
			spec := client.TopicSpec{Partitions: partitions, DryRun: dryRun, Configs: map[string]string{}}
			for _, c := range configs {
				k, v, ok := strings.Cut(c, "=")
				if !ok {
					return usageError(cmd, fmt.Sprintf("-c %s: want key=value", c))
				}
				if _, twice := spec.Configs[k]; twice {
					return usageError(cmd, fmt.Sprintf("-c %s is given twice", k))
				}
				spec.Configs[k] = v
			}
			return a.each(cmd.Context(), args, func(name string) error {
				spec.Name = name
				t, err := a.api().CreateTopic(cmd.Context(), spec)
				if err != nil {
					return err
				}
				what := "created"
				if dryRun {
					what = "could be created"
				}
				fmt.Fprintf(a.err, "topic %s %s with %s\n", t.Name, what, plural(t.Partitions, "partition"))
				return nil
			})
		},
	}
	cmd.Flags().Int32VarP(&partitions, "partitions", "p", 1, "number of partitions")
	cmd.Flags().StringArrayVarP(&configs, "config", "c", nil, "setting `key=value`, as Kafka names them; may be repeated")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check only")
	return cmd
}

func (a *app) topicListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List topics, derived topics and views", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			topics, err := a.api().Topics(cmd.Context())
			if err != nil {
				return err
			}
			if done, err := a.asJSON(topics); done {
				return err
			}
			rows := make([][]any, len(topics))
			for i, t := range topics {
				from := t.Owner
				if t.Source != "" {
					from = "of " + t.Source
				}
				rows[i] = []any{t.Name, t.Kind, t.Partitions, from}
			}
			a.table([]column{{name: "name"}, {name: "kind"}, {name: "partitions", right: true}, {name: "written by", optional: true}}, rows)
			return nil
		},
	}
	a.outputFlag(cmd)
	return cmd
}

// mainSettings are shown of every topic; the others when they were set.
var mainSettings = []string{
	"cleanup.policy", "headrace.retention.consumers", "max.message.bytes", "message.timestamp.type", "retention.bytes", "retention.ms",
}

func (a *app) topicDescribeCmd() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "Show a topic's columns, offsets and settings", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := a.api().Topic(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if done, err := a.asJSON(t); done {
				return err
			}
			fmt.Fprintf(a.out, "name        %s\nkind        %s\nid          %s\npartitions  %d\n", t.Name, t.Kind, t.ID, t.Partitions)
			if t.Owner != "" {
				fmt.Fprintf(a.out, "written by  %s\n", t.Owner)
			}
			if t.Source != "" {
				fmt.Fprintf(a.out, "view of     %s\n", t.Source)
			}
			if len(t.Readers) > 0 {
				fmt.Fprintf(a.out, "read by     %s\n", strings.Join(t.Readers, ", "))
			}
			if t.Records != nil {
				fmt.Fprintf(a.out, "offsets     %s\n", count(*t.Records))
			}
			if err := a.printSchema(&t); err != nil {
				return err
			}
			rows := make([][]any, len(t.Ranges))
			for i, r := range t.Ranges {
				rows[i] = []any{r.Partition, r.LogStart, r.LogEnd, size(r.Bytes)}
			}
			fmt.Fprintln(a.out)
			a.table([]column{{name: "partition", right: true}, {name: "log start", right: true}, {name: "log end", right: true}, {name: "size", right: true}}, rows)
			rows = rows[:0]
			for _, c := range t.Configs {
				if all || c.Source != "default" || slices.Contains(mainSettings, c.Name) {
					note := ""
					if !c.Honoured {
						note = "without effect"
					}
					rows = append(rows, []any{c.Name, c.Value, c.Source, c.DefaultValue, note})
				}
			}
			if len(rows) > 0 {
				fmt.Fprintln(a.out)
				a.table([]column{{name: "setting"}, {name: "value"}, {name: "from"}, {name: "default"}, {name: "note", optional: true}}, rows)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "show every setting, also those that were not set")
	a.outputFlag(cmd)
	return cmd
}

// printSchema lists the columns of a topic that has declared ones.
func (a *app) printSchema(t *client.Topic) error {
	schema, err := client.ParseSchema(t.Schema)
	if schema == nil || err != nil {
		return err
	}
	format := "json"
	switch schema.Format {
	case plan.FormatCSV:
		format = "csv"
	case plan.FormatArrow:
		format = "arrow"
	case plan.FormatLines:
		format = "lines"
	case plan.FormatRegex:
		format = fmt.Sprintf("regex(%q)", schema.Pattern)
	}
	fmt.Fprintf(a.out, "format      %s\n\n", format)
	rows := make([][]any, len(schema.Schema.Columns))
	for i, c := range schema.Schema.Columns {
		field, key := "", ""
		if c.Input != c.Name {
			field = c.Input
		}
		if slices.Contains(schema.Key, i) {
			key = "key"
		}
		rows[i] = []any{c.Name, c.Type.String(), field, key}
	}
	a.table([]column{{name: "column"}, {name: "type"}, {name: "field", optional: true}, {name: "key", optional: true}}, rows)
	return nil
}

func (a *app) topicDeleteCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME...", Short: "Delete topics with their records", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(name string) error {
				if err := a.api().DeleteTopic(cmd.Context(), name); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "topic %s deleted\n", name)
				return nil
			})
		},
	}
	return cmd
}
