package main_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/operators"
)

const killModule = `topic src { id: int64, user: string, kind: string, amount: int64, ts: time("ms") }
  with key (user), partitions 2, time ts lag 1s

topic big = from src |> where amount > 300
topic sums = from src
  |> agg n = count(), total = sum(amount), head = first(id), tail = last(id) by kind window tumble(5s)
topic kinds = from src |> where amount % 2 == 0 |> key (kind) with partitions 3
topic chained = from big |> agg n = count(), total = sum(amount), tail = last(id) by user window tumble(20s)
`

// A killedRow is one row of src.
type killedRow struct {
	id, amount, ts int64 // ts in ms
	user, kind     string
	behind         int64 // the watermark of its partition before it, ms
}

func (r *killedRow) json() string {
	return fmt.Sprintf(`{"id":%d,"user":%q,"kind":%q,"amount":%d,"ts":%d}`, r.id, r.user, r.kind, r.amount, r.ts)
}

// text is the row as a derived topic holds it.
func (r *killedRow) text() string {
	return fmt.Sprintf(`{"id":%d,"user":%q,"kind":%q,"amount":%d,"ts":%q}`, r.id, r.user, r.kind, r.amount, stamp(r.ts))
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

const killLag = 1000 // ms

func killedRows(rng *rand.Rand, rows int) (out [2][]killedRow) {
	base := [2]int64{1_700_000_000_000, 1_700_000_000_300}
	top := [2]int64{math.MinInt64, math.MinInt64}
	for id := range rows {
		p := rng.IntN(2)
		base[p] += int64(rng.IntN(20))
		ts := base[p] - int64(rng.IntN(700))
		if rng.IntN(40) == 0 {
			ts = base[p] - int64(rng.IntN(30_000))
		}
		r := killedRow{
			id: int64(id), amount: int64(rng.IntN(1000)), ts: ts,
			user: fmt.Sprintf("u%d-%d", p, rng.IntN(20)), kind: fmt.Sprintf("k%d", rng.IntN(12)), behind: math.MinInt64,
		}
		if top[p] > math.MinInt64 {
			r.behind = top[p] - killLag
		}
		top[p] = max(top[p], ts)
		out[p] = append(out[p], r)
	}
	return out
}

// lateFor says whether the tumbling window of a row had closed before it.
func (r *killedRow) lateFor(size int64) bool {
	return r.behind != math.MinInt64 && r.ts-r.ts%size+size <= r.behind
}

// A place orders rows that come from several partitions.
type place struct {
	at     int64
	p, off int
}

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.p, b.p), cmp.Compare(a.off, b.off))
}

type killedGroup struct {
	n, total    int64
	head, tail  int64
	first, last place
}

type windowKey struct {
	start int64
	key   string
}

// fold computes a tumbling window over rows of both partitions.
func fold(rows [2][]killedRow, size int64, keep func(*killedRow) bool, key func(*killedRow) string) (map[windowKey]*killedGroup, [2][]string) {
	groups := map[windowKey]*killedGroup{}
	var late [2][]string
	for p := range rows {
		for i := range rows[p] {
			r := &rows[p][i]
			if !keep(r) {
				continue
			}
			if r.lateFor(size) {
				late[p] = append(late[p], r.user+"="+r.json())
				continue
			}
			k := windowKey{r.ts - r.ts%size, key(r)}
			at := place{r.ts, p, i}
			g := groups[k]
			if g == nil {
				g = &killedGroup{first: at, last: at, head: r.id, tail: r.id}
				groups[k] = g
			}
			g.n++
			g.total += r.amount
			if at.compare(g.first) < 0 {
				g.first, g.head = at, r.id
			}
			if at.compare(g.last) > 0 {
				g.last, g.tail = at, r.id
			}
		}
	}
	return groups, late
}

func inWindowOrder(groups map[windowKey]*killedGroup) []windowKey {
	keys := make([]windowKey, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b windowKey) int { return cmp.Or(cmp.Compare(a.start, b.start), strings.Compare(a.key, b.key)) })
	return keys
}

