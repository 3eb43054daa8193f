package segment

import (
	"fmt"
	"strconv"
	"strings"
)

// LogName is the name of the log file whose first offset is base. The generation is 0 for a file as it was first
// written, and counts how often its content was replaced.
func LogName(base int64, generation uint32) string { return name(base, generation) + ".log" }

// IndexName is the name of the index file of that log file.
func IndexName(base int64, generation uint32) string { return name(base, generation) + ".index" }

func name(base int64, generation uint32) string {
	if generation == 0 {
		return fmt.Sprintf("%020d", base)
	}
	return fmt.Sprintf("%020d-%d", base, generation)
}

// ParseName takes a log or index file name apart.
func ParseName(name string) (base int64, generation uint32, index, ok bool) {
	stem, ext, _ := strings.Cut(name, ".")
	digits, again, replaced := strings.Cut(stem, "-")
	if len(digits) != 20 || (ext != "log" && ext != "index") || strings.Trim(digits+again, "0123456789") != "" {
		return 0, 0, false, false
	}
	base, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, 0, false, false
	}
	if replaced {
		g, err := strconv.ParseUint(again, 10, 32)
		if err != nil || g == 0 || again[0] == '0' {
			return 0, 0, false, false
		}
		generation = uint32(g)
	}
	return base, generation, ext == "index", true
}
