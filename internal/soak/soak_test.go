package soak

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

// Sizes with which segments roll, checkpoints are taken and log starts rise all the time.
const tuned = "wal-segment-bytes=4194304,wal-cache-bytes=4194304,checkpoint-bytes=8388608,checkpoint-ms=3000,trailing-bytes=2097152," +
	"segment-bytes=4194304,cache-bytes=8388608,retention-ms=500"

// A series is one thing that must not grow.
type series struct {
	name   string
	unit   float64 // what the table divides by
	limit  Limit
	values []float64
}

// A run is one soak.
type run struct {
	t           *testing.T
	kafka, http string
	pprof       string
	data        string
	cmd         *exec.Cmd
	log         bytes.Buffer
	exited      chan error
	length      time.Duration
	rate        int // records/s

	sent, acked, read, caught, failures, lives, modules atomic.Int64

	mu     sync.Mutex
	errs   map[string]int
	window []time.Duration // publish latencies since the last sample
}

// note counts an operation that failed; in a healthy run there are few, of topics that were just deleted.
func (r *run) note(what string, err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs[what+": "+err.Error()]++
	r.failures.Add(1)
}

// TestNothingGrows is the soak: HEADRACE_SOAK is its length, as in 20m, and HEADRACE_SOAK_RATE its records a second,
// 2,000 by default. The long tests run a short one, which proves little but that it works.
func TestNothingGrows(t *testing.T) {
	r := &run{t: t, rate: 2000, errs: map[string]int{}, exited: make(chan error, 1)}
	switch length, err := time.ParseDuration(os.Getenv("HEADRACE_SOAK")); {
	case err == nil && length > 0:
		r.length = length
	case os.Getenv("HEADRACE_LONG") != "":
		r.length = 25 * time.Second
	default:
		t.Skip("a soak: HEADRACE_SOAK=20m, or make soak")
	}
	if n, err := strconv.Atoi(os.Getenv("HEADRACE_SOAK_RATE")); err == nil {
		r.rate = n
	}
	ctx, cancel := context.WithTimeout(t.Context(), r.length+3*time.Minute)
	defer cancel()
	r.start(ctx)
	watched := r.soak(ctx)
	for _, s := range watched {
		if why := Grows(s.values, s.limit); why != "" {
			t.Errorf("%s grows: %s", s.name, why)
		}
	}
	want := int64(float64(r.rate) * r.length.Seconds() / 3)
	if n := r.acked.Load(); n < want {
		t.Errorf("only %d records were acknowledged, of at least %d", n, want)
	}
	if r.read.Load() == 0 || r.caught.Load() == 0 || r.lives.Load() == 0 || r.modules.Load() == 0 {
		t.Errorf("read %d, caught up %d times, %d lives of topics, %d of modules", r.read.Load(), r.caught.Load(), r.lives.Load(), r.modules.Load())
	}
}

