package raftlog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
)

// ErrManifest marks a checkpoint manifest that is damaged.
var ErrManifest = errors.New("raftlog: damaged checkpoint manifest")

const (
	manifestMagic   = "HRCHKPT1"
	manifestSuffix  = ".manifest"
	pendingSuffix   = ".pending"
	temporarySuffix = ".tmp"

	// maxManifestBytes bounds what a manifest may carry; it names files and holds none of their bytes.
	maxManifestBytes = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Manifest is one checkpoint as raft sees it: all entries up to Index are in the store, durably. On disk:
//
//	"HRCHKPT1" | uint32 length, little-endian | JSON | uint32 CRC-32C of everything before
type Manifest struct {
	Index              uint64 `json:"index"`
	Term               uint64 `json:"term"`
	ConfigurationIndex uint64 `json:"configuration_index"`
	Configuration      []byte `json:"configuration"` // raft's own encoding

	// Machine is the index that the state machine had applied when Index was captured: raft's own entries
	// do not reach it, so it may be lower. A store below it is older than its checkpoint.
	Machine uint64 `json:"machine"`

	// Data is what the state machine wrote of its checkpoint.
	Data []byte `json:"data,omitempty"`
}

func (m Manifest) encode() ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("raftlog: encode manifest: %w", err)
	}
	b := append([]byte(manifestMagic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[len(manifestMagic):], uint32(len(body)))
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// DecodeManifest reads the bytes of a manifest file.
func DecodeManifest(b []byte) (Manifest, error) {
	const head = len(manifestMagic) + 4
	if len(b) < head+4 || string(b[:len(manifestMagic)]) != manifestMagic {
		return Manifest{}, fmt.Errorf("%w: no header in %d bytes", ErrManifest, len(b))
	}
	n := int64(binary.LittleEndian.Uint32(b[len(manifestMagic):]))
	if n != int64(len(b)-head-4) {
		return Manifest{}, fmt.Errorf("%w: length %d in a file of %d bytes", ErrManifest, n, len(b))
	}
	sum := binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(b[:len(b)-4], castagnoli) != sum {
		return Manifest{}, fmt.Errorf("%w: checksum", ErrManifest)
	}
	var m Manifest
	if err := json.Unmarshal(b[head:len(b)-4], &m); err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return m, nil
}

// Snapshots is a raft.SnapshotStore whose snapshots are checkpoint manifests. The newest one is kept.
//
// A manifest that our own state machine persisted is listed once it is durable. One that came from a peer is
// pending: raft would trust a listed one at the next start, before the store holds what it names, so List
// leaves it out until Promote.
//
// Methods may be called from any goroutine.
type Snapshots struct {
	fs  fsx.FS
	dir string

	mu struct {
		sync.Mutex
		newest *Manifest
		name   string // of the newest
	}
}

var _ raft.SnapshotStore = (*Snapshots)(nil)

// OpenSnapshots reads the manifests under dir and creates dir when it is missing. Left-over temporary and
// pending files are removed: a received snapshot that was not switched to is fetched again.
func OpenSnapshots(fs fsx.FS, dir string) (*Snapshots, error) {
	s := &Snapshots{fs: fs, dir: dir}
	if err := fsx.MkdirAll(fs, dir); err != nil {
		return nil, fmt.Errorf("raftlog: %w", err)
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("raftlog: list %s: %w", dir, err)
	}
	slices.Sort(names) // by index and term: both are fixed-width
	for i := len(names) - 1; i >= 0; i-- {
		name := names[i]
		switch {
		case strings.HasSuffix(name, temporarySuffix), strings.HasSuffix(name, pendingSuffix):
			if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
				return nil, fmt.Errorf("raftlog: remove %s: %w", name, err)
			}
		case !strings.HasSuffix(name, manifestSuffix):
		case s.mu.newest == nil:
			m, err := s.read(name)
			if err != nil {
				return nil, fmt.Errorf("raftlog: manifest %s: %w", name, err)
			}
			s.mu.newest, s.mu.name = &m, name
		default:
			if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
				return nil, fmt.Errorf("raftlog: remove %s: %w", name, err)
			}
		}
	}
	return s, nil
}

func (s *Snapshots) read(name string) (Manifest, error) {
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, name))
	if err != nil {
		return Manifest{}, err
	}
	defer f.Close() //nolint:errcheck // read only
	st, err := f.Stat()
	if err != nil {
		return Manifest{}, err
	}
	if st.Size() > maxManifestBytes {
		return Manifest{}, fmt.Errorf("%w: %d bytes", ErrManifest, st.Size())
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return Manifest{}, err
	}
	return DecodeManifest(b)
}

