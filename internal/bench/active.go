package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/log/record"
)

// The load of Active: what services send that publish by key into many partitions.
const (
	activeProducers   = 8       // connections, each an idempotent producer with one request under way
	activeBatchBytes  = 8 << 10 // of records, for one partition of a request
	activePerRequest  = 10      // partitions of a request, chosen at random: fewer only if there are fewer
	activeBase        = 10      // partitions to compare with
	activeTopicSize   = 1000    // partitions of a topic
	activeComparisons = 3       // pairs of runs
)

// An ActiveRun is one run over a number of partitions that all take records.
type ActiveRun struct {
	Partitions        int     `json:"partitions"`
	RecordBytes       int     `json:"record_bytes"`
	MessagesPerSecond float64 `json:"messages_per_second"`
	BytesPerSecond    float64 `json:"bytes_per_second"`
	// ServerCPUMs and ClientCPUMs are processor time a MiB of records, with what the server does behind the log after
	// the run's end. The server's is 0 if it is not the benchmark's own.
	ServerCPUMs float64 `json:"server_cpu_ms_per_mib"`
	ClientCPUMs float64 `json:"client_cpu_ms_per_mib"`
	RSSBytes    int64   `json:"rss_bytes,omitempty"` // of the server, after the run
}

// An ActiveRatio is what many partitions keep of the throughput of few: medians of runs by turns.
type ActiveRatio struct {
	RecordBytes int     `json:"record_bytes"`
	Few         int     `json:"few_partitions"`
	Many        int     `json:"many_partitions"`
	Throughput  float64 `json:"throughput_ratio"` // many to few
	ServerCPU   float64 `json:"server_cpu_ratio"` // few to many: 1 is as cheap
}

