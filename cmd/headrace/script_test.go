package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/leak"
	"github.com/headrace/headrace/server"
)

func TestMain(m *testing.M) {
	testscript.Main(leak.Checked(m), map[string]func(){"headrace": main})
}

// TestScripts runs testdata/script: each story has a server of its own, in this process and on free
// ports, that the command finds through its environment.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *golden.Update,
		Setup: func(e *testscript.Env) error {
			s, err := server.Start(server.Options{
				Data: filepath.Join(e.WorkDir, ".server"), KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Version: "test",
			})
			if err != nil {
				return err
			}
			e.Defer(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			e.Setenv("HEADRACE_SERVER", s.KafkaAddr())
			e.Setenv("HEADRACE_HTTP", s.HTTPAddr())
			e.Setenv("EXAMPLES", examples)
			e.Setenv("GORACE", "atexit_sleep_ms=0") // else the race detector waits a second at the end of each command
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": exitCode, "million": million},
	})
}

// million is `million FILE`: a line of two million bytes.
func million(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: million FILE")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), append(bytes.Repeat([]byte("x"), 2_000_000), '\n'), 0o644))
}

// exitCode is `code N command args...`: the command ends with exit code N.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command args...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d; %s", got, want, ts.ReadFile("stderr"))
	}
}
