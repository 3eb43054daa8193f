package kafka_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKafkajs runs testdata/kafkajs/test.js. `make test-clients` installs kafkajs in a directory of its own
// and names it in HEADRACE_KAFKAJS; without that the test is skipped.
func TestKafkajs(t *testing.T) {
	dir := os.Getenv("HEADRACE_KAFKAJS")
	if dir == "" {
		t.Skip("HEADRACE_KAFKAJS does not name a directory with kafkajs; see make test-clients")
	}
	script, err := filepath.Abs("testdata/kafkajs/test.js")
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, frontOptions{})
	cmd := exec.CommandContext(t.Context(), "node", script, f.addr)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING=1")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "kafkajs: ok") {
		t.Fatalf("%v\n%s\nserver log:\n%s", err, out, f.logs)
	}
}
