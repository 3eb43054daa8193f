package kafka_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/log/record"
)

// kcat runs Debian's kcat, whose librdkafka 2.0.2 is old enough to find what newer clients forgive.
func kcat(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("kcat is not installed")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("kcat %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String()
}

func TestKcat(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 3, nil)
	b := []string{"-b", f.addr}
	with := func(args ...string) []string { return append(b[:2:2], args...) }

	if out := kcat(t, "", with("-L")...); !strings.Contains(out, `topic "t" with 3 partitions`) || !strings.Contains(out, "broker 1 at "+f.addr+" (controller)") {
		t.Errorf("list: %s", out)
	}
	// Every codec is used as asked: librdkafka enables them only when Produce 0 is advertised.
	var want []string
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		var in strings.Builder
		for i := range 200 {
			fmt.Fprintf(&in, "%s:%s-%d\n", codec, strings.Repeat(codec, 20), i)
			want = append(want, fmt.Sprintf("%s:%s-%d", codec, strings.Repeat(codec, 20), i))
		}
		kcat(t, in.String(), with("-P", "-t", "t", "-p", "1", "-K:", "-z", codec, "-X", "enable.idempotence=true", "-X", "acks=all")...)
	}
	out := kcat(t, "", with("-C", "-t", "t", "-p", "1", "-K:", "-o", "beginning", "-e", "-q")...)
	if got := strings.Split(strings.TrimSpace(out), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%d lines came back of %d", len(got), len(want))
	}
	seen := map[record.Codec]bool{}
	for from := int64(0); from < 1000; {
		rest := f.raw(t).fetch(ask("t", 0, 1, 0, from))[1].RecordBatches
		for len(rest) > 0 {
			batch, next, err := record.Next(rest)
			if err != nil {
				t.Fatal(err)
			}
			h, _ := record.ParseHeader(batch)
			seen[h.Codec()] = true
			rest, from = next, h.LastOffset()+1
		}
	}
	if len(seen) != 5 {
		t.Errorf("codecs in the log: %v", seen)
	}
	// By time and from the end.
	for ask, want := range map[string]string{"t:1:-1": "t [1] offset 1000", "t:1:-2": "t [1] offset 0", "t:1:1": "t [1] offset 0"} {
		if out := kcat(t, "", with("-Q", "-t", ask)...); strings.TrimSpace(out) != want {
			t.Errorf("query %s: %s, want %s", ask, out, want)
		}
	}
	if out := kcat(t, "", with("-C", "-t", "t", "-p", "1", "-o", "-2", "-e", "-q", "-f", "%o\n")...); out != "998\n999\n" {
		t.Errorf("the last two: %q", out)
	}
	// A group reads everything and commits; a second run reads nothing.
	g := with("-G", "kcats", "-e", "-q", "-X", "auto.offset.reset=earliest", "t")
	if n := strings.Count(kcat(t, "", g...), "\n"); n != 1000 {
		t.Errorf("the group read %d", n)
	}
	if n := strings.Count(kcat(t, "", g...), "\n"); n != 0 {
		t.Errorf("the group read %d again", n)
	}
	if p := f.logs.String(); strings.Contains(p, "level=ERROR") || strings.Contains(p, "kafka.panic") {
		t.Errorf("log: %s", p)
	}
}
