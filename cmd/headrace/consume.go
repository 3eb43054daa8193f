package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
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
}

func (a *app) consumeCmd() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume TOPIC", Short: "Read a topic, a derived topic or a view", Args: cobra.ExactArgs(1),
		Long: `Consume prints records up to the log end at the time of the call, or for ever with --follow.

Offsets (-O): start, end, N (an offset), +N (N after the start), -N (the last N records of each
partition), @TIME (the first record at or after a time: RFC 3339, milliseconds since 1970, or a duration
ago such as @-1h). With -g they are where a group begins that has committed nothing yet.

A record without value, which deletes its key from a table, is shown as (deleted) and its key. With -f a null
value and an empty one look the same: nothing. -o json tells them apart: a tombstone is null, an empty value
is "".`,
		Example: `  headrace consume hub_hours -n 5
  headrace consume delayed --follow -f '%k %v\n'
  headrace consume flights -p 0 -O -10 -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.format != "" && a.output == outputJSON:
				return usageError(cmd, "-f and -o json exclude each other")
			case f.group != "" && len(f.partition) > 0:
				return usageError(cmd, "-g and -p exclude each other: a group's members share the partitions")
			case cmd.Flags().Changed("count") && f.limit < 1:
				return usageError(cmd, fmt.Sprintf("-n %d: want a positive number", f.limit))
			}
			return a.consume(cmd, args[0], &f)
		},
	}
	cmd.Flags().StringVarP(&f.offset, "offset", "O", "start", "`where` to begin: start, end, N, +N, -N or @TIME")
	cmd.Flags().Int64VarP(&f.limit, "count", "n", 0, "stop after this many `records` (default: all)")
	cmd.Flags().StringVarP(&f.format, "format", "f", "", `format of a record: %t topic, %p partition, %o offset, %k key, %v value,