// Active measures the throughput of o.Active partitions (10,000) that all take records against 10, by turns on one
// server of its own, and shows how it grows with 1, 100 and 1,000. Each of 8 idempotent producers (acks=all, durable)
// has one request under way, with a batch of 8 KiB for each of 10 partitions that it chooses at random, whatever their
// number: what differs is only how many there are. The batches are made beforehand, so that the client costs little.
// Defaults: records of 100 B and of 1 KiB, 2 s a run.
func Active(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("partitions", true); err != nil {
		return nil, err
	}
	o.Active, o.Seconds = cmp.Or(o.Active, 10_000), cmp.Or(o.Seconds, 2)
	sizes := []int{100, 1024}
	if o.Size > 0 {
		sizes = []int{o.Size}
	}
	dir, err := os.MkdirTemp(o.Dir, "headrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &Report{Name: "partitions", Partitions: o.Active, Many: &ManyPartitions{}}
	if err := r.surroundings(dir); err != nil {
		return nil, err
	}
	p, err := startProcess(ctx, filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	began := time.Now()
	for _, size := range sizes {
		if err := r.active(ctx, o, p, size); err != nil {
			return nil, err
		}
	}
	r.Seconds = time.Since(began).Seconds()
	r.RSSBytes = rss(p.cmd.Process.Pid)
	return r, nil
}

// active makes all runs with records of one size.
func (r *Report) active(ctx context.Context, o Options, p *process, size int) error {
	api := client.NewAPI(p.http)
	producers := map[int][]*rawProducer{} // they go on where they were: a producer is remembered for a day
	defer func() {
		for _, of := range producers {
			for _, x := range of {
				_ = x.conn.Close() // idle
			}
		}
	}()
	one := func(n int) (ActiveRun, error) {
		if producers[n] == nil {
			var err error
			if producers[n], err = newRawProducers(ctx, p.kafka, size, n); err != nil {
				return ActiveRun{}, err
			}
		}
		run, err := activeRun(ctx, o, p, producers[n], size)
		if err == nil {
			o.say("%6d partitions, %d B: %.0f records/s, %.1f MB/s, server %.2f ms and client %.2f ms a MiB", n, size, run.MessagesPerSecond, run.BytesPerSecond/1e6, run.ServerCPUMs, run.ClientCPUMs)
			r.Many.Runs = append(r.Many.Runs, run)
		}
		return run, err
	}
	counts := slices.DeleteFunc([]int{1, 10, 100, 1000}, func(n int) bool { return n >= o.Active && n != activeBase })
	if o.Active != activeBase {
		counts = append(counts, o.Active)
	}
	for _, n := range counts {
		if err := activeTopics(ctx, api, size, n); err != nil {
			return err
		}
	}
	for _, n := range counts {
		if n != activeBase && n != o.Active {
			if _, err := one(n); err != nil {
				return err
			}
		}
	}
	var few, many []ActiveRun
	for range cmp.Or(o.turns, activeComparisons) {
		a, err := one(activeBase)
		if err != nil {
			return err
		}
		b, err := one(o.Active)
		if err != nil {
			return err
		}
		few, many = append(few, a), append(many, b)
	}
	median := func(runs []ActiveRun, f func(ActiveRun) float64) float64 {
		var v []float64
		for _, run := range runs {
			v = append(v, f(run))
		}
		return medianOf(v)
	}
	rate := func(run ActiveRun) float64 { return run.MessagesPerSecond }
	cost := func(run ActiveRun) float64 { return run.ServerCPUMs }
	r.Many.Ratios = append(r.Many.Ratios, ActiveRatio{
		RecordBytes: size, Few: activeBase, Many: o.Active,
		Throughput: median(many, rate) / max(median(few, rate), 1e-9), ServerCPU: median(few, cost) / max(median(many, cost), 1e-9),
	})
	r.MessagesPerSecond = median(many, rate)
	r.BytesPerSecond = r.MessagesPerSecond * float64(size)
	for _, n := range counts {
		for i := range activeTopicCount(n) {
			if err := api.DeleteTopic(ctx, activeTopic(size, n, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func medianOf(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func activeTopicCount(n int) int { return (n + activeTopicSize - 1) / activeTopicSize }

func activeTopic(size, n, i int) string { return fmt.Sprintf("bench-active-%d-%d-%d", size, n, i) }

func activeTopics(ctx context.Context, api *client.API, size, n int) error {
	for i := range activeTopicCount(n) {
		parts := min(activeTopicSize, n-i*activeTopicSize)
		if _, err := api.CreateTopic(ctx, client.TopicSpec{Name: activeTopic(size, n, i), Partitions: int32(parts)}); err != nil {
			return err
		}
	}
	return nil
}

// activeRun saturates the partitions of some producers. The first half second is not counted.
func activeRun(ctx context.Context, o Options, p *process, producers []*rawProducer, size int) (run ActiveRun, err error) {
	run = ActiveRun{Partitions: len(producers[0].sequences), RecordBytes: size}
	perBatch := int(producers[0].perBatch)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var batches atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for _, x := range producers {
		wg.Go(func() {
			for ctx.Err() == nil {
				k, err := x.send()
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					cancel()
					return
				}
				batches.Add(int64(k))
			}
		})
	}
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	pause(500 * time.Millisecond)
	server, self := processCPU(p.cmd.Process.Pid), cpuSeconds()
	from, began := batches.Load(), time.Now()
	pause(time.Duration(o.Seconds) * time.Second)
	count, took := batches.Load()-from, time.Since(began)
	self = cpuSeconds() - self
	cancel()
	wg.Wait()
	if err := failed.Load(); err != nil {
		return run, *err
	}
	total := batches.Load() - from
	server = settle(p.cmd.Process.Pid) - server
	run.MessagesPerSecond = float64(count*int64(perBatch)) / took.Seconds()
	run.BytesPerSecond = run.MessagesPerSecond * float64(size)
	mib := func(batches int64) float64 { return max(1e-9, float64(batches)*float64(perBatch*size)/(1<<20)) }
	run.ServerCPUMs, run.ClientCPUMs = server*1e3/mib(total), self*1e3/mib(count)
	run.RSSBytes = rss(p.cmd.Process.Pid)
	return run, nil
}

// settle waits until the server has done what it does behind the log, at most some seconds, and returns its processor
// time.
func settle(pid int) float64 {
	last := processCPU(pid)
	for range 30 {
		time.Sleep(200 * time.Millisecond)
		now := processCPU(pid)
		if now-last < 0.02 {
			return now
		}
		last = now
	}
	return last
}

// processCPU is the processor time of a process, s.
func processCPU(pid int) float64 {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // clock ticks, 100 a second on Linux
}

// A rawProducer is an idempotent producer that costs next to nothing: it puts sequence numbers into batches that were
// made before and writes the frames of Produce version 7 itself.
type rawProducer struct {
	conn net.Conn
	in   *bufio.Reader
	rand *rand.Rand

	batch, frame, reply []byte
	header              record.Header
	perBatch            int32
	size                int // bytes of a record, names the topics
	sequences           []int32
	chosen              []int
	correlation         uint32
}

func newRawProducers(ctx context.Context, kafka string, size, n int) (all []*rawProducer, err error) {
	for i := range activeProducers {
		x, err := newRawProducer(ctx, kafka, uint64(i), size, max(1, activeBatchBytes/size), n)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

func newRawProducer(ctx context.Context, kafka string, seed uint64, size, perBatch, n int) (*rawProducer, error) {
	k, err := client.Kafka(kafka)
	if err != nil {
		return nil, err
	}
	id, epoch, err := k.ProducerID(ctx)
	k.Close()
	if err != nil {
		return nil, fmt.Errorf("bench: producer id: %w", err)
	}
	b := record.NewBuilder()
	b.SetProducer(id, epoch, 0)
	value := payload(size)
	for range perBatch {
		b.Append(time.Now().UnixMilli(), nil, value, nil)
	}
	p := &rawProducer{rand: rand.New(rand.NewPCG(seed, 1)), batch: b.Finish(), perBatch: int32(perBatch), size: size, sequences: make([]int32, n)}
	if p.header, err = record.ParseHeader(p.batch); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if p.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", kafka); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p.in = bufio.NewReaderSize(p.conn, 16<<10)
	return p, nil
}

// send sends one request, waits for its answer, and returns how many batches were acknowledged.
func (p *rawProducer) send() (int, error) {
	n := len(p.sequences)
	p.chosen = p.chosen[:0]
	for len(p.chosen) < min(n, activePerRequest) {
		at := p.rand.IntN(n)
		if n == activePerRequest {
			at = len(p.chosen)
		}
		if !slices.Contains(p.chosen, at) {
			p.chosen = append(p.chosen, at)
		}
	}
	slices.Sort(p.chosen) // by topic
	p.encode()
	_ = p.conn.SetDeadline(time.Now().Add(30 * time.Second)) // of an open connection: it works, or Write says so
	if _, err := p.conn.Write(p.frame); err != nil {
		return 0, fmt.Errorf("bench: produce: %w", err)
	}
	if err := p.answer(); err != nil {
		return 0, err
	}
	return len(p.chosen), nil
}

// encode makes the request's frame.
func (p *rawProducer) encode() {
	be := binary.BigEndian
	str := func(b []byte, s string) []byte { return append(be.AppendUint16(b, uint16(len(s))), s...) }
	p.correlation++
	f := append(p.frame[:0], 0, 0, 0, 0, 0, 0, 0, 7) // length, Produce, version 7
	f = str(be.AppendUint32(f, p.correlation), "bench")
	f = append(f, 0xff, 0xff, 0xff, 0xff) // no transaction, acks=all
	f = be.AppendUint32(f, 30_000)
	topics := 0
	at := len(f)
	f = be.AppendUint32(f, 0)
	for i := 0; i < len(p.chosen); {
		topic := p.chosen[i] / activeTopicSize
		k := i
		for k < len(p.chosen) && p.chosen[k]/activeTopicSize == topic {
			k++
		}
		topics++
		f = str(f, activeTopic(p.size, len(p.sequences), topic))
		f = be.AppendUint32(f, uint32(k-i))
		for ; i < k; i++ {
			n := p.chosen[i]
			p.header.BaseSequence = p.sequences[n]
			record.PutHeader(p.batch, p.header)
			record.Seal(p.batch)
			p.sequences[n] = int32(uint32(p.sequences[n]+p.perBatch) & 0x7fffffff)
			f = be.AppendUint32(f, uint32(n%activeTopicSize))
			f = append(be.AppendUint32(f, uint32(len(p.batch))), p.batch...)
		}
	}
	be.PutUint32(f[at:], uint32(topics))
	be.PutUint32(f, uint32(len(f)-4))
	p.frame = f
}

// answer reads the response and looks for errors in it.
func (p *rawProducer) answer() error {
	be := binary.BigEndian
	var length [4]byte
	if _, err := io.ReadFull(p.in, length[:]); err != nil {
		return fmt.Errorf("bench: produce: %w", err)
	}
	size := int(be.Uint32(length[:]))
	if size > 1<<20 {
		return fmt.Errorf("bench: an answer of %d bytes", size)
	}
	p.reply = slices.Grow(p.reply[:0], size)[:size]
	if _, err := io.ReadFull(p.in, p.reply); err != nil {
		return fmt.Errorf("bench: produce: %w", err)
	}
	bad := errors.New("bench: the answer to a produce request makes no sense")
	b := p.reply
	take := func(n int) []byte {
		if n > len(b) {
			b = nil
			return make([]byte, 8)
		}
		x := b[:n]
		b = b[n:]
		return x
	}
	take(4)
	parts := 0
	for range min(be.Uint32(take(4)), activePerRequest) {
		take(int(be.Uint16(take(2))))
		for range min(be.Uint32(take(4)), activePerRequest) {
			take(4)
			if code := be.Uint16(take(2)); code != 0 {
				return fmt.Errorf("bench: a batch was refused with Kafka's error %d", code)
			}
			take(24)
			parts++
		}
	}
	if len(b) != 4 || parts != len(p.chosen) {
		return bad
	}
	return nil
}
