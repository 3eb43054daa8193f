package segment

import (
	"fmt"
	"strconv"
	"strings"
)

// LogName is the name of the log file whose first offset is base.
func LogName(base int64) string { return fmt.Sprintf("%020d.log", base) }

// IndexName is the name of the index file of that log file.
func IndexName(base int64) string { return fmt.Sprintf("%020d.index", base) }

// ParseName takes a log or index file name apart.
func ParseName(name string) (base int64, index, ok bool) {
	digits, ext, _ := strings.Cut(name, ".")
	if len(digits) != 20 || (ext != "log" && ext != "index") {
		return 0, false, false
	}
	if strings.Trim(digits, "0123456789") != "" {
		return 0, false, false
	}
	base, err := strconv.ParseInt(digits, 10, 64)
	return base, ext == "index", err == nil
}
