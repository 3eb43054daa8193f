// Package replication runs shards: replicated logs that feed state machines.
//
// A shard is one hashicorp/raft group. Its log carries entries; an entry packs units of many origins; a unit
// applies as a whole or not at all and is judged alone. A Shard takes units from any goroutine, packs what
// waits into an entry whenever the append before has returned, has the group commit it, and gives every
// unit's answer to the caller: yes, a definite no, or unknown. A state machine (the store of package log, or
// the metadata machine here) applies the committed entries in order.
//
//	Propose ──► waiting ──proposer goroutine──► entry ──► raft main loop: append, sync, commit
//	                                                           │
//	done(Result) ◄──────────── apply goroutine: StateMachine.Apply ◄┘
//
// There is no linger and no timer on that path: at rest an entry holds one unit, under load it holds what
// came in during one sync. Besides the proposer there is raft's main loop and its apply goroutine, so a unit
// is handed over three times.
//
// A Node opens the shards of one data directory: the metadata shard, whose catalogue of topics and modules
// every node has in memory, and one data shard. It follows the metadata and opens and drops partitions in the
// data shard. A single node is a cluster of one and runs the same code.
//
// Proposer is the small interface that users need of a shard. Shard implements it over raft; MemShard
// implements it deterministically in memory, one step at a time, for tests and simulation. Only this package
// and those below it know raft: raftlog is the adapter to its stores, transport the one to its messages.
//
// # When a disk fails
//
// A write that fails, or one that takes too long, is final: the write-ahead log is poisoned and nothing is
// written to it again. The shard cuts its transport, shuts its group down, answers what is in flight with
// unknown and what was never handed over with a definite no, and stays down until the process is started
// again. The process lives and the other shards go on.
package replication
