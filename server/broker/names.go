package broker

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxTopicName is the longest topic name.
const MaxTopicName = 200

// CheckTopicName refuses what cannot be a topic's name. Names never become paths; the rule keeps them
// printable, and usable in the names of side topics.
func CheckTopicName(name string) *Error {
	switch {
	case name == "":
		return Errorf(InvalidTopicName, "the topic name is empty")
	case len(name) > MaxTopicName:
		return Errorf(InvalidTopicName, "the topic name has %d bytes", len(name))
	case name == "." || name == "..":
		return Errorf(InvalidTopicName, "the topic name is %q", name)
	}
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' {
			continue
		}
		if r, n := utf8.DecodeRuneInString(name[i:]); r != utf8.RuneError || n > 1 {
			return Errorf(InvalidTopicName, "the topic name %q has the character %q", clip(name), name[i:i+n])
		}
		return Errorf(InvalidTopicName, "the topic name %q has the byte 0x%02x, which is no UTF-8", clip(name), c)
	}
	return nil
}

// viewID is the topic id that clients see of a view: a function of its name, as views have no row of
// their own in the catalogue of topics. It has the form of a name-based UUID.
func viewID(name string) [16]byte {
	sum := sha256.Sum256([]byte("headrace view " + name))
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80
	return id
}

// clip makes what came from outside fit for a message.
func clip(s string) string {
	if n := 80; len(s) > n {
		for !utf8.RuneStart(s[n]) && n > 80-utf8.UTFMax {
			n--
		}
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// partitionsOf says how many partitions a topic has.
func partitionsOf(t *Topic) string {
	if t.Partitions == 1 {
		return "1 partition"
	}
	return fmt.Sprintf("%d partitions", t.Partitions)
}

func splitList(s string) []string {
	var out []string
	for _, p := range strings.Split(s, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}
