package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/server"
)

// tunable are the sizes behind serve's hidden --tune: tests make them so small that segments roll, checkpoints are taken
// and log starts rise all the time. They are no interface: an operator needs none of them, and names may go.
var tunable = map[string]func(o *server.Options, v int64){
	"wal-segment-bytes": func(o *server.Options, v int64) { o.Node.Data.WALSegmentBytes, o.Node.Meta.WALSegmentBytes = v, v },
	"wal-cache-bytes":   func(o *server.Options, v int64) { o.Node.Data.WALCacheBytes = v },
	"inflight-bytes":    func(o *server.Options, v int64) { o.Node.Data.MaxInflightBytes = v },
	"checkpoint-bytes":  func(o *server.Options, v int64) { o.Node.Data.CheckpointBytes, o.Node.Meta.CheckpointBytes = v, v },
	"checkpoint-ms": func(o *server.Options, v int64) {
		o.Node.Data.CheckpointEvery, o.Node.Meta.CheckpointEvery = ms(v), ms(v)
	},
	"trailing-bytes":  func(o *server.Options, v int64) { o.Node.Data.TrailingBytes, o.Node.Meta.TrailingBytes = v, v },
	"segment-bytes":   func(o *server.Options, v int64) { o.Node.SegmentBytes = v },
	"cache-bytes":     func(o *server.Options, v int64) { o.Node.CacheBytes = v },
	"retention-ms":    func(o *server.Options, v int64) { o.Node.RetentionEvery = ms(v) },
	"open-timeout-ms": func(o *server.Options, v int64) { o.Node.OpenTimeout = ms(v) },
}

func ms(v int64) time.Duration { return time.Duration(v) * time.Millisecond }

// tune applies --tune to the options.
func tune(cmd *cobra.Command, o *server.Options, values map[string]int64) error {
	for name, v := range values {
		set, ok := tunable[name]
		if !ok {
			return usageError(cmd, "--tune "+name+": want one of "+strings.Join(slices.Sorted(maps.Keys(tunable)), ", "))
		}
		set(o, v)
	}
	return nil
}
