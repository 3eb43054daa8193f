package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/internal/bench"
)

// addReads adds the benchmarks of the read path. one is benchCmd's.
func addReads(o *bench.Options, one func(use, short, example string, flags func(*cobra.Command), run func(context.Context, bench.Options) (*bench.Report, error))) {
	common := func(c *cobra.Command, seconds string) {
		c.Flags().IntVar(&o.Size, "size", 0, "bytes of a record (default 1024)")
		c.Flags().IntVar(&o.Seconds, "seconds", 0, seconds)
		c.Flags().IntVar(&o.Partitions, "partitions", 0, "partitions (default 1)")
		c.Flags().Int64Var(&o.Bytes, "bytes", 0, "bytes of records to fill the topic with (default 536870912)")
	}
	one("replay", "Fill a topic and read all of it back", "replay --size 1024 --client native", func(c *cobra.Command) {
		common(c, "seconds to read at least; what is read is read whole (default 3)")
		c.Flags().StringVar(&o.Client, "client", "", "who reads: native or kgo (default native)")
		c.Flags().BoolVar(&o.Cold, "cold", false, "drop the files from the page cache first, and read once from the disk")
		c.Flags().BoolVar(&o.Keep, "keep", false, "with --server: leave the topic that was made")
	}, bench.Replay)
	one("backlog", "Publish latency with and without a consumer that catches up", "backlog --rate 20000 --seconds 10", func(c *cobra.Command) {
		common(c, "seconds to measure, half of them beside the reader (default 10)")
		c.Flags().IntVar(&o.Rate, "rate", 0, "records offered a second (default 20000)")
	}, bench.Backlog)
}
