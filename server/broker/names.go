package broker

import (
	"crypto/sha256"
	"strings"
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
		return Errorf(InvalidTopicName, "the topic name %q has the character %q", clip(name), clip(name[i:i+1]))
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
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strings.ToValidUTF8(s, "?")
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
