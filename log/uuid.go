package log

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// parseUUID reads the form with dashes.
func parseUUID(b []byte) (id [16]byte, err error) {
	s := string(b)
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, fmt.Errorf("log: %.40q is no id", s)
	}
	n, err := hex.Decode(id[:], []byte(strings.ReplaceAll(s, "-", "")))
	if err != nil || n != len(id) {
		return id, fmt.Errorf("log: %.40q is no id", s)
	}
	return id, nil
}

// ParseTopicID reads what String of a TopicID gives.
func ParseTopicID(s string) (TopicID, error) { return parseUUID([]byte(s)) }

// ParseTaskID reads what String of a TaskID gives.
func ParseTaskID(s string) (TaskID, error) { return parseUUID([]byte(s)) }

// MarshalText is String.
func (t TopicID) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is ParseTopicID.
func (t *TopicID) UnmarshalText(b []byte) (err error) {
	*t, err = parseUUID(b)
	return err
}

// MarshalText is String.
func (t TaskID) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is ParseTaskID.
func (t *TaskID) UnmarshalText(b []byte) (err error) {
	*t, err = parseUUID(b)
	return err
}
