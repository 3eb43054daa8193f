// Package flight is the Arrow Flight front: topics and views read and written as Arrow record batches over gRPC.
//
//	ListFlights, GetSchema, GetFlightInfo   what there is; an endpoint for each partition
//	DoGet        a range of offsets, or whatever comes, as columns
//	DoPut        record batches into a topic, each acknowledged when it is durable
//	DoExchange   rows in, the rows that an expression makes of them out
//	DoAction     topics and modules, as in the HTTP API
//
// docs/flight.md says what goes over the wire. Everything that a client sends is untrusted: messages are bounded by
// MaxMessageBytes, their metadata is walked before Arrow's reader sees it, buffers are measured before anything is read from
// them, and values are checked like those of any columnar batch. Errors are gRPC statuses whose message begins with the
// stable code of the error.
//
// A Server may be used by any goroutine. gRPC runs one goroutine for each call; DoPut has a second one that answers.
package flight