func free(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func (r *run) start(ctx context.Context) {
	t := r.t
	dir := t.TempDir()
	bin := filepath.Join(dir, "headrace")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/headrace").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	r.data, r.kafka, r.http, r.pprof = filepath.Join(dir, "data"), free(t), free(t), free(t)
	r.cmd = exec.Command(bin, "serve", "--data", r.data, "--kafka", r.kafka, "--http", r.http, "--pprof", r.pprof, "--log-level", "warn", "--tune", tuned)
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.exited <- r.cmd.Wait() }()
	t.Cleanup(func() {
		_ = r.cmd.Process.Signal(os.Interrupt)
		select {
		case <-r.exited:
		case <-time.After(20 * time.Second):
			t.Error("the server does not stop")
			_ = r.cmd.Process.Kill()
			<-r.exited
		}
		if t.Failed() {
			t.Logf("the server said\n%s", r.log.String())
		}
	})
	for {
		if _, err := client.NewAPI(r.http).Status(ctx); err == nil {
			return
		}
		select {
		case err := <-r.exited:
			r.exited <- err
			t.Fatalf("the server ended: %v", err)
		case <-ctx.Done():
			t.Fatal("the server does not answer")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// soak puts the load on the server for the length of the run and samples it.
func (r *run) soak(ctx context.Context) []*series {
	const mib = 1 << 20
	watched := []*series{
		{name: "live heap MiB", unit: mib, limit: Limit{0.15, 4 * mib}},
		{name: "RSS MiB", unit: mib, limit: Limit{0.15, 32 * mib}},
		{name: "goroutines", unit: 1, limit: Limit{0.10, 12}},
		{name: "descriptors", unit: 1, limit: Limit{0.10, 20}},
		{name: "disk MiB", unit: mib, limit: Limit{0.20, 48 * mib}},
		{name: "WAL files", unit: 1, limit: Limit{0.20, 6}},
	}
	if r.length < 5*time.Minute { // caches still fill
		for _, s := range watched {
			s.limit.Share, s.limit.Amount = 1, 8*s.limit.Amount
		}
	}
	p99 := &series{name: "p99 ms", unit: 1}
	worst := &series{name: "max ms", unit: 1}
	during, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	r.load(during, &wg)
	every := min(5*time.Second, r.length/40)
	r.t.Logf("%v at %d records/s, a sample every %v", r.length, r.rate, every)
	fmt.Printf("%8s %9s", "seconds", "records")
	for _, s := range append(slices.Clone(watched), p99, worst) {
		fmt.Printf(" %13s", s.name)
	}
	fmt.Println()
	begun := time.Now()
	lines := 0
	tick := time.NewTicker(every)
	defer tick.Stop()
	for time.Since(begun) < r.length {
		select {
		case err := <-r.exited:
			r.exited <- err
			stop()
			r.t.Fatalf("the server ended by itself: %v\n%s", err, r.log.String())
		case <-tick.C:
		}
		values, err := r.sample(ctx)
		if err != nil {
			r.t.Errorf("sample: %v", err)
			continue
		}
		for i, s := range watched {
			s.values = append(s.values, values[i])
		}
		r.mu.Lock()
		slices.Sort(r.window)
		if n := len(r.window); n > 0 {
			p99.values = append(p99.values, float64(r.window[n*99/100].Microseconds())/1e3)
			worst.values = append(worst.values, float64(r.window[n-1].Microseconds())/1e3)
		}
		r.window = r.window[:0]
		r.mu.Unlock()
		if n := len(p99.values); n > 0 && (time.Since(begun) >= time.Duration(lines)*r.length/30) {
			lines++
			fmt.Printf("%8.0f %9d", time.Since(begun).Seconds(), r.acked.Load())
			for _, s := range append(slices.Clone(watched), p99, worst) {
				fmt.Printf(" %13.1f", s.values[len(s.values)-1]/s.unit)
			}
			fmt.Println()
		}
	}
	stop()
	wg.Wait()
	for _, s := range append(slices.Clone(watched), p99, worst) {
		fmt.Printf("%-14s %s highest %.1f\n", s.name, Plot(s.values, 60), slices.Max(append(s.values, 0))/s.unit)
	}
	fmt.Printf("sent %d, acknowledged %d, read %d, caught up %d times, lives of topics %d, of modules %d; failed operations:\n",
		r.sent.Load(), r.acked.Load(), r.read.Load(), r.caught.Load(), r.lives.Load(), r.modules.Load())
	for what, n := range r.errs {
		fmt.Printf("  %5d %s\n", n, what)
	}
	return watched
}

// sample reads what is watched, in its order. The heap is what a collection leaves.
func (r *run) sample(ctx context.Context) ([]float64, error) {
	if _, err := get(ctx, "http://"+r.pprof+"/debug/pprof/heap?gc=1"); err != nil {
		return nil, err
	}
	text, err := get(ctx, "http://"+r.http+"/metrics")
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		if name, value, ok := strings.Cut(sc.Text(), " "); ok && !strings.HasPrefix(name, "#") {
			if m[name], err = strconv.ParseFloat(value, 64); err != nil {
				m[name] = math.NaN()
			}
		}
	}
	var out []float64
	for _, name := range []string{"go_memstats_heap_alloc_bytes", "process_resident_memory_bytes", "go_goroutines", "process_open_fds"} {
		v, ok := m[name]
		if !ok {
			return nil, fmt.Errorf("/metrics has no %s", name)
		}
		out = append(out, v)
	}
	disk, wal := int64(0), 0
	err = filepath.WalkDir(r.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // gone meanwhile
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				disk += st.Blocks * 512
			}
		}
		if filepath.Base(filepath.Dir(path)) == "wal" {
			wal++
		}
		return nil
	})
	return append(out, float64(disk), float64(wal)), err
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return b.Bytes(), nil
}

