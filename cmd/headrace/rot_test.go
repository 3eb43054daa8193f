package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/server"
)

// flipByte changes one byte of a file.
func flipByte(t *testing.T, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func onlyMatch(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v %v", pattern, names, err)
	}
	return names[0]
}

func serveDir(t *testing.T, dir string) (at []string, stop func()) {
	t.Helper()
	s, err := server.Start(server.Options{Data: dir, KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--server", s.KafkaAddr(), "--http", s.HTTPAddr()}, func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Every way to read a topic ends at rot with its code and place, behind the records before it; the server says where it
// found rot and stays ready; a repair keeps the old file.
func TestRotIsNamedByWhateverReadsIt(t *testing.T) {
	dir := t.TempDir()
	command := func(in string, args ...string) (code int, out, said string) {
		t.Helper()
		var o, e buffer
		code = run(t.Context(), args, strings.NewReader(in), &o, &e)
		return code, o.String(), e.String()
	}
	at, stop := serveDir(t, dir)
	for _, args := range [][]string{{"topic", "create", "plain"}, {"produce", "plain"}, {"produce", "plain"}, {"produce", "plain"}} {
		if code, _, said := command("a\nb\n", append(args, at...)...); code != exitOK {
			t.Fatalf("%v: %d %s", args, code, said)
		}
	}
	stop()
	mixed := onlyMatch(t, filepath.Join(dir, "data-0", "store", "mixed", "*.log"))
	sound, err := os.ReadFile(mixed)
	if err != nil {
		t.Fatal(err)
	}
	flipByte(t, mixed, int64(len(sound))/2) // the second of three batches alike
	at, stop = serveDir(t, dir)
	for _, c := range []struct {
		args []string
		code int
		out  string
		says string
	}{
		{[]string{"consume", "plain"}, exitRotten, "a\nb\n", "E1036 plain[0] at offset 2 "},
		{[]string{"consume", "plain", "-n", "2"}, exitOK, "a\nb\n", ""},
		{[]string{"consume", "plain", "-n", "3"}, exitRotten, "a\nb\n", "E1036 plain[0] at offset 2 "},
		{[]string{"consume", "plain", "-g", "g"}, exitRotten, "a\nb\n", "E1036 plain[0] at offset 2 "},
		{[]string{"consume", "plain", "-g", "g"}, exitRotten, "", "E1036 plain[0] at offset 2 "},
		{[]string{"consume", "plain", "--follow"}, exitRotten, "a\nb\n", "E1036 plain[0] at offset 2 "},
		{[]string{"consume", "plain", "-O", "3"}, exitRotten, "", "E1036 plain[0] at offset 3 "},
		{[]string{"consume", "plain", "-O", "-3"}, exitRotten, "", "E1036 plain[0] at offset 3 "},
		{[]string{"consume", "plain", "-O", "4"}, exitOK, "a\nb\n", ""},
		{[]string{"consume", "plain", "-O", "-1"}, exitOK, "b\n", ""},
		{[]string{"status"}, exitOK, "", ""},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, out, said := command("", append(c.args, at...)...)
			if code != c.code || !strings.HasPrefix(out, c.out) || c.args[0] == "consume" && out != c.out || !strings.Contains(said, c.says) {
				t.Errorf("exit code %d, %q, said %q", code, out, said)
			}
			if c.code == exitRotten && !strings.Contains(said, "headrace debug log") {
				t.Errorf("no next step in %q", said)
			}
			if c.args[0] == "status" && (!strings.Contains(out, "server   ready") || !strings.Contains(out, "E1036 plain[0] cannot be read at offset 2: data-0/store/mixed/"+filepath.Base(mixed))) {
				t.Errorf("status says %q", out)
			}
		})
	}
	for path, says := range map[string]string{
		"/readyz?verbose": `"notes":["E1036 plain[0] cannot be read at offset 2`, "/metrics": "headrace_store_rotten_places 1\n",
		"/api/v1/topics/plain/records?partition=0&offset=2": `"code":"E1036"`,
	} {
		resp, err := http.Get("http://" + at[3] + path) //nolint:noctx // a loopback request
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(b), says) {
			t.Errorf("%s: %d %v %s", path, resp.StatusCode, err, b)
		}
	}
	stop()
	rotten, err := os.ReadFile(mixed)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, said := command("", "debug", "log", "--data", dir, "--repair"); code != exitOK || !strings.Contains(said, filepath.Base(mixed)+".bad") {
		t.Errorf("repair: %d %s", code, said)
	}
	at, stop = serveDir(t, dir)
	if code, out, said := command("", append([]string{"consume", "plain"}, at...)...); code != exitOK || out != "a\nb\na\nb\na\nb\n" {
		t.Errorf("after the repair: %d %q %s", code, out, said)
	}
	stop()
	if kept, err := os.ReadFile(mixed + ".bad"); err != nil || string(kept) != string(rotten) {
		t.Errorf("the old file: %v, %d bytes instead of %d", err, len(kept), len(rotten))
	}
}

