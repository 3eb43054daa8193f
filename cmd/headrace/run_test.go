package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/server"
)

// A buffer is written by a command and read by the test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// await waits until a command has written something.
func (b *buffer) await(t *testing.T, what string) string {
	t.Helper()
	re := regexp.MustCompile(what)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		if s := b.String(); re.MatchString(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing like %q in %q", what, b.String())
		}
	}
}

// A running is a command that goes on until it is interrupted.
type running struct {
	out, err buffer
	stop     context.CancelFunc
	code     chan int
}

func launch(in io.Reader, args ...string) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, code: make(chan int, 1)}
	go func() { r.code <- run(ctx, args, in, &r.out, &r.err) }()
	return r
}

func (r *running) interrupt(t *testing.T) int {
	t.Helper()
	r.stop()
	select {
	case code := <-r.code:
		return code
	case <-time.After(time.Minute):
		t.Fatalf("goes on after an interrupt; it said %q", r.err.String())
		return 0
	}
}

func testServer(t *testing.T) []string {
	t.Helper()
	s, err := server.Start(server.Options{Data: t.TempDir(), KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", AutoCreateTopics: false})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return []string{"--server", s.KafkaAddr(), "--http", s.HTTPAddr()}
}

func TestInterruptEndsWhatWaitsAndKeepsWhatWasSent(t *testing.T) {
	at := testServer(t)
	if code := run(t.Context(), append([]string{"topic", "create", "live"}, at...), nil, io.Discard, io.Discard); code != 0 {
		t.Fatalf("create: exit code %d", code)
	}
	in, typed := io.Pipe() // a terminal: it stays open
	defer typed.Close()
	p := launch(in, append([]string{"produce", "live"}, at...)...)
	c := launch(nil, append([]string{"consume", "live", "--follow"}, at...)...)
	g := launch(nil, append([]string{"consume", "live", "--follow", "-g", "group"}, at...)...)
	if _, err := io.WriteString(typed, "first\nsecond\n"); err != nil {
		t.Fatal(err)
	}
	c.out.await(t, "first\nsecond\n")
	g.out.await(t, "first\nsecond\n")
	for name, r := range map[string]*running{"produce": p, "consume": c, "consume -g": g} {
		if code := r.interrupt(t); code != exitInterrupted {
			t.Errorf("%s: exit code %d, want %d; %s", name, code, exitInterrupted, r.err.String())
		}
		if s := r.err.String(); !strings.HasSuffix(s, "interrupted\n") {
			t.Errorf("%s: said %q", name, s)
		}
	}
	if s := p.err.String(); !strings.HasPrefix(s, "2 records acknowledged") {
		t.Errorf("produce: said %q", s)
	}
	again := launch(nil, append([]string{"consume", "live", "-g", "group"}, at...)...)
	if code := <-again.code; code != 0 || again.out.String() != "" {
		t.Errorf("the group reads what it had committed: exit code %d, %q", code, again.out.String())
	}
}

func TestServeStartsSaysWhereAndStops(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := launch(nil, "serve", "--data", data, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warn", "--pprof", "127.0.0.1:0")
	said := s.err.await(t, `try\n.*\n.*\n`)
	at := regexp.MustCompile(`topic create greetings (--server \S+ --http \S+)`).FindStringSubmatch(said)
	if at == nil {
		t.Fatalf("no line to try in %q", said)
	}
	var out buffer
	if code := run(t.Context(), append([]string{"status"}, strings.Fields(at[1])...), nil, &out, io.Discard); code != 0 || !strings.Contains(out.String(), "ready") {
		t.Errorf("status: exit code %d, %q", code, out.String())
	}
	if code := s.interrupt(t); code != exitOK {
		t.Errorf("serve ends with %d: %s", code, s.err.String())
	}
}

func TestServeExplainsWhyItDoesNotStart(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, c := range []struct {
		name, kafka, http string
		code              int
		says              string
	}{
		{"the address is taken", ln.Addr().String(), "127.0.0.1:0", exitFailed, "address already in use"},
		{"the address is no address", "nonsense", "127.0.0.1:0", exitUsage, "nonsense"},
		{"others could connect", "0.0.0.0:0", "127.0.0.1:0", exitDenied, "--insecure"},
		{"others could use HTTP", "127.0.0.1:0", "[::]:0", exitDenied, "--insecure"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said buffer
			code := run(t.Context(), []string{"serve", "--data", t.TempDir(), "--kafka", c.kafka, "--http", c.http, "--log-level", "error"}, nil, io.Discard, &said)
			if code != c.code || !strings.Contains(said.String(), c.says) || !strings.Contains(said.String(), "the server does not start") {
				t.Errorf("exit code %d, want %d; said %q, want %q", code, c.code, said.String(), c.says)
			}
		})
	}
}

// A filter that matches nothing is not a clean bill, and the JSON has the API's names.
func TestDebugLogSaysWhatIsNotThere(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := launch(nil, "serve", "--data", data, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warn")
	at := strings.Fields(regexp.MustCompile(`--server \S+ --http \S+`).FindString(s.err.await(t, `try\n.*\n.*\n`)))
	for _, c := range [][]string{{"topic", "create", "orders"}, {"produce", "orders"}} {
		if code := run(t.Context(), append(c, at...), strings.NewReader("one\n"), io.Discard, io.Discard); code != 0 {
			t.Fatalf("%v: exit code %d", c, code)
		}
	}
	if code := s.interrupt(t); code != exitOK {
		t.Fatalf("serve ends with %d: %s", code, s.err.String())
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--partition", "0"}, exitOK, ""},
		{[]string{"--topic", "orders", "--partition", "7"}, exitNotFound, "E2011 replication: unknown partition: 7 of topic orders, whose number of partitions is 1"},
		{[]string{"--partition", "7"}, exitNotFound, "E2011 "},
		{[]string{"--topic", "nobody"}, exitNotFound, "E1001 "},
	} {
		var out, said buffer
		code := run(t.Context(), append([]string{"debug", "log", "--data", data}, c.args...), nil, &out, &said)
		if code != c.code || !strings.HasPrefix(said.String(), c.says) || code != exitOK && out.String() != "" {
			t.Errorf("%v: exit code %d, said %q, %q", c.args, code, said.String(), out.String())
		}
	}
	var out buffer
	if code := run(t.Context(), []string{"debug", "log", "--data", data, "-o", "json"}, nil, &out, io.Discard); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	keys := regexp.MustCompile(`"([^"]+)":`).FindAllStringSubmatch(out.String(), -1)
	for _, k := range keys {
		if k[1] != strings.ToLower(k[1]) {
			t.Errorf("the key %q", k[1])
		}
	}
	if len(keys) < 50 || !strings.Contains(out.String(), `"cluster_id"`) {
		t.Errorf("%d keys in %s", len(keys), out.String())
	}
}

func TestGeneratedPagesAreWhatTheCodeSays(t *testing.T) {
	var said buffer
	if code := run(t.Context(), []string{"docs", "--check", "--dir", "../../docs"}, nil, io.Discard, &said); code != 0 {
		t.Error(said.String())
	}
}

func TestNumbersForPeople(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{count(0), "0"},
		{count(999), "999"},
		{count(-1234567), "-1,234,567"},
		{count(int64(-999)), "-999"},
		{size(1023), "1023 B"},
		{size(1536), "1.5 KiB"},
		{size(3 << 40), "3.0 TiB"},
		{plural(1, "view"), "1 view"},
		{plural(2000, "view"), "2,000 views"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

func TestProduceThatIsPartlyRefusedSaysHowMuch(t *testing.T) {
	at := testServer(t)
	if code := run(t.Context(), append([]string{"topic", "create", "small", "-c", "max.message.bytes=1024"}, at...), nil, io.Discard, io.Discard); code != 0 {
		t.Fatalf("create: exit code %d", code)
	}
	in, typed := io.Pipe()
	p := launch(in, append([]string{"produce", "small"}, at...)...)
	c := launch(nil, append([]string{"consume", "small", "--follow"}, at...)...)
	if _, err := io.WriteString(typed, "fits\n"); err != nil {
		t.Fatal(err)
	}
	c.out.await(t, "fits\n") // acknowledged, or about to be
	if _, err := io.WriteString(typed, strings.Repeat("x", 2000)+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := typed.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-p.code; code != exitInvalid {
		t.Errorf("exit code %d, want %d", code, exitInvalid)
	}
	if s := p.err.String(); !strings.Contains(s, "1 record acknowledged") || !strings.Contains(s, "E1013 a line is longer than a record of the topic small may be; the records before it, 1, were sent") {
		t.Errorf("said %q", s)
	}
	c.interrupt(t)
	if got := c.out.String(); got != "fits\n" {
		t.Errorf("the topic holds %q", got)
	}
}
