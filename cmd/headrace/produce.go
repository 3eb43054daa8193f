package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/term"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/dsl/plan"
)

// Input formats of produce.
const (
	inputAuto  = "auto"
	inputLines = "lines"
	inputCSV   = "csv"
)

// produceFlags are the flags of produce.
type produceFlags struct {
	format    string
	delimiter string
	record    string
	partition int32
	headers   []string
	end       bool
	limit     int64
	timeout   time.Duration
}

func (a *app) produceCmd() *cobra.Command {
	var f produceFlags
	cmd := &cobra.Command{
		Use: "produce TOPIC [FILE...]", Short: "Send lines, NDJSON or CSV to a topic", Args: cobra.MinimumNArgs(1),
		Long: `Produce sends records from files or, without files or for "-", from standard input. Files may be
gzipped. A .csv file (or --input csv) has a header: its names, or the names that the topic's schema gives
with "as", find the columns, and rows are written in the topic's format. Any other input is one record a
line, passed as it is; a JSON line gets its key from the topic's key columns. A record may be as long as
the topic's max.message.bytes admits. Records are acknowledged when they are durable, in order, once.

When the server takes no records for a while, since its disk is full or it restarts, produce says so, sends
them again, and goes on as soon as it can. It gives up a record that was not acknowledged within --timeout.`,
		Example: `  echo hello | headrace produce greetings
  headrace produce flights examples/data/flights_2001-01-01_14.csv.gz --end
  printf 'ann:1\nbob:2\n' | headrace produce scores -K :
  headrace produce logs -f '%k\t%v\n' < pairs.tsv`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.format != inputAuto && f.format != inputLines && f.format != inputCSV:
				return usageError(cmd, fmt.Sprintf("--input %s: want auto, lines or csv", f.format))
			case f.record != "" && f.delimiter != "":
				return usageError(cmd, "-f and -K exclude each other: the format says where the key is")
			case f.record != "" && f.format != inputAuto, f.delimiter != "" && f.format == inputCSV:
				return usageError(cmd, "--input "+f.format+" excludes -f and -K")
			case cmd.Flags().Changed("count") && f.limit < 1:
				return usageError(cmd, fmt.Sprintf("-n %d: want a positive number", f.limit))
			case cmd.Flags().Changed("partition") && f.partition < 0:
				return usageError(cmd, fmt.Sprintf("-p %d: partitions are numbered from 0; leave -p out to choose them by key", f.partition))
			case f.timeout <= 0:
				return usageError(cmd, fmt.Sprintf("--timeout %v: want a positive duration", f.timeout))
			}
			if f.record != "" {
				if _, err := kgo.NewRecordReader(strings.NewReader(""), f.record); err != nil {
					return usageError(cmd, fmt.Sprintf("-f %s: %v", f.record, err))
				}
			}
			files := args[1:]
			if len(files) == 0 {
				files = []string{"-"}
			}
			return a.produce(cmd.Context(), args[0], files, &f)
		},
	}
	cmd.Flags().StringVar(&f.format, "input", inputAuto, "input format: lines (NDJSON too), csv, or auto by the file's name")
	cmd.Flags().StringVarP(&f.delimiter, "key-delimiter", "K", "", "split each line at the first of this `text` into key and value")
	cmd.Flags().StringVarP(&f.record, "format", "f", "", "format of a record: %k key, %v value, \\n \\t and text between them, such as '%k\\t%v\\n'")
	cmd.Flags().Int32VarP(&f.partition, "partition", "p", client.AnyPartition, "send everything to this `partition`; by key without it")
	cmd.Flags().StringArrayVarP(&f.headers, "header", "H", nil, "header `key:value` of every record; may be repeated")
	cmd.Flags().BoolVar(&f.end, "end", false, "declare the end of the topic: windows close, later rows are late; wait until the pipelines behind it have read it")
	cmd.Flags().Int64VarP(&f.limit, "count", "n", 0, "stop after this many `records` (default: all)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "give up when a record was not acknowledged after so long")
	return cmd
}

