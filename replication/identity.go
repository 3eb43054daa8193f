package replication

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/headrace/headrace/internal/fsx"
)

// ErrIdentity means that a data directory cannot be what it should: its identity is damaged, or missing
// where there are shards.
var ErrIdentity = errors.New("replication: data directory without a sound identity")

// An identity says which cluster, node and disk a data directory belongs to. On disk: JSON, a line break,
// and the CRC-32C of the JSON as 4 bytes.
type identity struct {
	Version   int    `json:"version"`
	ClusterID string `json:"cluster_id"`
	NodeID    int32  `json:"node_id"`
	DiskID    string `json:"disk_id"` // new for every empty disk, so that one that lost its data joins anew
	CreatedAt int64  `json:"created_at"`
	// Formatted: both shards have been created. From then on an empty one is a lost one.
	Formatted bool `json:"formatted"`
}

const (
	identityFile = "identity"
	lockFile     = "LOCK"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (id identity) encode() ([]byte, error) {
	b, err := json.Marshal(id)
	if err != nil {
		return nil, fmt.Errorf("replication: encode identity: %w", err)
	}
	sum := crc32.Checksum(b, castagnoli)
	return binary.BigEndian.AppendUint32(append(b, '\n'), sum), nil
}

func decodeIdentity(b []byte) (identity, error) {
	var id identity
	if len(b) < 6 || b[len(b)-5] != '\n' {
		return id, fmt.Errorf("%w: %d bytes", ErrIdentity, len(b))
	}
	body := b[:len(b)-5]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return id, fmt.Errorf("%w: checksum", ErrIdentity)
	}
	if err := json.Unmarshal(body, &id); err != nil {
		return id, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	if id.Version != 1 || id.DiskID == "" || id.ClusterID == "" {
		return id, fmt.Errorf("%w: version %d", ErrIdentity, id.Version)
	}
	return id, nil
}

// loadIdentity reads the identity of dir, or makes one for an empty directory.
func loadIdentity(fs fsx.FS, dir string, now time.Time) (identity, error) {
	names, err := fs.List(dir)
	if err != nil {
		return identity{}, fmt.Errorf("replication: list %s: %w", dir, err)
	}
	shards := false
	for _, n := range names {
		switch n {
		case identityFile:
			b, err := readFile(fs, fs.PathJoin(dir, identityFile))
			if err != nil {
				return identity{}, fmt.Errorf("replication: read identity: %w", err)
			}
			return decodeIdentity(b)
		case metaDir, dataDir:
			shards = true
		}
	}
	if shards {
		return identity{}, fmt.Errorf("%w: %s has shards and no identity file", ErrIdentity, dir)
	}
	id := identity{Version: 1, ClusterID: uuid.NewString(), NodeID: 1, DiskID: uuid.NewString(), CreatedAt: now.UnixMilli()}
	return id, id.save(fs, dir)
}

// save writes the identity: a temporary file, synced, renamed, and the directory synced.
func (id identity) save(fs fsx.FS, dir string) error {
	b, err := id.encode()
	if err != nil {
		return err
	}
	return replaceFile(fs, dir, identityFile, b)
}

const maxSmallFile = 1 << 20

func readFile(fs fsx.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return io.ReadAll(io.LimitReader(f, maxSmallFile))
}

func replaceFile(fs fsx.FS, dir, name string, b []byte) error {
	tmp := fs.PathJoin(dir, name+".tmp")
	f, err := fs.CreateFile(tmp)
	if err != nil {
		return fmt.Errorf("replication: create %s: %w", tmp, err)
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("replication: write %s: %w", tmp, err)
	}
	if err := fs.Rename(tmp, fs.PathJoin(dir, name)); err != nil {
		return fmt.Errorf("replication: rename %s: %w", tmp, err)
	}
	if err := fs.SyncDir(dir); err != nil {
		return fmt.Errorf("replication: sync %s: %w", dir, err)
	}
	return nil
}