// Newest returns the newest listed manifest.
func (s *Snapshots) Newest() (Manifest, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.newest == nil {
		return Manifest{}, false
	}
	return *s.mu.newest, true
}

func (m *Manifest) meta(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: 1, ID: id, Index: m.Index, Term: m.Term,
		Configuration:      raft.DecodeConfiguration(m.Configuration),
		ConfigurationIndex: m.ConfigurationIndex,
		Size:               int64(len(m.Data)),
	}
}

// List returns the listed snapshot, if there is one.
func (s *Snapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.newest == nil {
		return nil, nil
	}
	return []*raft.SnapshotMeta{s.mu.newest.meta(s.mu.name)}, nil
}

// Open returns what the state machine wrote of a listed or pending snapshot.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if strings.ContainsAny(id, `/\`) {
		return nil, nil, fmt.Errorf("raftlog: snapshot id %q", id)
	}
	m, err := s.read(id)
	if err != nil {
		return nil, nil, fmt.Errorf("raftlog: open snapshot %s: %w", id, err)
	}
	return m.meta(id), io.NopCloser(bytes.NewReader(m.Data)), nil
}

// Create begins a snapshot. Nothing is on disk before Close of the sink.
func (s *Snapshots) Create(_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return &Sink{s: s, m: Manifest{
		Index: index, Term: term,
		Configuration: raft.EncodeConfiguration(c), ConfigurationIndex: configurationIndex,
	}}, nil
}

// Promote lists a pending snapshot: its manifest is renamed, durably. The caller's store must already hold
// what it names.
func (s *Snapshots) Promote(id string) error {
	name, ok := strings.CutSuffix(id, pendingSuffix)
	if !ok {
		return nil
	}
	m, err := s.read(id)
	if err != nil {
		return fmt.Errorf("raftlog: promote %s: %w", id, err)
	}
	name += manifestSuffix
	if err := s.rename(id, name); err != nil {
		return err
	}
	s.list(m, name)
	return nil
}

func (s *Snapshots) rename(from, to string) error {
	if err := s.fs.Rename(s.fs.PathJoin(s.dir, from), s.fs.PathJoin(s.dir, to)); err != nil {
		return fmt.Errorf("raftlog: rename %s: %w", from, err)
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return fmt.Errorf("raftlog: sync %s: %w", s.dir, err)
	}
	return nil
}

// list makes m the listed one and removes the one before.
func (s *Snapshots) list(m Manifest, name string) {
	s.mu.Lock()
	old := s.mu.name
	s.mu.newest, s.mu.name = &m, name
	s.mu.Unlock()
	if old != "" && old != name {
		_ = s.fs.Remove(s.fs.PathJoin(s.dir, old)) // the next open tries again
	}
}

// A Sink takes one snapshot. It is used by one goroutine.
type Sink struct {
	s      *Snapshots
	m      Manifest
	local  bool
	closed bool
}

// Local says that this store itself persisted the snapshot, whose state machine had applied index machine
// when it was captured: Close lists it. Without Local it is a received one, and pending.
func (k *Sink) Local(machine uint64) { k.local, k.m.Machine = true, machine }

// Write adds to what the state machine says of its checkpoint.
func (k *Sink) Write(b []byte) (int, error) {
	if len(k.m.Data)+len(b) > maxManifestBytes/2 {
		return 0, fmt.Errorf("raftlog: snapshot data over %d bytes", maxManifestBytes/2)
	}
	k.m.Data = append(k.m.Data, b...)
	return len(b), nil
}

func (k *Sink) base() string { return fmt.Sprintf("%016x-%016x", k.m.Index, k.m.Term) }

// ID names the snapshot for Open.
func (k *Sink) ID() string {
	if k.local {
		return k.base() + manifestSuffix
	}
	return k.base() + pendingSuffix
}

// Cancel drops the snapshot.
func (k *Sink) Cancel() error {
	k.closed = true
	return nil
}

// Close writes the manifest, syncs it, renames it into place and syncs the directory.
func (k *Sink) Close() error {
	if k.closed {
		return nil
	}
	k.closed = true
	b, err := k.m.encode()
	if err != nil {
		return err
	}
	tmp := k.base() + temporarySuffix
	if err := writeFile(k.s.fs, k.s.fs.PathJoin(k.s.dir, tmp), b); err != nil {
		return fmt.Errorf("raftlog: write manifest %s: %w", tmp, err)
	}
	if err := k.s.rename(tmp, k.ID()); err != nil {
		return err
	}
	if k.local {
		k.s.list(k.m, k.ID())
	}
	return nil
}

func writeFile(fs fsx.FS, path string, b []byte) error {
	f, err := fs.CreateFile(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