func (a *app) produce(ctx context.Context, topic string, files []string, f *produceFlags) error {
	t, err := a.api().Topic(ctx, topic)
	if err != nil {
		return err
	}
	switch {
	case t.Kind == "derived":
		return serverCode("E1008", exitDenied, "topic %q is written by the pipeline %s", topic, t.Owner)
	case t.Kind == "view":
		return serverCode("E1009", exitDenied, "%q is a view of %s", topic, t.Source)
	case f.partition >= t.Partitions:
		return noPartition(topic, f.partition, t.Partitions)
	}
	schema, err := client.ParseSchema(t.Schema)
	if err != nil {
		return err
	}
	var headers []client.Header
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return fail("E2001", exitUsage, "-H %s: want key:value", h)
		}
		headers = append(headers, client.Header{Key: name, Value: []byte(value)})
	}
	limit := recordLimit(&t)
	p, err := client.NewPublisher(a.server, topic, f.partition, client.ProducerOptions{BatchBytes: limit, DeliveryTimeout: f.timeout})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Reach(ctx); err != nil {
		return err
	}
	began, sent := time.Now(), int64(0)
	unwatch := a.watch(ctx, p, f.timeout)
	bar := a.progress(files)
	send := func(key, value []byte) error {
		err := p.Publish(ctx, client.Message{Key: key, Value: value, Headers: headers})
		if errors.Is(err, client.ErrRecordTooLarge) {
			return tooLong(topic, len(key)+len(value), limit)
		}
		switch {
		case err == nil:
		case errors.Is(err, client.ErrPartly), ctx.Err() != nil:
			return err
		default: // of the server, not of the file
			return explain(err)
		}
		if sent++; f.limit > 0 && sent >= f.limit {
			return errEnough
		}
		return ctx.Err()
	}
	var readErr error
	for _, file := range files {
		readErr = a.readRecords(ctx, file, f, &t, limit, schema, bar, send)
		if readErr != nil {
			break
		}
	}
	s, err := a.flush(ctx, p)
	unwatch()
	bar.done()
	a.summary(s, time.Since(began))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, client.ErrPartly):
		return refused(s, f.timeout, err)
	case err != nil:
		return err
	case readErr != nil && !errors.Is(readErr, errEnough):
		var bad *failure
		if errors.As(readErr, &bad) && s.Acknowledged > 0 { // a second run would send them again
			bad.what += fmt.Sprintf("; the records before it, %d, were sent", s.Acknowledged)
			if f.end {
				bad.what += ", and the end was not declared"
			}
		}
		return readErr
	}
	if f.end {
		if err := a.api().EndTopic(ctx, topic); err != nil {
			return err
		}
		fmt.Fprintf(a.err, "%s has ended: its windows close, later rows are late\n", topic)
		return a.settle(ctx, topic)
	}
	return nil
}

// settleWait is how long produce --end waits for the pipelines behind a topic.
const settleWait = time.Minute

