package leak

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type tests func() int

func (t tests) Run() int { return t() }

func TestWhatIsLeftBehindFails(t *testing.T) {
	var closers []func() error
	stop := make(chan struct{})
	for _, c := range []struct {
		name string
		run  tests
		want int
	}{
		{"nothing", func() int { return 0 }, 0},
		{"a failure", func() int { return 3 }, 3},
		{"a goroutine", func() int {
			go func(stop chan struct{}) { <-stop }(stop)
			return 0
		}, 1},
		{"a file", func() int {
			f, err := os.Create(filepath.Join(t.TempDir(), "left"))
			if err != nil {
				t.Fatal(err)
			}
			closers = append(closers, f.Close)
			return 0
		}, 1},
		{"a socket", func() int {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			closers = append(closers, ln.Close)
			return 0
		}, 1},
		{"a goroutine that ends", func() int {
			go time.Sleep(20 * time.Millisecond)
			return 0
		}, 0},
	} {
		if got := Checked(c.run).Run(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if strings.HasPrefix(c.name, "a goroutine") {
			close(stop)
			stop = make(chan struct{})
		}
		for _, f := range closers {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
		closers = nil
	}
}
