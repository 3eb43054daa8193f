// Package log is the store of one shard: what one replica keeps of the entries that its shard has committed.
//
// It is fed by Apply, one committed entry after the other, and answers readers: partitions with their
// batches, consumer offsets, the progress and the state of tasks. It knows neither raft nor the network nor
// the language of pipelines. The entries come from a write-ahead log (log/wal) that somebody else appends to
// and replicates; the store only reads it, for batches that have left memory before they were in a segment
// and for recovery.
//
//	entry ──Apply──► memory: partitions, producers, tasks, tail cache ──► readers
//	                    │ rounds, off the latency path (one writer goroutine)
//	                    ▼
//	         segment files, mixed segment, Pebble ──Checkpoint──► the log may let go of its entries
//
// Apply never waits for a disk. A writer round takes everything up to one applied index N: it writes the
// batches to files and then commits one Pebble batch tagged with N, so Pebble always holds the store exactly
// as it was after some N. Files may lag behind Pebble until the next checkpoint; the placed rows say where
// each batch belongs and recovery writes again what a crash has lost. FORMAT.md draws every byte.
//
// # Compaction
//
// Partitions whose settings say so keep the latest record of each key. That is local to a replica and not in the
// shard's log: passes rewrite segment files and swap them in; see compact.go. What is read at an offset whose record
// is gone is a batch without it, often one without records at all, and the next offset to read is the one after its
// last: readers go on by Batch.Last, never by counting records.
//
// # Concurrency
//
// One goroutine calls Apply. Everything else may be called by any goroutine. Lock order: applyMu, then a
// partition's tail; groups.mu and the mutexes of caches are leaves. None of them is held across I/O; the one lock that is
// belongs to a segment's index in memory (segment.Index), and only readers of that segment take it. Readers of records
// take no lock that Apply takes: the tail of a partition is a list that they read without one. History goes
// through a Cursor, which reads ahead of its reader and makes way for the writers.
package log
