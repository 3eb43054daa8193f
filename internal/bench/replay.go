package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server/broker"
)

// replayReport is what Replay adds to a Report.
type replayReport struct {
	Cold                   bool    `json:"cold,omitempty"`
	Fetches                int64   `json:"fetches,omitempty"`
	DiskReadBytesPerSecond float64 `json:"disk_read_bytes_per_second,omitempty"` // of 1 MiB preads of the same files, just before
}

// latencyOf names what the latencies of a report are of.
func (r *Report) latencyOf() string {
	if r.Name == "replay" {
		return "fetch"
	}
	return "publish latency"
}

func (r *Report) replayText(line func(name, format string, args ...any)) {
	if r.Name != "replay" {
		return
	}
	from := "files in the page cache"
	if r.Cold {
		from = "the disk"
	}
	line("read", "%d records of %d B from %s, client %s, %d fetches", r.Messages, r.RecordBytes, from, r.Client, r.Fetches)
	if r.DiskReadBytesPerSecond > 0 {
		line("1 MiB preads", "%.0f MB/s of the same files", r.DiskReadBytesPerSecond/1e6)
	}
}

// replayCache is the tail cache of the inner server: small, so that what is read is history.
const replayCache = 16 << 20

// Replay fills a topic and reads all of it back, counting every record. Defaults: the native client, 1 KiB records, 512
// MiB in 1 partition, read again and again for 3 s; cold, from the disk, once. Without a server of its own it can
// neither make the files cold nor measure them.
func Replay(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("replay", false); err != nil {
		return nil, err
	}
	if o.Cold && o.Server != "" {
		return nil, optionErrorf("--cold needs a server of its own, whose files it can drop from the page cache: run it without --server, or restart the machine before a replay without --cold")
	}
	o.Size, o.Seconds, o.Partitions = cmp.Or(o.Size, 1024), cmp.Or(o.Seconds, 3), cmp.Or(o.Partitions, 1)
	o.Client, o.Bytes = cmp.Or(o.Client, ClientNative), cmp.Or(o.Bytes, 512<<20)
	read := map[string]func(context.Context, *target, string, int64, *hdrhistogram.Histogram, Options) error{ClientNative: readNative, ClientKgo: readKgo}[o.Client]
	t, err := openWith(ctx, o, replication.NodeOptions{CacheBytes: replayCache})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "replay", RecordBytes: o.Size, Partitions: o.Partitions, Client: o.Client, replayReport: replayReport{Cold: o.Cold}}
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-replay", o.Partitions)
	if err != nil {
		return nil, err
	}
	o.say("replay: %d MiB of %d B records into %d partition(s)", o.Bytes>>20, o.Size, o.Partitions)
	total, err := fill(ctx, t, topic, o)
	if err != nil {
		return nil, err
	}
	if t.srv != nil {
		if r.DiskReadBytesPerSecond, err = readFiles(t.dir, o.Cold); err != nil {
			return nil, err
		}
	}
	hist := histogram()
	cpu, server, began := cpuSeconds(), t.serverCPU(), time.Now()
	for {
		if err := read(ctx, t, topic, total, hist, o); err != nil {
			return nil, err
		}
		r.Messages += total
		if o.Cold || time.Since(began) > time.Duration(o.Seconds)*time.Second {
			break
		}
	}
	r.Seconds, r.CPUSeconds = time.Since(began).Seconds(), cpuSeconds()-cpu
	if server > 0 {
		r.ServerCPUSeconds = t.serverCPU() - server
	}
	r.MessagesPerSecond = float64(r.Messages) / r.Seconds
	r.BytesPerSecond = r.MessagesPerSecond * float64(o.Size)
	r.latencies(hist)
	r.Fetches = hist.TotalCount()
	r.RSSBytes = t.rss()
	return r, nil
}

