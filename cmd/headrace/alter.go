package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/headrace/headrace/client"
)

func (a *app) topicAlterCmd() *cobra.Command {
	var (
		set, unset  []string
		dryRun, yes bool
	)
	cmd := &cobra.Command{
		Use: "alter NAME", Short: "Change a topic's settings while it is in use", Args: cobra.ExactArgs(1),
		Long: `Change settings of a topic. They are in force when the command returns: nothing is restarted.

It shows what changes first. A change that deletes records says about how many, and asks on a terminal, unless --yes
is given.`,
		Example: "  headrace topic alter orders --set retention.ms=604800000 --set headrace.retention.consumers=pipelines,groups\n" +
			"  headrace topic alter orders --unset retention.ms --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			change := client.TopicChange{Set: map[string]string{}, Unset: unset, DryRun: true}
			for _, c := range set {
				k, v, ok := strings.Cut(c, "=")
				if !ok {
					return usageError(cmd, fmt.Sprintf("--set %s: want key=value", c))
				}
				if _, twice := change.Set[k]; twice {
					return usageError(cmd, fmt.Sprintf("--set %s is given twice", k))
				}
				change.Set[k] = v
			}
			if len(set)+len(unset) == 0 {
				return usageError(cmd, "nothing to change: give --set or --unset")
			}
			what, err := a.api().AlterTopic(cmd.Context(), args[0], change)
			if err != nil {
				return err
			}
			if !dryRun {
				if a.output != outputJSON {
					a.printAlteration(&what, false)
				}
				if !yes && len(what.Changed) > 0 && what.Deletes.Records > 0 && !a.confirm() {
					fmt.Fprintln(a.err, "nothing was changed")
					return nil
				}
				change.DryRun = false
				if what, err = a.api().AlterTopic(cmd.Context(), args[0], change); err != nil {
					return err
				}
			}
			if done, err := a.asJSON(what); done {
				return err
			}
			if dryRun {
				a.printAlteration(&what, true)
			} else if len(what.Changed) > 0 {
				fmt.Fprintf(a.err, "topic %s altered\n", what.Name)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "setting `key=value`, as Kafka names them; may be repeated")
	cmd.Flags().StringArrayVar(&unset, "unset", nil, "`key` of a setting that is to be the default again; may be repeated")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before records are deleted")
	a.outputFlag(cmd)
	return cmd
}

func (a *app) printAlteration(what *client.TopicAlteration, dryRun bool) {
	if len(what.Changed) == 0 {
		fmt.Fprintf(a.err, "topic %s has these settings already\n", what.Name)
		return
	}
	rows := make([][]any, len(what.Changed))
	for i, c := range what.Changed {
		after := c.After
		if c.Default {
			after += " (default)"
		}
		rows[i] = []any{c.Name, c.Before, after}
	}
	a.table([]column{{name: "setting"}, {name: "now"}, {name: "then"}}, rows)
	if d := what.Deletes; d.Records > 0 {
		verb := "deletes"
		if dryRun {
			verb = "would delete"
		}
		fmt.Fprintf(a.err, "warning: with these settings retention %s about %s (%s)\n", verb, plural(d.Records, "record"), size(d.Bytes))
	}
	if d := what.Deletes; d.Held > 0 {
		fmt.Fprintf(a.err, "%s more would go, but consumers have yet to read them\n", plural(d.Held, "record"))
	}
}

// confirm asks on a terminal; elsewhere the answer is yes.
func (a *app) confirm() bool {
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return true
	}
	return a.ask(in)
}

// ask takes only y and yes for a yes.
func (a *app) ask(in io.Reader) bool {
	fmt.Fprint(a.err, "go on? [y/N] ")
	line, _ := bufio.NewReader(in).ReadString('\n') // the end of the input is a no
	line = strings.ToLower(strings.TrimSpace(line))
	return line == "y" || line == "yes"
}