%h{ %k=%v } headers, %d timestamp, \n \t (default '%v\n')`)
	cmd.Flags().BoolVar(&f.follow, "follow", false, "go on for ever")
	cmd.Flags().StringVarP(&f.group, "group", "g", "", "read as a member of a consumer `group` and commit")
	cmd.Flags().Int32SliceVarP(&f.partition, "partition", "p", nil, "only these `partitions`, separated by commas")
	a.outputFlag(cmd)
	cmd.Flags().Lookup("output").Usage = "output form: table (values, or -f) or json (one object a line)"
	return cmd
}

// A start is what -O says.
type start struct {
	base byte  // 's' start, 'e' end, 'n' an offset, '+' after the start, '-' before the end, '@' a time
	n    int64 // of n, + and -: records; of @: milliseconds
}

// parseStart reads the -O flag.
func parseStart(s string, now time.Time) (start, error) {
	switch {
	case s == "start":
		return start{base: 's'}, nil
	case s == "end":
		return start{base: 'e'}, nil
	case strings.HasPrefix(s, "@"):
		ms, err := parseTime(s[1:], now)
		return start{'@', ms}, err
	}
	base, digits := byte('n'), s
	if s != "" && (s[0] == '+' || s[0] == '-') {
		base, digits = s[0], s[1:]
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return start{}, fmt.Errorf("-O %s: want start, end, N, +N, -N or @TIME", s)
	}
	return start{base, int64(n)}, nil
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

// A consuming is one run of consume.
type consuming struct {
	*app
	ctx   context.Context
	topic string
	flags *consumeFlags
	start start
	print func(*bufio.Writer, *kgo.Record) error
	out   *bufio.Writer
	n     int64

	patience *client.Patience // of a client that polls
}

func (a *app) consume(cmd *cobra.Command, topic string, f *consumeFlags) error {
	c := &consuming{app: a, ctx: cmd.Context(), topic: topic, flags: f, out: bufio.NewWriterSize(a.out, 1<<16)}
	var err error
	if c.start, err = parseStart(f.offset, time.Now()); err == nil {
		c.print, err = a.recordPrinter(f)
	}
	if err != nil {
		return usageError(cmd, err.Error())
	}
	k, err := client.Kafka(a.server)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := client.Reach(c.ctx, k); err != nil {
		return err
	}
	starts, ends, err := client.Bounds(c.ctx, k, topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return serverCode("E1001", exitNotFound, "topic %q does not exist", topic)
	}
	if err != nil {
		return err
	}
	if len(f.partition) > 0 {
		only := client.Offsets{}
		for _, p := range f.partition {
			end, ok := ends[p]
			if !ok {
				return noPartition(topic, p, int32(len(ends)))
			}
			only[p] = end
		}
		ends = only
	}
	from, err := c.from(k, starts, ends)
	if err != nil {
		return err
	}
	err = c.read(k, starts, from, ends)
	if errors.Is(err, errEnough) {
		err = nil
	}
	if ferr := c.out.Flush(); err == nil {
		err = ferr
	}
	if c.n == 0 && err == nil {
		fmt.Fprintf(a.err, "%s: no records there (--follow waits for new ones)\n", topic)
	}
	return err
}

func noPartition(topic string, p, of int32) *failure {
	return fail("E2011", exitNotFound, "topic %s has no partition %d", topic, p).
		because(fmt.Sprintf("It has %s, numbered from 0.", plural(of, "partition")), "Leave -p out, or choose another.")
}

// from is where reading begins, between log start and log end of every partition.
func (c *consuming) from(k *kgo.Client, starts, ends client.Offsets) (client.Offsets, error) {
	var at client.Offsets
	if c.start.base == '@' {
		var err error
		if at, err = client.OffsetsAt(c.ctx, k, c.topic, c.start.n); err != nil {
			return nil, err
		}
	}
	from := client.Offsets{}
	for p, end := range ends {
		first := starts[p]
		switch c.start.base {
		case 'e':
			first = end
		case 'n':
			first = c.start.n
		case '+':
			first += c.start.n
		case '-':
			first = end - c.start.n
		case '@':
			first = at[p]
		}
		from[p] = min(max(first, starts[p]), end)
	}
	return from, nil
}

// read prints what the flags ask for.
func (c *consuming) read(k *kgo.Client, starts, from, ends client.Offsets) error {
	if c.flags.group != "" {
		return c.member(k, from, ends)
	}
	if c.start.base == '-' && c.start.n > 0 && c.start.n <= maxTail {
		if err := c.tail(starts, ends); err != nil {
			return err
		}
		from = ends
	}
	if !c.flags.follow {
		return client.ReadRange(c.ctx, c.server, c.topic, from, ends, c.one)
	}
	parts := map[int32]kgo.Offset{}
	for p := range ends {
		parts[p] = kgo.NewOffset().At(from[p])
	}
	c.patience = client.NewPatience(from)
	f, err := client.Kafka(c.server, kgo.KeepRetryableFetchErrors(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: parts}))
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if err := c.poll(c.ctx, f, c.one); err != nil {
			return err
		}
	}
}

// poll gives the records of one poll to each and writes them out.
func (c *consuming) poll(ctx context.Context, k *kgo.Client, each func(*kgo.Record) error) error {
	most := 10_000
	if c.flags.limit > 0 {
		most = int(min(int64(most), c.flags.limit-c.n))
	}
	fetches := k.PollRecords(ctx, most)
	if err := c.ctx.Err(); err != nil {
		return err
	}
	var failed error
	fetches.EachRecord(func(r *kgo.Record) {
		if failed == nil {
			failed = each(r)
		}
	})
	if err := c.out.Flush(); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return c.patience.Judge(c.ctx, fetches)
}

// one prints a record, and ends with errEnough after -n of them.
func (c *consuming) one(r *kgo.Record) error {
	if err := c.print(c.out, r); err != nil {
		return err
	}
	if c.n++; c.n == c.flags.limit {
		return errEnough
	}
	return nil
}

// maxTail bounds the records of a partition that -O -N keeps; beyond, N counts offsets.
const maxTail = 100_000

// tail prints the last N records of every partition. Time marks and a view's gaps have offsets too, so
// it looks further back while it has too few.
func (c *consuming) tail(starts, ends client.Offsets) error {
	n := c.start.n
	for p, end := range ends {
		for span := n; ; span *= 4 {
			from := max(starts[p], end-span)
			var last []*kgo.Record
			err := client.ReadRange(c.ctx, c.server, c.topic, client.Offsets{p: from}, client.Offsets{p: end}, func(r *kgo.Record) error {
				if last = append(last, r); int64(len(last)) >= 2*n {
					last = append(last[:0], last[int64(len(last))-n:]...)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if int64(len(last)) < n && from > starts[p] {
				continue
			}
			for _, r := range last[max(0, int64(len(last))-n):] {
				if err := c.one(r); err != nil {
					return err
				}
			}
			break
		}
	}
	return nil
}

// quietMember is how long a member of a group waits, without --follow, for records that other members
// may be reading.
const quietMember = 3 * time.Second

// member reads as a member of a group. What was printed is committed at the end, and meanwhile.
func (c *consuming) member(k *kgo.Client, from, ends client.Offsets) (err error) {
	committed, err := client.Committed(c.ctx, k, c.flags.group, c.topic)
	if err != nil {
		return err
	}
	reset := kgo.NewOffset().AtStart()
	switch c.start.base {
	case 'e':
		reset = kgo.NewOffset().AtEnd()
	case 'n':
		reset = kgo.NewOffset().At(c.start.n)
	case '+':
		reset = kgo.NewOffset().AtStart().Relative(c.start.n)
	case '-':
		reset = kgo.NewOffset().AtEnd().Relative(-c.start.n)
	case '@':
		reset = kgo.NewOffset().AfterMilli(c.start.n)
	}
	for p, at := range committed {
		if _, ok := from[p]; ok {
			from[p] = at
		}
	}
	span := client.NewSpan(c.topic, from, ends)
	if span.Done() && !c.flags.follow {
		return nil
	}
	c.patience = client.NewPatience(from)
	g, err := client.Kafka(c.server, kgo.KeepControlRecords(), kgo.KeepRetryableFetchErrors(), kgo.ConsumerGroup(c.flags.group), kgo.ConsumeTopics(c.topic),
		kgo.ConsumeResetOffset(reset), kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if cerr := g.CommitUncommittedOffsets(ctx); err == nil || errors.Is(err, errEnough) {
			err = errors.Join(err, cerr)
		}
		g.LeaveGroup()
		g.Close()
	}()
	quiet, joining := time.Now(), time.Now()
	each := func(r *kgo.Record) error {
		quiet = time.Now()
		if span.Take(r) || c.flags.follow && !r.Attrs.IsControl() {
			return c.one(r)
		}
		return nil
	}
	for c.flags.follow || !span.Done() {
		within, cancel := context.WithTimeout(c.ctx, time.Second)
		err := c.poll(within, g, each)
		cancel()
		if err != nil {
			return err
		}
		if _, generation := g.GroupMetadata(); generation < 0 {
			quiet = time.Now() // not a member yet
			if !joining.IsZero() && time.Since(joining) > 2*patience {
				joining = time.Time{}
				fmt.Fprintf(c.err, "waiting for a place in the group %s\n", c.flags.group)
			}
		}
		if !c.flags.follow && time.Since(quiet) > quietMember {
			break
		}
		if err := g.CommitUncommittedOffsets(c.ctx); err != nil {
			return err
		}
	}
	return nil
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
		if f.format == "" && r.Value == nil && r.Key != nil {
			_, err := fmt.Fprintf(w, "(deleted) %s\n", r.Key)
			return err
		}
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
