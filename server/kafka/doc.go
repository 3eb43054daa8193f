// Package kafka is the Kafka front: it speaks the Kafka protocol to clients and turns requests into
// calls of server/broker and server/group.
//
// # A connection
//
// One goroutine reads a connection's frames and handles them in order. Responses leave in request
// order, always. Produce is pipelined: the reader validates the record batches, copies them once into
// the units that it proposes, reserves the response's place and goes on; the response is completed by
// the shard when the units are committed. Every other request is handled to its end before the next
// one is read, so a parked Fetch or JoinGroup holds back what follows it on that connection, as
// clients of a Kafka broker expect.
//
// No goroutine writes while there is nothing to write: whoever completes the oldest outstanding
// response starts (or is) the writer, which drains what is ready and ends.
//
// # Bytes
//
// A frame's length is checked against a limit of its API before a byte of it is kept, its buffer grows
// only as bytes arrive, and all buffers together stay inside one budget. Request structures come from
// franz-go's kmsg, which bounds every array by the bytes that are left. Two paths are written by hand:
// Produce parsing, which reads record batches in place, and Fetch responses, which refer to the log's
// immutable batch bytes and carry only a patched copy of each 61-byte header; batches from files are sent as
// they lie, many as one piece, from memory that the log lends until they are written. kmsg is the byte-for-byte
// oracle of both in tests. What waits for a slow client is bounded per connection and over all connections.
//
// A panic while a request is handled closes that connection, with a logged stack, and nothing else.
//
// # Versions
//
// Only versions whose behaviour is built are advertised (see apis). The one exception is Produce,
// advertised from 0 because librdkafka before 2.11.1 enables compression only then; 0 to 2 are refused
// with an error that says so.
//
// # Foreign suites
//
// franz-go v1.22.3 has a suite that runs against any broker:
//
//	KGO_SEEDS=127.0.0.1:9092 KGO_TEST_RF=1 KGO_TEST_RECORDS=20000 go test ./pkg/kgo -skip Txn
//
// Two of its tests do not hold here, by design: TestConsumeRegex asks for the topic __consumer_offsets
// (offsets are not a topic here), and TestIssueFetchLargerThanBrokerMaxReadBytes for max.message.bytes of
// 10 MiB (the limit is 7 MiB). Transactions, share groups and SASL are not served.
package kafka
