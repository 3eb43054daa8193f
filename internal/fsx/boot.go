package fsx

import (
	"os"
	"strings"
)

// BootID names the present boot of the machine: it changes when the machine restarts and not when a process does.
// "" where the system does not say.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