// settle waits until the pipelines behind a topic have read it to its declared end, so that what is
// derived from it can be read to its end too.
func (a *app) settle(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	told := map[string]bool{}
	began, said := time.Now(), false
	for {
		pipelines, err := a.api().Pipelines(ctx)
		if err != nil {
			return err
		}
		waits := false
		for _, p := range downstream(pipelines, topic) {
			switch {
			case p.Watermark == "+inf" && p.Lag == 0:
				if !told[p.Name] {
					fmt.Fprintf(a.err, "%s has closed its windows: %s so far\n", p.Name, plural(p.Counters.Out, "row"))
				}
				told[p.Name] = true
			case p.State == "running" || p.State == "starting":
				waits = true
			}
		}
		if !waits {
			return nil
		}
		if !said && time.Since(began) > patience {
			said = true
			fmt.Fprintf(a.err, "waiting for the pipelines behind %s to read it, for %v at most\n", topic, settleWait)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				fmt.Fprintln(a.err, "its pipelines still read; `headrace pipeline list` shows how far they are")
				return nil
			}
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// downstream are the pipelines that read a topic, those that read what they derive, and so on.
func downstream(pipelines []client.Pipeline, topic string) (out []client.Pipeline) {
	reached := []string{topic}
	for i := 0; i < len(reached); i++ {
		for _, p := range pipelines {
			if p.Source == reached[i] {
				out = append(out, p)
				if !slices.Contains(reached, p.Topic) {
					reached = append(reached, p.Topic)
				}
			}
		}
	}
	return out
}

// flush waits for the acknowledgements. After an interrupt, those on their way get a moment.
func (a *app) flush(ctx context.Context, p *client.Publisher) (client.PublishStats, error) {
	if ctx.Err() != nil {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		return p.Flush(short)
	}
	return p.Flush(ctx)
}

// refused is how produce ends when the server did not take everything.
func refused(s client.PublishStats, timeout time.Duration, err error) *failure {
	var first *client.RefusedError
	if !errors.As(err, &first) {
		return explain(err)
	}
	why := explain(first.First)
	what := fmt.Sprintf("%s of %s not acknowledged: ", count(s.Sent-s.Acknowledged), plural(s.Sent, "record"))
	f := fail("E2005", exitPartly, "%s%v", what, first.First)
	var wire *client.WireError
	if errors.As(first.First, &wire) && why.code == wire.Code { // the server's own words
		f.code, f.what = why.code, what+why.what
	}
	if errors.Is(first.First, client.ErrDeliveryTimeout) {
		f.what += fmt.Sprintf("; given up after --timeout %v", timeout)
	}
	if s.Acknowledged == 0 && why.exit != exitFailed {
		f.exit = why.exit
	}
	if why.code != "E2099" {
		f.why, f.fix = why.why, cmp.Or(why.fix, f.fix)
	}
	if f.code == "E1017" {
		f.fix = "Send keys: -K : splits each line into key and value at the first colon, -f '%k\\t%v\\n' at a tab. Or set the topic's cleanup.policy to delete."
	}
	return f
}

var errEnough = errors.New("enough records")

func (a *app) summary(s client.PublishStats, took time.Duration) {
	if s.Sent == 0 {
		fmt.Fprintln(a.err, "no records sent")
		return
	}
	secs := max(took.Seconds(), 1e-9)
	fmt.Fprintf(a.err, "%s acknowledged (%s) in %.2f s: %s records/s, %s/s", plural(s.Acknowledged, "record"), size(s.Bytes), secs,
		count(int64(float64(s.Acknowledged)/secs)), size(int64(float64(s.Bytes)/secs)))
	if s.P50 > 0 {
		fmt.Fprintf(a.err, "; acknowledged after p50 %.2f ms, p99 %.2f ms", s.P50.Seconds()*1e3, s.P99.Seconds()*1e3)
	}
	if s.Failed > 0 {
		fmt.Fprintf(a.err, "; %s failed", count(s.Failed))
	}
	fmt.Fprintln(a.err)
}

// A progress shows how far the input was read, on terminals only.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(files []string) *progress {
	f, ok := a.err.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("NO_PROGRESS") != "" {
		return &progress{}
	}
	total := int64(0)
	for _, name := range files {
		st, err := os.Stat(name)
		if err != nil {
			total = -1
			break
		}
		total += st.Size()
	}
	return &progress{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(f), progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(total > 0), progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetDescription("sending"))}
}

func (p *progress) Write(b []byte) (int, error) {
	if p.bar != nil {
		_ = p.bar.Add(len(b))
	}
	return len(b), nil
}

