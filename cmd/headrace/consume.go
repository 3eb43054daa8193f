package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

type consumeFlags struct {
	offset    string
	limit     int64
	format    string
	follow    bool
	group     string
	partition []int32
	headers   bool
}

func (a *app) consumeCmd() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume TOPIC", Short: "Read a topic, a derived topic or a view", Args: cobra.ExactArgs(1),
		Long: `Consume prints records up to the log end at the time of the call, or for ever with --follow.

Offsets (-O): start, end, N (an offset), +N (N after the start), -N (the last N of each partition),
@TIME (first record at or after a time: RFC 3339, milliseconds, or a duration ago such as @-1h).`,
		Example: `  headrace consume hub_hours -n 5
  headrace consume delayed --follow -f '%k %v\n'
  headrace consume flights -p 0 -O -10 -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.format != "" && a.output == outputJSON {
				return usageError(cmd, "-f and -o json exclude each other")
			}
			return a.consume(cmd, args[0], &f)
		},
	}
	cmd.Flags().StringVarP(&f.offset, "offset", "O", "start", "where to begin: start, end, N, +N, -N or @TIME")
	cmd.Flags().Int64VarP(&f.limit, "count", "n", 0, "stop after this many records")
	cmd.Flags().StringVarP(&f.format, "format", "f", "", "record format of franz-go, such as '%t %p %o %k %v\\n' (default '%v\\n')")
	cmd.Flags().BoolVar(&f.follow, "follow", false, "go on for ever")
	cmd.Flags().StringVarP(&f.group, "group", "g", "", "read as a member of a consumer group and commit")
	cmd.Flags().Int32SliceVarP(&f.partition, "partition", "p", nil, "only these partitions")
	a.outputFlag(cmd)
	cmd.Flags().Lookup("output").Usage = "output form: table (values, or -f) or json (one object a line)"
	return cmd
}

// parseOffset reads the -O flag.
func parseOffset(s string, now time.Time) (kgo.Offset, error) {
	o := kgo.NewOffset()
	switch {
	case s == "start":
		return o.AtStart(), nil
	case s == "end":
		return o.AtEnd(), nil
	case strings.HasPrefix(s, "@"):
		ms, err := parseTime(s[1:], now)
		return o.AfterMilli(ms), err
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(s, "+"), 10, 64)
	if err != nil {
		return o, fmt.Errorf("-O %s: want start, end, N, +N, -N or @TIME", s)
	}
	switch s[0] {
	case '+':
		return o.AtStart().Relative(n), nil
	case '-':
		return o.AtEnd().Relative(n), nil
	}
	return o.At(n), nil
}

func parseTime(s string, now time.Time) (ms int64, err error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil && !strings.HasPrefix(s, "-") {
		return ms, nil
	}
	if d, err := time.ParseDuration(strings.TrimPrefix(s, "-")); err == nil {
		return now.Add(-d).UnixMilli(), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, fmt.Errorf("-O @%s: want RFC 3339, milliseconds, or a duration ago", s)
	}
	return t.UnixMilli(), nil
}

func (a *app) consume(cmd *cobra.Command, topic string, f *consumeFlags) error {
	ctx := cmd.Context()
	offset, err := parseOffset(f.offset, time.Now())
	if err != nil {
		return usageError(cmd, err.Error())
	}
	print, err := a.recordPrinter(f)
	if err != nil {
		return usageError(cmd, err.Error())
	}
	opts := []kgo.Opt{kgo.KeepControlRecords(), kgo.FetchMaxWait(500 * time.Millisecond)}
	adm, err := client.Kafka(a.server)
	if err != nil {
		return err
	}
	defer adm.Close()
	starts, ends, err := client.Offsets(ctx, adm, topic)
	if err != nil {
		return err
	}
	if f.group != "" {
		opts = append(opts, kgo.ConsumerGroup(f.group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(offset), kgo.DisableAutoCommit())
	} else {
		parts := map[int32]kgo.Offset{}
		for p := range ends {
			parts[p] = offset
		}
		if len(f.partition) > 0 {
			parts = map[int32]kgo.Offset{}
			only := map[int32]int64{}
			for _, p := range f.partition {
				end, ok := ends[p]
				if !ok {
					return fail("E2001", exitNotFound, "topic %s has no partition %d, it has %d", topic, p, len(ends))
				}
				parts[p], only[p] = offset, end
			}
			ends = only
		}
		opts = append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: parts}))
	}
	k, err := client.Kafka(a.server, opts...)
	if err != nil {
		return err
	}
	defer k.Close()
	c := &consuming{app: a, k: k, topic: topic, flags: f, ends: ends, print: print, out: bufio.NewWriterSize(a.out, 1<<16)}
	defer c.out.Flush()
	c.skipEmpty(starts, f.offset)
	return c.run(ctx, adm)
}

type consuming struct {
	*app
	k     *kgo.Client
	topic string
	flags *consumeFlags
	ends  map[int32]int64 // what is left to read, without --follow
	print func(*bufio.Writer, *kgo.Record) error
	out   *bufio.Writer
	n     int64
}

// skipEmpty forgets partitions without anything to read.
func (c *consuming) skipEmpty(starts map[int32]int64, offset string) {
	for p, end := range c.ends {
		at := starts[p]
		if offset == "end" || (offset != "" && offset[0] >= '0' && offset[0] <= '9') {
			if n, err := strconv.ParseInt(offset, 10, 64); err == nil {
				at = n
			} else {
				at = end
			}
		}
		if at >= end {
			delete(c.ends, p)
		}
	}
}

func (c *consuming) run(ctx context.Context, adm *kgo.Client) error {
	quiet := time.Now()
	for c.flags.follow || len(c.ends) > 0 || c.flags.group != "" {
		poll, cancel := context.WithTimeout(ctx, time.Second)
		fetches := c.k.PollRecords(poll, 10_000)
		cancel()
		if err := ctx.Err(); err != nil {
			return c.leave(err)
		}
		for _, e := range fetches.Errors() {
			if ctxErr := poll.Err(); ctxErr != nil && e.Partition < 0 {
				continue
			}
			return e.Err
		}
		enough := false
		fetches.EachRecord(func(r *kgo.Record) {
			quiet = time.Now()
			if end, ok := c.ends[r.Partition]; ok && r.Offset+1 >= end {
				delete(c.ends, r.Partition)
				if !c.flags.follow && r.Offset >= end {
					return
				}
			}
			if enough || r.Attrs.IsControl() {
				return
			}
			if err := c.print(c.out, r); err != nil {
				enough = true
				return
			}
			c.n++
			enough = c.flags.limit > 0 && c.n >= c.flags.limit
		})
		if err := c.out.Flush(); err != nil {
			return err
		}
		if enough {
			break
		}
		if !c.flags.follow && time.Since(quiet) > 3*time.Second {
			// The ends that a view showed were bounds; and a compacted end has no record.
			_, ends, err := client.Offsets(ctx, adm, c.topic)
			if err != nil {
				return err
			}
			if fetches.Empty() {
				for p := range c.ends {
					c.ends[p] = min(c.ends[p], ends[p])
				}
				break
			}
		}
	}
	return c.leave(nil)
}

func (c *consuming) leave(err error) error {
	if c.flags.group != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if cerr := c.k.CommitUncommittedOffsets(ctx); cerr != nil && err == nil {
			err = cerr
		}
	}
	if c.n == 0 && err == nil {
		fmt.Fprintf(c.err, "%s: no records there (--follow waits for new ones)\n", c.topic)
	}
	return err
}

// recordPrinter chooses how a record is written.
func (a *app) recordPrinter(f *consumeFlags) (func(*bufio.Writer, *kgo.Record) error, error) {
	if a.output == outputJSON {
		return printJSON, nil
	}
	layout := f.format
	if layout == "" {
		layout = "%v\\n"
	}
	format, err := kgo.NewRecordFormatter(layout)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	var buf []byte
	return func(w *bufio.Writer, r *kgo.Record) error {
		buf = format.AppendRecord(buf[:0], r)
		_, err := w.Write(buf)
		return err
	}, nil
}

type consumedRecord struct {
	Partition   int32            `json:"partition"`
	Offset      int64            `json:"offset"`
	Timestamp   string           `json:"timestamp"`
	Key         any              `json:"key"`
	KeyBase64   string           `json:"key_base64,omitempty"`
	Value       any              `json:"value"`
	ValueBase64 string           `json:"value_base64,omitempty"`
	Headers     []consumedHeader `json:"headers,omitempty"`
}

type consumedHeader struct {
	Key         string `json:"key"`
	Value       any    `json:"value"`
	ValueBase64 string `json:"value_base64,omitempty"`
}

// printJSON writes one object a line, in the shape of the API's records resource.
func printJSON(w *bufio.Writer, r *kgo.Record) error {
	c := consumedRecord{Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UTC().Format(time.RFC3339Nano)}
	c.Key, c.KeyBase64 = shown(r.Key)
	c.Value, c.ValueBase64 = shown(r.Value)
	for _, h := range r.Headers {
		ch := consumedHeader{Key: h.Key}
		ch.Value, ch.ValueBase64 = shown(h.Value)
		c.Headers = append(c.Headers, ch)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(&c)
}

// shown is bytes for people: a JSON object or array as itself, other text as a string, else base64.
func shown(b []byte) (any, string) {
	switch {
	case b == nil:
		return nil, ""
	case !utf8.Valid(b):
		return nil, base64.StdEncoding.EncodeToString(b)
	case len(b) > 0 && (b[0] == '{' || b[0] == '[') && json.Valid(b):
		return json.RawMessage(b), ""
	}
	return string(b), ""
}