func (r *run) client(opts ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(r.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(5000)}, opts...)...)
	if err != nil {
		r.t.Error(err)
		panic(err) // options are ours
	}
	return c
}

// load starts all clients; they end with ctx.
func (r *run) load(ctx context.Context, wg *sync.WaitGroup) {
	admin := kadm.NewClient(r.client())
	wg.Go(func() { <-ctx.Done(); admin.Close() })
	retain := func(bytes string) map[string]*string { return map[string]*string{"retention.bytes": &bytes} }
	for topic, partitions := range map[string]int32{"thin": 16, "thick": 2} {
		if _, err := admin.CreateTopic(ctx, partitions, 1, retain(map[string]string{"thin": "262144", "thick": "8388608"}[topic]), topic); err != nil {
			r.t.Errorf("create %s: %v", topic, err)
		}
	}
	wg.Go(func() { r.produce(ctx, "thin", 16, 100, r.rate*6/10) })
	wg.Go(func() { r.produce(ctx, "thick", 2, 1024, r.rate*3/10) })
	for range 2 {
		wg.Go(func() { r.consume(ctx, "group", "thin", "thick") })
	}
	life := max(r.length/60, 2*time.Second)
	again := func(pause time.Duration, do func(ctx context.Context, n int)) {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				do(ctx, n)
				wait(ctx, pause)
			}
		})
	}
	again(life/4, func(ctx context.Context, _ int) { // a member that comes and goes
		short, cancel := context.WithTimeout(ctx, life/2)
		defer cancel()
		r.consume(short, "group", "thin", "thick")
	})
	again(life/2, r.catchUp)
	again(100*time.Millisecond, func(ctx context.Context, n int) { r.topicLife(ctx, admin, n) })
	again(200*time.Millisecond, func(ctx context.Context, n int) { r.moduleLife(ctx, admin, n, life) })
	again(50*time.Millisecond, r.cut)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// produce sends so many records a second to the partitions in turn.
func (r *run) produce(ctx context.Context, topic string, partitions int32, size, rate int) {
	c := r.client()
	defer c.Close()
	value := bytes.Repeat([]byte("x"), size)
	begun := time.Now()
	for n := 0; ctx.Err() == nil; wait(ctx, 10*time.Millisecond) {
		for due := int(time.Since(begun).Seconds() * float64(rate)); n < due && ctx.Err() == nil; n++ {
			r.publish(ctx, c, &kgo.Record{Topic: topic, Partition: int32(n) % partitions, Value: value})
		}
	}
}

func (r *run) publish(ctx context.Context, c *kgo.Client, rec *kgo.Record) {
	at := time.Now()
	r.sent.Add(1)
	c.Produce(ctx, rec, func(_ *kgo.Record, err error) {
		if err != nil {
			if ctx.Err() == nil {
				r.note("produce", err)
			}
			return
		}
		if r.acked.Add(1)%8 == 0 {
			r.mu.Lock()
			r.window = append(r.window, time.Since(at))
			r.mu.Unlock()
		}
	})
}

// consume reads as a member of a group until ctx ends.
func (r *run) consume(ctx context.Context, group string, topics ...string) {
	c := r.client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.AutoCommitInterval(500*time.Millisecond), kgo.FetchMaxBytes(1<<20), kgo.SessionTimeout(6*time.Second))
	defer c.Close()
	for ctx.Err() == nil {
		r.read.Add(int64(c.PollFetches(ctx).NumRecords()))
	}
}