// Each cause of a failed start has its code, its exit code and its next step, and no stop is logged for what never started.
func TestAFailedStartNamesItsCause(t *testing.T) {
	used := t.TempDir()
	at, stop := serveDir(t, used)
	if code := run(t.Context(), append([]string{"topic", "create", "x"}, at...), nil, io.Discard, io.Discard); code != exitOK {
		t.Fatal(code)
	}
	running := t.TempDir()
	_, stopRunning := serveDir(t, running)
	defer stopRunning()
	stop()
	damaged := func(path string, at int64) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(used)); err != nil {
			t.Fatal(err)
		}
		flipByte(t, onlyMatch(t, filepath.Join(dir, path)), at)
		return dir
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, data, kafka string
		code              int
		says, fix         string
	}{
		{"in use", running, "127.0.0.1:0", exitConflict, "E2012", "Stop the server"},
		{"log rotten", damaged("data-0/wal/*1.wal", 4100), "127.0.0.1:0", exitRotten, "E2014", "--repair"},
		{"metadata log rotten", damaged("meta/wal/*1.wal", 4100), "127.0.0.1:0", exitRotten, "E2014", "--repair"},
		{"rows rotten", damaged("data-0/store/kv/MANIFEST-*", 20), "127.0.0.1:0", exitRotten, "E2014", "--repair"},
		{"identity", damaged("identity", 20), "127.0.0.1:0", exitRotten, "E2016", "Restore a backup"},
		{"a file", file, "127.0.0.1:0", exitFailed, "E2003", "--data"},
		{"unknown host", t.TempDir(), "nosuchhost.invalid:1", exitFailed, "E2020", "--kafka"},
		{"not an address", t.TempDir(), "nonsense", exitUsage, "E2001", "--kafka"},
		{"for others", t.TempDir(), "0.0.0.0:0", exitDenied, "E2019", "--insecure"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it could start
			defer cancel()
			var said buffer
			code := run(ctx, []string{"serve", "--data", c.data, "--kafka", c.kafka, "--http", "127.0.0.1:0"}, nil, io.Discard, &said)
			text := said.String()
			if code != c.code || !strings.Contains(text, c.says+" the server does not start: ") || !strings.Contains(text[strings.Index(text, "fix: "):], c.fix) {
				t.Errorf("exit code %d, said %q", code, text)
			}
			if strings.Contains(text, "server.stopped") {
				t.Errorf("it logs a stop: %q", text)
			}
		})
	}
}

// What the system says has its own code too; root, who may run the tests, is let everywhere, so the errors are made here.
func TestAFailedStartByWhatTheSystemSays(t *testing.T) {
	for _, c := range []struct {
		err  error
		code string
		says string
	}{
		{&os.PathError{Op: "open", Path: "d/LOCK", Err: syscall.EACCES}, "E2003", "user that runs the server"},
		{&os.PathError{Op: "open", Path: "d/LOCK", Err: syscall.EROFS}, "E2003", "--data"},
		{&os.PathError{Op: "write", Path: "d/x", Err: syscall.ENOSPC}, "E2018", "Free some space"},
		{&server.ListenError{Addr: "127.0.0.1:1", Err: syscall.EADDRINUSE}, "E2020", "--http"},
		{errors.New("something else"), "E2006", "log"},
	} {
		if f := startFailure(fmt.Errorf("server: open the log: %w", c.err), "d"); f.code != c.code || !strings.Contains(f.fix, c.says) {
			t.Errorf("%v: %s, fix %q", c.err, f.code, f.fix)
		}
	}
}

func TestStatusOfAServerThatIsNotReadyFails(t *testing.T) {
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"cluster_id":"c","node_id":1,"ready":false,"reasons":["log: shard data-0: no leader"],"notes":[]}`)
	}))
	defer fake.Close()
	for _, form := range []string{"table", "json"} {
		var out, said buffer
		code := run(t.Context(), []string{"status", "-o", form, "--http", strings.TrimPrefix(fake.URL, "http://")}, nil, &out, &said)
		if code != exitUnreachable || !strings.Contains(out.String(), "no leader") || !strings.Contains(said.String(), "E1032") {
			t.Errorf("%s: exit code %d, %q, said %q", form, code, out.String(), said.String())
		}
	}
}
