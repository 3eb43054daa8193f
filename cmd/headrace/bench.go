package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/bench"
	"github.com/headrace/headrace/internal/nexmark"
)

func (a *app) benchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure ingest, latency, replay, pipelines, many partitions, recovery", Args: cobra.NoArgs,
		Long: `Bench measures end to end and prints each figure beside what bounds it: the disk's own sync time,
memory and processor time. Without --server a server runs inside the process, in a temporary directory.

With --server, and --http for its HTTP address, ingest, latency, pipeline, nexmark and replay measure a server that
runs. They make topics named bench-... on it, pipeline and nexmark a module too, and remove them at the end, also after Ctrl-C; with --keep they
stay. The other benchmarks kill, restart or fill a server of their own and refuse --server.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var (
		o       bench.Options
		profile string
	)
	one := func(use, short, example string, flags func(*cobra.Command), run func(context.Context, bench.Options) (*bench.Report, error)) {
		c := &cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs, Example: "  headrace bench " + example,
			RunE: func(cmd *cobra.Command, _ []string) error {
				o.Out = a.err
				if err := checkBenchFlags(cmd); err != nil {
					return err
				}
				if f := cmd.Flags().Lookup("server"); f != nil && f.Changed {
					o.Server, o.HTTP = a.server, a.http
				}
				stop, err := startProfile(profile)
				if err != nil {
					return err
				}
				r, err := run(cmd.Context(), o)
				stop()
				if bad := (*bench.OptionError)(nil); errors.As(err, &bad) {
					return usageError(cmd, bad.What)
				}
				if err != nil {
					return err
				}
				if done, err := a.asJSON(r); done {
					return err
				}
				fmt.Fprint(a.out, r.Text())
				return nil
			},
		}
		c.Flags().StringVar(&o.Dir, "dir", "", "where the server's directory is made (default: the system's temporary directory)")
		c.Flags().StringVar(&profile, "cpuprofile", "", "write a processor profile of this process to a file, for go tool pprof")
		flags(c)
		a.outputFlag(c)
		cmd.AddCommand(c)
	}
	size := func(c *cobra.Command, n int) {
		text := "bytes of a record"
		if n > 0 {
			text += fmt.Sprintf(" (default %d)", n)
		}
		c.Flags().IntVar(&o.Size, "size", 0, text)
	}
	keep := func(c *cobra.Command) {
		c.Flags().BoolVar(&o.Keep, "keep", false, "with --server: leave the topics and the module that were made")
	}
	seconds := func(c *cobra.Command, n int) {
		c.Flags().IntVar(&o.Seconds, "seconds", 0, fmt.Sprintf("seconds to measure (default %d)", n))
	}
	partitions := func(c *cobra.Command, n int) {
		c.Flags().IntVar(&o.Partitions, "partitions", 0, fmt.Sprintf("partitions (default %d)", n))
	}
	publish := func(c *cobra.Command) {
		c.Flags().StringVar(&o.Client, "client", bench.ClientKgo, "the client: kgo (franz-go) or native (our own)")
		c.Flags().StringVar(&o.Durability, "durability", "", "the topic's durability: sync, semi-sync or async (default: the server's)")
		c.Flags().IntVar(&o.Connections, "connections", 1, "publishers, each with a connection of its own")
		keep(c)
	}
	one("ingest", "Saturate the Kafka front with durable records", "ingest --client native --size 100 --seconds 10", func(c *cobra.Command) {
		size(c, 100)
		seconds(c, 10)
		partitions(c, 1)
		publish(c)
		c.Flags().BoolVar(&o.Compare, "compare", false, "measure franz-go into an in-memory Kafka double too, for the ratio")
		c.Flags().BoolVar(&o.Columns, "columns", false, "send rows of 43 B in columns, with client.Ingest, to a topic of format arrow")
		c.Flags().IntVar(&o.Rate, "rate", 0, "with --columns: rows offered a second (default: as many as can be)")
		c.Flags().BoolVar(&o.WithPipeline, "with-pipeline", false, "with --columns: a pipeline filters the rows meanwhile, and aggregates a tenth of them by country")
		c.Flags().Int64Var(&o.RetainBytes, "retain-bytes", 0, "with --columns: bytes that the topic keeps (default 5 GiB)")
	}, bench.Ingest)
	one("latency", "Publish latency at a fixed rate, open loop", "latency --rate 20000 --size 1024 --seconds 60", func(c *cobra.Command) {
		size(c, 1024)
		seconds(c, 10)
		partitions(c, 1)
		publish(c)
		c.Flags().IntVar(&o.Rate, "rate", 0, "records offered a second (default 20000)")
		c.Flags().BoolVar(&o.One, "one", false, "send one record when the one before is acknowledged, at no rate")
	}, bench.Latency)
	one("pipeline", "JSON rows through a filter and a window into a derived topic", "pipeline --rows 2000000", func(c *cobra.Command) {
		c.Flags().IntVar(&o.Rows, "rows", 0, "rows (default 2000000)")
		partitions(c, 2)
		keep(c)
	}, bench.Pipeline)
	one("nexmark", "A query of Nexmark over events in the log", "nexmark --query q1 --events 1000000", func(c *cobra.Command) {
		c.Flags().StringVar(&o.Query, "query", "", "the query, one of "+nexmark.Names()+" (default q0)")
		c.Flags().Int64Var(&o.Events, "events", 0, "events, made and written before the clock starts (default 1000000)")
		c.Flags().StringVar(&o.Format, "format", "", "how events and results are stored: json or arrow (default json)")
		c.Flags().Int64Var(&o.EventRate, "event-rate", 0, "events in a second of event time (default 10000)")
		partitions(c, 2)
		keep(c)
	}, bench.Nexmark)
	var idle bool
	one("partitions", "Many partitions: throughput, or start and idle memory", "partitions --active 10000", func(c *cobra.Command) {
		c.Flags().IntVar(&o.Active, "active", 0, "measure the throughput of so many partitions against 10, by turns, with records of --size or of 100 B and 1 KiB")
		c.Flags().BoolVar(&idle, "idle", false, "measure --topics topics of --partitions each (default 100 of 1000): start after a stop and a kill, memory, metadata")
		c.Flags().IntVar(&o.Topics, "topics", 0, "topics of one partition (default 10000)")
		c.Flags().IntVar(&o.Partitions, "partitions", 0, "partitions of one more topic (default 1000)")
		size(c, 0)
		seconds(c, 2)
	}, func(ctx context.Context, o bench.Options) (*bench.Report, error) {
		switch {
		case o.Active > 0 && idle:
			return nil, &bench.OptionError{What: "--active and --idle exclude each other"}
		case o.Active > 0:
			return bench.Active(ctx, o)
		case idle:
			return bench.Idle(ctx, o)
		}
		return bench.Partitions(ctx, o)
	})
	one("recovery", "Start after a kill under full load", "recovery --seconds 5", func(c *cobra.Command) {
		size(c, 100)
		seconds(c, 5)
	}, bench.Recovery)
	addReads(&o, one)
	return cmd
}

// checkBenchFlags refuses numbers out of range that were given: only a flag that was not has its default.
func checkBenchFlags(cmd *cobra.Command) error {
	for _, b := range bench.Bounds {
		f := cmd.Flags().Lookup(b.Flag)
		if f == nil || !f.Changed {
			continue
		}
		v, err := strconv.ParseInt(f.Value.String(), 10, 64)
		if err == nil {
			err = b.Check(v)
		}
		if bad := (*bench.OptionError)(nil); errors.As(err, &bad) {
			return usageError(cmd, bad.What)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startProfile profiles this process until stop is called; "" does nothing.
func startProfile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a profile that is cut short says so when it is read
	}, nil
}
