package main

import (
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/server"
)

func TestAStallIsSaidOnceAndItsEndToo(t *testing.T) {
	began := time.Unix(1_000_000_000, 0)
	w := stall{since: began}
	for i, c := range []struct {
		after               time.Duration // since the start
		sent, acked, failed int64
		want                stallChange
	}{
		{0, 0, 0, 0, stallGoesOn},
		{10 * patience, 0, 0, 0, stallGoesOn}, // waiting for input is no stall
		{10 * patience, 5, 0, 0, stallGoesOn},
		{11*patience - 1, 5, 0, 0, stallGoesOn},
		{11 * patience, 5, 0, 0, stallBegins},
		{12 * patience, 9, 0, 0, stallGoesOn}, // said already
		{13 * patience, 9, 3, 0, stallEnds},
		{13*patience + 1, 9, 4, 0, stallGoesOn},
		{14*patience + 1, 9, 4, 0, stallBegins},
		{15 * patience, 9, 4, 5, stallGoesOn}, // given up: the end says so
		{99 * patience, 9, 4, 5, stallGoesOn},
	} {
		got := w.step(began.Add(c.after), client.PublishStats{Sent: c.sent, Acknowledged: c.acked, Failed: c.failed})
		if got != c.want {
			t.Errorf("step %d: %d, want %d", i, got, c.want)
		}
	}
}

// While the disk is full produce says so with code and reason, goes on with space, and gives up at its bound.
func TestProduceSaysWhatItWaitsFor(t *testing.T) {
	var full atomic.Bool
	fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		switch op {
		case fsx.OpCreate, fsx.OpPreallocate, fsx.OpLink, fsx.OpMkdir:
		case fsx.OpWrite:
			if strings.Contains(name, "/wal/") {
				return nil
			}
		default:
			return nil
		}
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	})
	o := server.Options{Data: "data", FS: fs, KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"}
	o.Node.Data.WALSegmentBytes = 1 << 20
	s, err := server.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	at := []string{"--server", s.KafkaAddr(), "--http", s.HTTPAddr()}
	if code := run(t.Context(), append([]string{"topic", "create", "orders"}, at...), nil, io.Discard, io.Discard); code != 0 {
		t.Fatalf("create: exit code %d", code)
	}
	full.Store(true)
	// More than the log's segments hold, in lines of a tenth of one.
	lines := strings.Repeat(strings.Repeat("x", 100_000)+"\n", 60)
	short := launch(strings.NewReader(lines), append([]string{"produce", "orders", "--timeout", "3s"}, at...)...)
	short.err.await(t, `(?m)^waiting: E1035 .*no space left on device.*for 3s at most`)
	if code := <-short.code; code != exitPartly && code != exitUnreachable {
		t.Errorf("exit code %d; %s", code, short.err.String())
	}
	if s := short.err.String(); !strings.Contains(s, "\nE1035 ") || !strings.Contains(s, "no space left on device") || !strings.Contains(s, "; given up after --timeout 3s\n") || !strings.Contains(s, "\n  fix: Make room") {
		t.Errorf("said %q", s)
	}

	long := launch(strings.NewReader(lines), append([]string{"produce", "orders"}, at...)...)
	long.err.await(t, `(?m)^waiting: E1035 `)
	full.Store(false)
	long.err.await(t, `(?m)^records are acknowledged again$`)
	if code := <-long.code; code != exitOK || !strings.Contains(long.err.String(), "\n60 records acknowledged") {
		t.Errorf("exit code %d; %s", code, long.err.String())
	}
}

func TestServeWithoutHTTPSaysSo(t *testing.T) {
	s := launch(nil, "serve", "--data", t.TempDir(), "--kafka", "127.0.0.1:0", "--http", "-", "--log-level", "warn")
	said := s.err.await(t, `try\n.*kcat.*\n`)
	if !strings.Contains(said, "\n  http   none\n") || strings.Contains(said, "--http") || strings.Contains(said, "http://") {
		t.Errorf("said %q", said)
	}
	if code := s.interrupt(t); code != exitOK {
		t.Errorf("serve ends with %d: %s", code, s.err.String())
	}
}