// fill writes about o.Bytes of records of o.Size and returns how many there are. Into the inner server whole batches
// go without a client.
func fill(ctx context.Context, t *target, topic string, o Options) (total int64, err error) {
	want := max(1, o.Bytes/int64(o.Size))
	value := payload(o.Size)
	if t.srv == nil {
		p, err := client.NewPublisher(t.kafka, topic, client.AnyPartition, client.ProducerOptions{})
		if err != nil {
			return 0, err
		}
		defer p.Close()
		for range want {
			if err := p.Publish(ctx, client.Message{Value: value}); err != nil {
				return 0, err
			}
		}
		_, err = p.Flush(ctx)
		return want, err
	}
	const batchBytes, inflight = 1_000_000, 8
	b := t.srv.Broker()
	found, ok := b.Topic(topic)
	if !ok {
		return 0, fmt.Errorf("bench: topic %s is gone", topic)
	}
	var mu sync.Mutex
	var refused error
	room := make(chan struct{}, inflight)
	for i := 0; total < want && ctx.Err() == nil; i++ {
		n := min(want-total, int64(max(1, batchBytes/(o.Size+32))))
		rb := record.NewBuilder()
		now := time.Now().UnixMilli()
		for range n {
			rb.Append(now, nil, value, nil)
		}
		room <- struct{}{}
		err := b.Append(ctx, found, int32(i%o.Partitions), rb.Finish(), false, func(a broker.Appended) {
			mu.Lock()
			refused = cmp.Or(refused, a.Err)
			mu.Unlock()
			<-room
		})
		if err != nil {
			return 0, err
		}
		total += n
	}
	for range inflight {
		room <- struct{}{}
	}
	mu.Lock()
	defer mu.Unlock()
	if err := cmp.Or(refused, ctx.Err()); err != nil {
		return 0, err
	}
	return total, t.srv.Node().Store().Flush(ctx)
}

// readNative reads the topic with the native client.
func readNative(ctx context.Context, t *target, topic string, total int64, hist *hdrhistogram.Histogram, o Options) error {
	var mu sync.Mutex
	r, err := client.NewReader(ctx, t.kafka, client.ReaderOptions{
		Topic: topic, End: client.Latest,
		Fetched: func(took time.Duration, _ int) {
			mu.Lock()
			defer mu.Unlock()
			_ = hist.RecordValue(max(took.Microseconds(), 1))
		},
	})
	if err != nil {
		return err
	}
	defer r.Close()
	n, bytes := int64(0), int64(0)
	for {
		b, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for b.Next() {
			n++
			bytes += int64(len(b.Record().Value))
		}
		if err := b.Err(); err != nil {
			return err
		}
	}
	return counted(n, bytes, total, o)
}

// fetchHook measures the fetches of a kgo client.
type fetchHook struct {
	mu   sync.Mutex
	hist *hdrhistogram.Histogram
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (h *fetchHook) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	const fetch = 1
	if key == fetch && e.Err() == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		_ = h.hist.RecordValue(max(e.DurationE2E().Microseconds(), 1))
	}
}

// readKgo reads the topic with franz-go.
func readKgo(ctx context.Context, t *target, topic string, total int64, hist *hdrhistogram.Histogram, o Options) error {
	hook := &fetchHook{hist: hist}
	k, err := client.Kafka(t.kafka, kgo.KeepRetryableFetchErrors(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.WithHooks(hook))
	if err != nil {
		return err
	}
	defer k.Close()
	n, bytes := int64(0), int64(0)
	patience := client.NewPatience(nil)
	for n < total {
		fs := k.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		fs.EachRecord(func(r *kgo.Record) {
			n++
			bytes += int64(len(r.Value))
		})
		if err := patience.Judge(ctx, fs); err != nil {
			return err
		}
	}
	return counted(n, bytes, total, o)
}

func counted(n, bytes, total int64, o Options) error {
	if n != total || bytes != total*int64(o.Size) {
		return fmt.Errorf("bench: %d records with %d bytes came back, %d of %d bytes were written", n, bytes, total, o.Size)
	}
	return nil
}

// maxRead bounds what readFiles reads.
const maxRead = 1 << 30

// readFiles measures how fast 1 MiB preads of the segment files are. With cold, their pages are dropped before and
// after.
func readFiles(dir string, cold bool) (bytesPerSecond float64, err error) {
	var paths []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".log") && strings.Contains(path, string(filepath.Separator)+"topics"+string(filepath.Separator)) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	buf := make([]byte, 1<<20)
	pass := func() (n int64, err error) {
		for _, p := range paths {
			f, err := os.Open(p)
			if err != nil {
				return n, err
			}
			for at := int64(0); n < maxRead; {
				k, err := f.ReadAt(buf, at)
				at, n = at+int64(k), n+int64(k)
				if err != nil {
					break // the end
				}
			}
			if err := f.Close(); err != nil {
				return n, err
			}
		}
		return n, nil
	}
	before := pass
	if cold {
		before = func() (int64, error) { return 0, dropPages(paths) }
	}
	if _, err := before(); err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	began := time.Now()
	n, err := pass()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	speed := float64(n) / time.Since(began).Seconds()
	if cold {
		if err := dropPages(paths); err != nil {
			return 0, fmt.Errorf("bench: the files cannot be made cold: %w", err)
		}
	}
	return speed, nil
}

// dropPages makes files cold: written pages have to be on the disk before the system lets go of them.
func dropPages(paths []string) error {
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		err = f.Sync()
		if err == nil {
			err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
