package replication

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// openMark is the file that exists while a node has its directory open, and after it crashed.
const openMark = "open"

// An OpenMark says who has a data directory open, or had it when the process or the machine died. On disk: JSON, a line
// break, and the CRC-32C of the JSON as 4 bytes.
type OpenMark struct {
	Epoch  int64     `json:"epoch"`   // node epoch, 0 before the start was registered
	BootID string    `json:"boot_id"` // of the machine, "" if the system does not say
	Since  time.Time `json:"since"`
	PID    int       `json:"pid"` // of the process
}

// A StartKind says how the run before a start ended.
type StartKind string

// The kinds.
const (
	StartFirst   StartKind = "first"   // there was none
	StartClean   StartKind = "clean"   // in order
	StartCrash   StartKind = "crash"   // the process died, the machine did not: the system has kept what was written
	StartPower   StartKind = "power"   // the machine went down too: only what was synced is there
	StartUnknown StartKind = "unknown" // not in order; the mark or the system does not say which. Treated as power
)

// StartKinds are all kinds, for metrics.
var StartKinds = []StartKind{StartFirst, StartClean, StartCrash, StartPower, StartUnknown}

func (k StartKind) unclean() bool { return k != StartFirst && k != StartClean }

// A Startup is how the run before a start ended, and its mark if it did not end in order.
type Startup struct {
	Kind StartKind
	Last OpenMark // zero if the kind is first or clean, or the mark is unreadable
}

func (s Startup) report(log *slog.Logger) {
	attrs := []any{"start", string(s.Kind)}
	if s.Last.Epoch > 0 {
		attrs = append(attrs, "epoch", s.Last.Epoch, "since", s.Last.Since)
	}
	switch s.Kind {
	case StartFirst, StartClean:
		log.Info("node.start", attrs...)
	case StartCrash:
		log.Warn("node.start: the last run did not stop cleanly; its log is replayed", attrs...)
	case StartPower:
		log.Warn("node.start: the machine went down under the last run; its log is replayed and what was written since the last checkpoint is verified", attrs...)
	case StartUnknown:
		log.Warn("node.start: the last run did not stop cleanly, and its mark does not say how; its log is replayed and what was written since the last checkpoint is verified", attrs...)
	}
}

// judgeStart says how a run ended that has left the mark b.
func judgeStart(b []byte, bootID string) Startup {
	last, err := decodeMark(b)
	switch {
	case err != nil || last.BootID == "" || bootID == "":
		return Startup{Kind: StartUnknown, Last: last}
	case last.BootID == bootID:
		return Startup{Kind: StartCrash, Last: last}
	}
	return Startup{Kind: StartPower, Last: last}
}

func (m OpenMark) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("replication: encode the open mark: %w", err)
	}
	return binary.BigEndian.AppendUint32(append(b, '\n'), crc32.Checksum(b, castagnoli)), nil
}

func decodeMark(b []byte) (OpenMark, error) {
	var m OpenMark
	n := len(b) - 5
	if n < 2 || b[n] != '\n' || crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n+1:]) {
		return m, errors.New("replication: the open mark is damaged")
	}
	if err := json.NewDecoder(bytes.NewReader(b[:n])).Decode(&m); err != nil {
		return OpenMark{}, fmt.Errorf("replication: the open mark: %w", err)
	}
	return m, nil
}

func (m OpenMark) save(fs fsx.FS, dir string) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	return replaceFile(fs, dir, openMark, b)
}

// markOpen leaves the durable mark of an open directory, and says how the run before has ended: a mark that is there
// already was left by one that did not stop. It stays until the start is registered: a full disk need not take another
// one, and a start that fails early leaves the account of the last run as it is.
func markOpen(fs fsx.FS, dir string, mark OpenMark) (Startup, error) {
	b, err := readFile(fs, fs.PathJoin(dir, openMark))
	switch {
	case err == nil:
		return judgeStart(b, mark.BootID), nil
	case !errors.Is(err, os.ErrNotExist):
		return Startup{Kind: StartUnknown}, nil // it is there
	}
	kind := StartClean
	if _, err := fs.Stat(fs.PathJoin(dir, metaDir)); errors.Is(err, os.ErrNotExist) {
		kind = StartFirst
	}
	return Startup{Kind: kind}, mark.save(fs, dir)
}

// clearOpen removes the mark after a clean stop.
func clearOpen(fs fsx.FS, dir string) error {
	if err := fs.Remove(fs.PathJoin(dir, openMark)); err != nil {
		return fmt.Errorf("replication: remove the open mark: %w", err)
	}
	if err := fs.SyncDir(dir); err != nil {
		return fmt.Errorf("replication: sync %s: %w", dir, err)
	}
	return nil
}