func (p *progress) done() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// interruptible is a reader that ends with its context, even while a read waits for a terminal or a
// pipe. The read that was left behind ends with the process.
type interruptible struct {
	ctx  context.Context
	in   io.Reader
	buf  []byte
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

// Read implements io.Reader.
func (r *interruptible) Read(p []byte) (int, error) {
	if r.done == nil {
		r.buf, r.done = make([]byte, 1<<16), make(chan readResult, 1)
	}
	part := r.buf[:min(len(p), len(r.buf))]
	go func() {
		n, err := r.in.Read(part)
		r.done <- readResult{n, err}
	}()
	select {
	case got := <-r.done:
		return copy(p, part[:got.n]), got.err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// readRecords gives every record of a file to send.
func (a *app) readRecords(ctx context.Context, file string, f *produceFlags, t *client.Topic, limit int, schema *plan.Topic, bar *progress, send func(key, value []byte) error) error {
	in := io.Reader(&interruptible{ctx: ctx, in: a.in})
	if file != "-" {
		h, err := os.Open(file)
		if err != nil {
			return err
		}
		defer h.Close()
		in = h
	}
	in = io.TeeReader(in, bar)
	buffered := bufio.NewReaderSize(in, 1<<20)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return fail("E2003", exitFailed, "%s: %v", file, err)
		}
		defer z.Close()
		buffered = bufio.NewReaderSize(z, 1<<20)
	}
	format := f.format
	if format == inputAuto {
		format = inputLines
		if base := strings.TrimSuffix(file, ".gz"); filepath.Ext(base) == ".csv" && schema != nil && !isText(schema) {
			format = inputCSV
		}
	}
	if format == inputCSV && schema != nil && isText(schema) {
		return fail("E2001", exitUsage, "topic %s holds text as it is, which a CSV file has no place for; send its lines with --input %s", schema.Name, inputLines)
	}
	var err error
	switch {
	case f.record != "":
		err = readFormatted(buffered, f.record, send)
	case format == inputCSV:
		err = a.readCSV(buffered, schema, send)
	default:
		err = readLines(buffered, f.delimiter, t.Name, limit, schema, send)
	}
	if err != nil && !errors.Is(err, errEnough) && !errors.Is(err, client.ErrPartly) && !isFailure(err) && !errors.Is(err, context.Canceled) {
		return fail("E2003", exitFailed, "%s: %v", file, err)
	}
	return err
}

// recordLimit is the largest record batch that a topic takes, bytes: a record is a little smaller.
func recordLimit(t *client.Topic) int {
	for _, c := range t.Configs {
		if n, err := strconv.Atoi(c.Value); c.Name == "max.message.bytes" && err == nil {
			return n
		}
	}
	return 0 // the client's default
}

// tooLong is a record beyond the topic's limit; of a line that was not read to its end, size is 0.
func tooLong(topic string, size, limit int) *failure {
	what := fmt.Sprintf("a record of %s bytes does not fit the topic %s", count(size), topic)
	if size == 0 {
		what = fmt.Sprintf("a line is longer than a record of the topic %s may be", topic)
	}
	return serverCode("E1013", exitInvalid, "%s", what).
		because(fmt.Sprintf("The topic takes record batches of at most %s bytes (max.message.bytes), with some for the frame.", count(limit)),
			fmt.Sprintf("Split the record, or raise the limit: `headrace topic alter %s --set max.message.bytes=N`, 7340032 at most. Or is it a file without line breaks?", topic))
}

func readLines(in *bufio.Reader, delimiter, topic string, limit int, schema *plan.Topic, send func(key, value []byte) error) error {
	sc := bufio.NewScanner(in)
	limit = cmp.Or(limit, 1<<20)
	sc.Buffer(make([]byte, 0, min(64<<10, limit)), limit)
	for n := 1; sc.Scan(); n++ {
		line := sc.Bytes() // send copies
		var key []byte
		if delimiter != "" {
			k, v, ok := bytes.Cut(line, []byte(delimiter))
			if !ok {
				return fail("E2004", exitInvalid, "line %d has no %q", n, delimiter).
					because("With -K every line is key, delimiter, value.", "Give the delimiter that the lines have, or leave -K out.")
			}
			key, line = k, v
		} else {
			key = client.JSONKey(schema, line)
		}
		if err := send(key, line); err != nil {
			return err
		}
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return tooLong(topic, 0, limit)
	}
	return sc.Err()
}

// isText says whether records of a topic are text that is not made of columns.
func isText(t *plan.Topic) bool { return t.Format == plan.FormatLines || t.Format == plan.FormatRegex }

func readFormatted(in *bufio.Reader, layout string, send func(key, value []byte) error) error {
	r, err := kgo.NewRecordReader(in, layout)
	if err != nil {
		return fail("E2001", exitUsage, "--format: %v", err)
	}
	for {
		rec, err := r.ReadRecord()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fail("E2004", exitInvalid, "%v", err)
		}
		if err := send(rec.Key, rec.Value); err != nil {
			return err
		}
	}
}

func (a *app) readCSV(in *bufio.Reader, schema *plan.Topic, send func(key, value []byte) error) error {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fail("E2004", exitInvalid, "%v", err)
	}
	header = append([]string(nil), header...)
	encode := func(row []string) (key, value []byte) { // without a schema: JSON objects of strings
		b := []byte{'{'}
		for i, h := range header {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(client.AppendJSONString(b, h), ':')
			b = client.AppendJSONString(b, row[i])
		}
		return nil, append(b, '}')
	}
	if schema != nil {
		enc, err := client.NewRowEncoder(schema, header)
		if err != nil {
			return fail("E2004", exitInvalid, "%v", err)
		}
		if ignored := enc.Ignored(); len(ignored) > 0 {
			fmt.Fprintf(a.err, "not in the schema, left out: %s\n", strings.Join(ignored, ", "))
		}
		encode = enc.Encode
	}
	for {
		row, err := r.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fail("E2004", exitInvalid, "%v", err)
		}
		key, value := encode(row)
		if err := send(key, value); err != nil {
			return err
		}
	}
}
