// Package raftlog is the adapter between a shard's write-ahead log and hashicorp/raft.
//
// It is a raft.LogStore and a raft.StableStore over log/wal (Log), a raft.SnapshotStore whose snapshots
// are the manifests of store checkpoints (Snapshots), and an hclog.Logger over slog (Logger). It decides
// nothing about consensus; what it adds to the write-ahead log are the promises that raft expects of its
// stores, and the behaviour that keeps a broken disk from taking the process down:
//
//   - A missing entry is raft.ErrLogNotFound itself, never wrapped, because raft compares with ==.
//   - The log is monotonic: an empty one accepts any first index, a gap is accepted only right after the
//     newest listed snapshot, and then everything before it is dropped.
//   - Deleting a prefix runs beside appends and reads. Deleting a suffix at or below the applied index
//     would undo acknowledged records: it fails the log.
//   - The term of a vote is held in memory until the candidate arrives, and both are written as one synced
//     record. Two records could be torn apart by a crash, and the half that stays lets a server vote twice.
//   - The current term is a synced record of its own.
//   - After the first failed or hung write nothing is written again. Appends and votes return the error, so
//     none is granted; the current term is accepted in silence, because raft panics when it is refused.
//   - A committed entry that cannot be read ends the goroutine that wanted it, after the owner has been
//     told to shut the group down: raft would answer the error with a panic.
//
// Goroutines: raft's main goroutine is the only caller of the methods that write. Reads, DeleteRange of a
// prefix and the accessors may be called from any goroutine.
package raftlog
