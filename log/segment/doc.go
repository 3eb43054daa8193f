// Package segment is the files that hold a partition's batches, and the index that names every batch.
//
// A log file holds record batches and nothing else, back to back, as they are sent to consumers: base offset
// and leader epoch are filled in. Its index file holds blocks. A block describes a run of adjacent batches:
//
//	block  = magic u16 'hB' | version u8 | 0 u8 | length u32 | crc u32 | head | batch*
//	head   = first i64 | last i64 | position i64 | bytes u32 | count u32 | max timestamp i64 | append time i64 | link u32
//	batch  = offsets uvarint | size uvarint | index uvarint | unit uvarint | entry position uvarint
//	         | append time varint | max timestamp varint | term varint | link u32
//
// Integers are big-endian; length counts the whole block; crc is the CRC-32C of what follows it. In the head,
// max timestamp and append time are the largest of the run, and link is the chain before its first batch.
// Per batch, offsets is the number of offsets that it covers less one, index, append time and term are
// differences to the batch before (the first: to zero), and so is max timestamp. Base offset and position
// follow from the sizes. A new block begins with every write and after BlockBytes of log.
//
// The links are a chain: each is the CRC-32C of the partition's UUID and index, the number of the segment,
// the batch's header as written (which holds the batch's own checksum) and the link before. A batch that is
// intact but belongs elsewhere, or that is in the wrong order, does not fit its link.
//
// The same blocks, with a file number in front, are the rows of the shard's mixed segment.
//
// The package does no I/O except through the readers and writers that it is given.
package segment