// expected is what every topic must hold, by topic and partition.
func expected(rows [2][]killedRow) map[string][]string {
	want := map[string][]string{}
	put := func(topic string, p int, line string) {
		at := fmt.Sprintf("%s/%d", topic, p)
		want[at] = append(want[at], line)
	}
	type held struct {
		place
		row *killedRow
	}
	var kinds []held
	for p := range rows {
		for i := range rows[p] {
			r := &rows[p][i]
			put("src", p, r.user+"="+r.json())
			if r.amount > 300 {
				put("big", p, r.user+"="+r.text())
			}
			if r.amount%2 == 0 {
				kinds = append(kinds, held{place{max(r.ts, r.behind), p, i}, r})
			}
		}
	}
	slices.SortFunc(kinds, func(a, b held) int { return a.compare(b.place) })
	for _, h := range kinds {
		put("kinds", int(operators.Partition([]byte(h.row.kind), 3)), h.row.kind+"="+h.row.text())
	}
	sums, late := fold(rows, 5000, func(*killedRow) bool { return true }, func(r *killedRow) string { return r.kind })
	for p, lines := range late {
		for _, l := range lines {
			put("sums_late", p, l)
		}
	}
	for _, k := range inWindowOrder(sums) {
		g := sums[k]
		put("sums", int(operators.Partition([]byte(k.key), 2)), fmt.Sprintf(`%s={"kind":%q,"window_start":%q,"window_end":%q,"n":%d,"total":%d,"head":%d,"tail":%d}`,
			k.key, k.key, stamp(k.start), stamp(k.start+5000), g.n, g.total, g.head, g.tail))
	}
	chained, _ := fold(rows, 20_000, func(r *killedRow) bool { return r.amount > 300 }, func(r *killedRow) string { return r.user })
	for _, k := range inWindowOrder(chained) {
		g := chained[k]
		put("chained", int(operators.Partition([]byte(k.key), 2)), fmt.Sprintf(`%s={"user":%q,"window_start":%q,"window_end":%q,"n":%d,"total":%d,"tail":%d}`,
			k.key, k.key, stamp(k.start), stamp(k.start+20_000), g.n, g.total, g.tail))
	}
	return want
}

// A victim is a server process that is killed and started again on the same ports and data.
type victim struct {
	t                       *testing.T
	bin, data, kafka, http_ string
	cmd                     *exec.Cmd
	exited                  chan error
	log                     *lockedBuffer
	printed                 int // bytes of log when the process began
	full                    int // processes that ended because they found no space to start
}

// A lockedBuffer collects what the processes print.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Len()
}

// since is what was printed after the first n bytes.
func (l *lockedBuffer) since(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b.Bytes()[n:])
}

func (l *lockedBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	return string(b[max(0, len(b)-8000):])
}

