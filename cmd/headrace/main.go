// Command headrace is the whole of Headrace in one binary: the server, the client commands, the demo and
// the benchmarks. It holds flags, wiring and exit codes, and decides nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func init() {
	cobra.EnableCommandSorting = false // help lists commands in the order of their use
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// An app is what the commands share.
type app struct {
	in       io.Reader
	out, err io.Writer

	server string // Kafka address
	http   string // HTTP address
	output string // -o
}

// run executes one command line and answers its exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	a := &app{in: in, out: out, err: errw}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && !isFailure(err) {
		fmt.Fprintln(errw, "interrupted")
		return exitInterrupted
	}
	f := explain(err)
	f.print(errw)
	return f.exit
}

func isFailure(err error) bool {
	var f *failure
	return errors.As(err, &f)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "headrace",
		Short: "A stream-processing engine with its own message log",
		Long: `Headrace is a stream-processing engine with its own message log: a durable, low-latency commit log
that Kafka clients write and read, and pipelines over it, in one binary.

Start a server:        headrace serve --data ./data
Apply a module:        headrace apply examples/flights/flights.hr
Send it records:       headrace produce flights examples/data/flights_2001-01-01_14.csv.gz --end
Read what it derives:  headrace consume hub_hours -n 5
Or see all of it:      headrace demo`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("headrace {{.Version}}\n")
	root.PersistentFlags().StringVar(&a.server, "server", env("HEADRACE_SERVER", defaultKafka), "Kafka address of the server (env HEADRACE_SERVER)")
	root.PersistentFlags().StringVar(&a.http, "http", env("HEADRACE_HTTP", defaultHTTP), "HTTP address of the server (env HEADRACE_HTTP)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(cmd, err.Error())
	})
	root.AddGroup(
		&cobra.Group{ID: "server", Title: "Server:"},
		&cobra.Group{ID: "data", Title: "Topics and records:"},
		&cobra.Group{ID: "pipelines", Title: "Modules and pipelines:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("server", a.serveCmd(), a.statusCmd(), a.demoCmd(), a.benchCmd())
	add("data", a.topicCmd(), a.produceCmd(), a.consumeCmd())
	add("pipelines", a.applyCmd(), a.checkCmd(), a.explainCmd(), a.fmtCmd(), a.moduleCmd(), a.pipelineCmd())
	add("other", a.versionCmd(), a.explainErrorCmd(), a.debugCmd(), a.docsCmd())
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	explainArgs(root)
	return root
}

// explainArgs makes wrong arguments usage errors that show the usage of their command.
func explainArgs(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		explainArgs(sub)
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		switch {
		case err == nil:
			return nil
		case cmd.HasSubCommands() && len(args) > 0:
			return unknownCommand(cmd, args[0])
		case strings.HasPrefix(err.Error(), "unknown command"):
			return usageError(cmd, fmt.Sprintf("`%s` takes no argument, not %q", cmd.CommandPath(), args[0]))
		}
		what := strings.ReplaceAll(err.Error(), "1 arg(s)", "1 argument")
		return usageError(cmd, strings.ReplaceAll(what, "arg(s)", "arguments"))
	}
}

func unknownCommand(cmd *cobra.Command, name string) *failure {
	f := usageError(cmd, fmt.Sprintf("`%s` has no command %q", cmd.CommandPath(), name))
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	f.why = "Its commands are " + strings.Join(names, ", ") + "."
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		f.fix = fmt.Sprintf("Did you mean `%s %s`?", cmd.CommandPath(), near[0])
	}
	return f
}

const (
	defaultKafka = "127.0.0.1:9092"
	defaultHTTP  = "127.0.0.1:8090"
)

func env(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}
