// Package wal is a shard's write-ahead log: numbered entries and a few stable values, synced when a call returns.
//
// It knows entries, not raft, and it knows nothing of what is in them. One directory holds one log. A log is a
// sequence of segments of one size, preallocated, zero-filled and recycled, because a synced write to bytes that the
// file system has already placed costs a third of one that makes it place them. log/FORMAT.md ("Write-ahead log
// segment") draws every byte.
//
// # Writing
//
// What is written together is a group: one write from page-aligned memory outside the Go heap, one sync, by the
// goroutine that called. Groups start on 4 KiB boundaries and are chained by checksums. Entries, truncations and
// stable values are records in groups, so a group applies as a whole or not at all. Append may write several groups
// when the entries do not fit one; then a crash can leave a prefix of them.
//
// Append, TruncateBack, SetStable, Reset and Close take turns; they may be called from any goroutine. Read,
// TruncateFront, Stable, FirstIndex, LastIndex, Metrics and Poison never wait for a write in flight.
//
// AppendUnsynced leaves the sync to whoever comes next: a synced write, SyncTo, or a goroutine that does it within
// Options.SyncWithin. What is not synced yet always lies in the last segment, and every group says which one before it
// was known to be synced, so a power cut leaves a prefix, and is not taken for rot.
//
// A write or sync that failed, or that somebody gave up on (Poison), is final: every later change returns
// ErrPoisoned, reads go on, and what was in flight is neither in the log nor out of it until the log is opened again.
//
// # Upkeep
//
// A goroutine keeps ready segments at hand and takes back those that TruncateFront released, to be used again. With Options.Inline
// there is no goroutine: the same step runs inside the append that needs a segment, or when the caller calls Upkeep.
// A segment is released only when a synced record says that its entries are no longer needed, oldest first, one
// rename and one directory sync each; so the segments of a log are always consecutive, and a missing one is noticed.
//
// # Recovery
//
// Pages of an unsynced write reach the disk in any order, so a bad group at the end is ordinary after a power cut: the
// log is cut there. It is rot, a CorruptError, if anything proves that the group had been synced: a later group whose
// header says so, a later segment, or Options.SyncedIndex. The very last group of a log that was not closed has no
// such proof. Groups without proof are written once more before Open returns, since after a failed sync the page cache
// may hold what the disk does not.
package wal
