// Package record is the record batch: the one unit on the wire, in the log and in delivery.
//
// The format is the Kafka v2 record batch; log/FORMAT.md draws every byte. The package is pure: bytes
// in, bytes out, no I/O and no clock.
package record
