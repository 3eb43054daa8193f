// Package leak finds what the tests of a package leave behind when the last of them has ended: goroutines, files and
// sockets. A package whose tests start servers says
//
//	func TestMain(m *testing.M) { leak.Main(m) }
package leak

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"go.uber.org/goleak"
)

// Tests is what testing.M is.
type Tests interface{ Run() int }

// Main runs the tests and ends the process. What they left behind makes it fail.
func Main(m Tests) { os.Exit(Checked(m).Run()) }

// Checked is m with the check after it, for those who run it themselves.
func Checked(m Tests) Tests { return checked{m} }

type checked struct{ m Tests }

// patience is how long what ends by itself may take to do so.
const patience = 2 * time.Second

func (c checked) Run() int {
	before := descriptors()
	code := c.m.Run()
	if code != 0 {
		return code // a failed test may leave anything
	}
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintf(os.Stderr, "leak: the tests left goroutines behind: %v\n", err)
		return 1
	}
	if left := opened(before, patience); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "leak: the tests left descriptors open:\n  %s\n", strings.Join(left, "\n  "))
		return 1
	}
	return 0
}

// opened lists the descriptors that are open now and were not before, once that has had time to become none.
func opened(before map[string]bool, patience time.Duration) (left []string) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for d := range descriptors() {
			if !before[d] {
				left = append(left, d)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// descriptors are the open descriptors of this process with what they lead to; none where the system does not tell. What
// Go's runtime opens once for itself is left out.
func descriptors() map[string]bool {
	out := map[string]bool{}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return out
	}
	for _, n := range names {
		to, err := os.Readlink("/proc/self/fd/" + n.Name())
		switch {
		case err != nil: // the one that read the directory
		case strings.HasPrefix(to, "anon_inode:"), strings.HasPrefix(to, "/dev/"), strings.HasPrefix(to, "/sys/"):
		default:
			out[n.Name()+" "+to] = true
		}
	}
	return out
}
