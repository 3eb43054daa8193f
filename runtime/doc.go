// Package runtime is where a plan meets operators and shards: pipelines, their steps, and views.
//
// An Engine follows the catalogue of a node and keeps one task running for each pipeline of a running
// module. A task reads committed record batches of its source partitions, decodes the columns that
// the plan needs, drives the operators and proposes steps: one unit of the shard's log with the new
// progress, the output batches and the state changes. A step happened or it did not; a task that
// cannot tell drops its memory and rebuilds from the store.
//
// A View evaluates a stateless pipeline while records are delivered and stores nothing.
//
// Determinism. For a fixed assignment of rows to source partitions, each derived partition gets the
// same sequence of (key, value, event time) whatever the sizes of steps and batches, the interleaving
// of arrivals, the number of workers and the restarts. Three rules give it: a row's lateness is judged
// by its own partition's prefix; windows close in the order (end, key) of a watermark that only rises;
// and rows that change partition without a window wait until the watermark has passed them (see
// release.go).
//
// Concurrency. The methods of Engine and View may be called from any goroutine. A task's chain of
// operators belongs to the task's goroutine.
package runtime