// catchUp reads everything that is kept, from the beginning.
func (r *run) catchUp(ctx context.Context, _ int) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := r.client(kgo.ConsumeTopics("thick"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(4<<20))
	defer c.Close()
	for begun := time.Now().UnixMilli(); ctx.Err() == nil; {
		done := false
		c.PollFetches(ctx).EachRecord(func(rec *kgo.Record) {
			r.read.Add(1)
			done = done || rec.Timestamp.UnixMilli() > begun
		})
		if done {
			r.caught.Add(1)
			return
		}
	}
}

// topicLife creates a topic whose name was never used, writes to it, reads it and deletes it.
func (r *run) topicLife(ctx context.Context, admin *kadm.Client, n int) {
	topic := fmt.Sprintf("life-%d", n)
	if _, err := admin.CreateTopic(ctx, int32(1+n%3), 1, nil, topic); err != nil {
		r.failed(ctx, "create", err)
		return
	}
	c := r.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	for range r.rate / 100 {
		r.publish(ctx, c, &kgo.Record{Topic: topic, Value: make([]byte, 500)})
	}
	r.failed(ctx, "flush", c.Flush(ctx))
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	r.read.Add(int64(c.PollFetches(short).NumRecords()))
	cancel()
	c.Close()
	_, err := admin.DeleteTopic(ctx, topic)
	r.failed(ctx, "delete", err)
	r.lives.Add(1)
}

func (r *run) failed(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		r.note(what, err)
	}
}

const module = `topic src%d { id: int64, kind: string, amount: int64, ts: time("ms") } with key (kind), partitions 2, time ts lag 1s
topic big%d = from src%d |> where amount > 500
topic sums%d = from src%d |> agg n = count(), total = sum(amount) by kind window tumble(1s)
`

// moduleLife applies a module, feeds it for a while, and deletes it with its topics.
func (r *run) moduleLife(ctx context.Context, admin *kadm.Client, n int, life time.Duration) {
	api := client.NewAPI(r.http)
	name, src := fmt.Sprintf("soak%d", n), fmt.Sprintf("src%d", n)
	if _, err := api.Apply(ctx, name, fmt.Sprintf(module, n, n, n, n, n), client.ApplyOptions{}); err != nil {
		r.failed(ctx, "apply", err)
		return
	}
	c := r.client()
	begun, rate := time.Now(), float64(r.rate)/10
	for i := 0; time.Since(begun) < life && ctx.Err() == nil; wait(ctx, 20*time.Millisecond) {
		for due := int(time.Since(begun).Seconds() * rate); i < due; i++ {
			r.publish(ctx, c, &kgo.Record{Topic: src, Partition: int32(i % 2), Value: fmt.Appendf(nil, `{"id":%d,"kind":"k%d","amount":%d,"ts":%d}`, i, i%50, i*37%1000, time.Now().UnixMilli())})
		}
	}
	r.failed(ctx, "flush", c.Flush(ctx))
	c.Close()
	r.failed(ctx, "delete module", api.Delete(ctx, name))
	_, err := admin.DeleteTopic(ctx, src)
	r.failed(ctx, "delete source", err)
	r.modules.Add(1)
}

// cut opens a connection and closes it at some point of a request, or resets it.
func (r *run) cut(ctx context.Context, n int) {
	conn, err := net.DialTimeout("tcp", r.kafka, time.Second)
	if err != nil {
		r.failed(ctx, "dial", err)
		return
	}
	// ApiVersions, version 0, with the client id "cut".
	request := []byte{0, 0, 0, 13, 0, 18, 0, 0, 0, 0, 0, 1, 0, 3, 'c', 'u', 't'}
	_, _ = conn.Write(request[:n%(len(request)+1)])
	if tcp, ok := conn.(*net.TCPConn); ok && n%3 == 0 {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