func freeAddress(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// tuned are sizes with which segments roll, checkpoints are taken and log starts rise all the time.
const tuned = "wal-segment-bytes=1048576,wal-cache-bytes=1048576,inflight-bytes=4194304,checkpoint-bytes=3145728,checkpoint-ms=700,trailing-bytes=262144," +
	"segment-bytes=2097152,cache-bytes=2097152,retention-ms=150"

// start starts the server as the leader of a process group that ends with this process.
func (v *victim) start() {
	v.cmd = exec.Command(v.bin, "serve", "--data", v.data, "--kafka", v.kafka, "--http", v.http_, "--log-level", "warn", "--tune", tuned)
	v.cmd.Stdout, v.cmd.Stderr = v.log, v.log
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := v.cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	v.exited, v.printed = make(chan error, 1), v.log.len()
	go func(cmd *exec.Cmd, exited chan<- error) { exited <- cmd.Wait() }(v.cmd, v.exited)
}

// ended starts the process again if it has ended because there was no space to start, as whoever runs it would. One that
// has ended for another reason, or after it was ready, fails the test.
func (v *victim) ended() bool {
	v.t.Helper()
	select {
	case err := <-v.exited:
		if out := v.log.since(v.printed); !strings.Contains(out, "no space left on device") || strings.Contains(out, "headrace dev serves") {
			v.t.Fatalf("the server ended by itself: %v\n%s", err, v.log.tail())
		}
	default:
		return false
	}
	v.full++
	v.start()
	return true
}

// kill ends the process, or its whole group, without notice.
func (v *victim) kill(group bool) {
	v.t.Helper()
	v.ended()
	pid := v.cmd.Process.Pid
	if group {
		pid = -pid
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	<-v.exited
}

// pause stops the process for a while, as a machine does that is short of something.
func (v *victim) pause(d time.Duration) {
	pid := v.cmd.Process.Pid
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	time.Sleep(d)
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// until repeats do until it succeeds.
func until(ctx context.Context, t *testing.T, what string, v *victim, do func() error) {
	t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		pause := 10 * time.Millisecond
		if v.ended() {
			pause = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v\n%s", what, err, v.log.tail())
		case <-time.After(pause):
		}
	}
}

// Whatever moment a server is killed at, on a disk that fills up, paused before or killed again while it recovers: the
// log holds what was acknowledged, in order and once to idempotent producers, and nothing else; topics and offsets are
// what was acknowledged; and each derived topic holds exactly the rows that its pipeline makes of it.
func TestKilledServersLoseAndRepeatNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and kills the server")
	}
	kills, perKill := 10, 900
	if os.Getenv("HEADRACE_LONG") != "" {
		kills = 200
	}
	seed := uint64(time.Now().UnixNano())
	for name, to := range map[string]any{"HEADRACE_SEED": &seed, "HEADRACE_KILLS": &kills} {
		if s := os.Getenv(name); s != "" {
			if _, err := fmt.Sscan(s, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("HEADRACE_SEED=%d HEADRACE_KILLS=%d", seed, kills)
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	bin := filepath.Join(dir, "headrace")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+time.Duration(kills)*8*time.Second)
	defer cancel()
	disk := newSmallDisk(t, 192<<20)
	v := &victim{t: t, bin: bin, data: filepath.Join(disk.dir, "data"), kafka: freeAddress(t), http_: freeAddress(t), log: &lockedBuffer{}}
	v.start()
	defer func() { _ = v.cmd.Process.Kill() }()
	api := client.NewAPI(v.http_)
	until(ctx, t, "apply", v, func() error {
		_, err := api.Apply(ctx, "m", killModule, client.ApplyOptions{})
		return err
	})

	l := startLoad(ctx, t, v, disk, seed)
	rows := killedRows(rng, kills*perKill)
	allowed := make(chan int, kills+1)
	sent := feed(ctx, t, v, rows, allowed)
	for i := range kills {
		allowed <- kills * perKill * (i + 1) / kills
		killOnce(ctx, l, rng, i)
	}
	close(allowed)
	if err := l.end(ctx); err != nil {
		t.Fatalf("at the end: %v\n%s", err, l.story())
	}
	select {
	case err := <-sent:
		if err != nil {
			t.Fatalf("produce: %v\n%s", err, v.log.tail())
		}
	case <-ctx.Done():
		t.Fatalf("produce: %v\n%s", ctx.Err(), v.log.tail())
	}
	comparePipelines(ctx, t, v, api, rows)
	v.kill(false)
	if disk.root != nil && kills >= 100 && l.ops.count("disk full") == 0 {
		t.Error("the disk was never full")
	}
	t.Logf("%s; %d starts found no space; the slowest restart took %v", l.ops.counts(), v.full, l.slowest.Round(time.Millisecond))
}

// killOnce lets the server work for a moment, kills it, lets it recover, maybe kills it in the middle of that, and
// compares what it holds with what was acknowledged.
func killOnce(ctx context.Context, l *load, rng *rand.Rand, i int) {
	v := l.v
	after := time.Duration(rng.IntN(700)) * time.Millisecond
	if i%3 == 0 { // while it recovers
		after = time.Duration(rng.IntN(200)) * time.Millisecond
	}
	time.Sleep(after)
	if rng.IntN(4) == 0 {
		d := time.Duration(50+rng.IntN(700)) * time.Millisecond
		l.ops.note("pause", "ok", d)
		v.pause(d)
		time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
	}
	l.ops.note("kill", "ok", i)
	v.kill(rng.IntN(2) == 0) // on a full disk, perhaps
	v.start()
	for rng.IntN(3) == 0 { // again within the first second
		d := time.Duration(rng.IntN(1000)) * time.Millisecond
		time.Sleep(d)
		l.ops.note("second kill", "ok", d)
		v.kill(false)
		v.start()
	}
	begun := time.Now()
	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	until(soon, l.t, "the server is back", v, func() error {
		short, cancel := context.WithTimeout(soon, 2*time.Second)
		defer cancel()
		_, err := l.list(short)
		return err
	})
	l.slowest = max(l.slowest, time.Since(begun))
	l.ops.note("restart", "ok", time.Since(begun))
	for tries := 0; ; tries++ {
		err := l.compare(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, errTryAgain) || tries == 10 {
			l.t.Fatalf("after kill %d: %v\n%s", i, err, l.story())
		}
	}
}

// comparePipelines ends the input and holds each derived topic against the reference.
func comparePipelines(ctx context.Context, t *testing.T, v *victim, api *client.API, rows [2][]killedRow) {
	until(ctx, t, "end of the input", v, func() error { return api.EndTopic(ctx, "src") })
	for _, name := range []string{"big", "sums", "kinds", "chained"} {
		until(ctx, t, name+" reaches the end", v, func() error {
			p, err := api.Pipeline(ctx, "m/"+name)
			if err == nil && (p.Watermark != "+inf" || p.Lag > 0) {
				err = fmt.Errorf("state %s (%s), watermark %s, lag %d", p.State, p.Reason, p.Watermark, p.Lag)
			}
			return err
		})
	}
	want := expected(rows)
	for _, topic := range []string{"src", "big", "sums", "sums_late", "kinds", "chained"} {
		info, err := api.Topic(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		for p, got := range readTopic(ctx, t, v.kafka, topic, info.Ranges) {
			compareLines(t, fmt.Sprintf("%s/%d", topic, p), want[fmt.Sprintf("%s/%d", topic, p)], got)
		}
	}
}

// feed sends as many of the rows as allowed says, as they become allowed.
func feed(ctx context.Context, t *testing.T, v *victim, rows [2][]killedRow, allowed <-chan int) <-chan error {
	k, err := kgo.NewClient(
		kgo.SeedBrokers(v.kafka), kgo.DefaultProduceTopic("src"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(8<<10), kgo.MaxBufferedRecords(4000), kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.DialTimeout(2*time.Second),
		kgo.MetadataMinAge(20*time.Millisecond),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	sent := make(chan error, 1)
	go func() {
		var next [2]int
		var mu sync.Mutex
		var first error
		done := 0
		for limit := range allowed {
			for ; done < limit; done++ {
				p := 0
				if next[0] == len(rows[0]) || next[1] < len(rows[1]) && rows[1][next[1]].id < rows[0][next[0]].id {
					p = 1
				}
				r := &rows[p][next[p]]
				next[p]++
				k.Produce(ctx, &kgo.Record{Partition: int32(p), Key: []byte(r.user), Value: []byte(r.json()), Timestamp: time.UnixMilli(r.ts)}, func(_ *kgo.Record, err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil && first == nil {
						first = err
					}
				})
				if done%50 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		}
		err := k.Flush(ctx)
		mu.Lock()
		defer mu.Unlock()
		sent <- cmp.Or(first, err)
	}()
	return sent
}

// readTopic reads every record of a topic as key=value lines, by partition.
func readTopic(ctx context.Context, t *testing.T, kafka, topic string, ranges []client.Range) [][]string {
	t.Helper()
	out := make([][]string, len(ranges))
	from := map[int32]kgo.Offset{}
	left := 0
	for _, r := range ranges {
		if r.LogEnd > r.LogStart {
			from[r.Partition] = kgo.NewOffset().At(r.LogStart)
			left++
		}
	}
	if left == 0 {
		return out
	}
	k, err := kgo.NewClient(kgo.SeedBrokers(kafka), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for left > 0 {
		fs := k.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("read %s: %v", topic, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if r.Offset == ranges[r.Partition].LogEnd-1 {
				left--
			}
			if r.Attrs.IsControl() {
				return
			}
			for _, h := range r.Headers {
				if h.Key == "hr-time" && int64(binary.BigEndian.Uint64(h.Value))/1e6 != r.Timestamp.UnixMilli() {
					t.Errorf("%s/%d offset %d: the header and the timestamp are of different times", topic, r.Partition, r.Offset)
				}
			}
			out[r.Partition] = append(out[r.Partition], string(r.Key)+"="+string(r.Value))
		})
	}
	return out
}

func compareLines(t *testing.T, part string, want, got []string) {
	t.Helper()
	for i := range max(len(want), len(got)) {
		w, g := "nothing", "nothing"
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if w != g {
			t.Errorf("%s: row %d of %d, expected %d:\n  want %s\n  got  %s", part, i, len(got), len(want), w, g)
			return
		}
	}
	if len(want) == 0 {
		t.Errorf("%s: the rows exercise nothing", part)
	}
}
