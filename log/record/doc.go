// Package record is the record batch: the one unit on the wire, in the log and in delivery.
//
// The format is the Kafka v2 record batch; log/FORMAT.md ("Record batch") draws every byte. The package is
// pure: bytes in, bytes out, no I/O, no clock, no goroutine. It knows nothing about partitions.
//
// A batch that came from outside goes through Verify, which checks its bounds and its checksum in one pass, and
// through VerifyRecords, which walks the records that a producer framed. After that:
//
//   - ParseHeader and the Header methods say what a batch is without touching its records;
//   - a Reader walks the records of a batch, decompressing when needed, without allocating per record;
//   - a Builder makes batches; SetBase patches what the leader of a partition assigns, which lies outside the
//     checksum.
//
// Two payloads share the header: rows (Kafka records, maybe compressed) and columns (attribute bit 8, see
// Header.Columnar), whose bytes this package does not interpret.
//
// Functions may be called from any goroutine. A Reader and a Builder belong to one goroutine at a time.
package record
