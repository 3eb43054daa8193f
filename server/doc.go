// Package server is the broker process without its flags: Start opens a node, its pipelines and its
// listeners, and Close stops them in the order that loses nothing.
//
//	server/broker  topics, produce, fetch, offsets; belongs to no protocol
//	server/group   consumer groups
//	server/kafka   the Kafka front
//	server/flight  the Arrow Flight front
//	server/http    the HTTP API, health, metrics
//
// Everything that runs inside one process (serve, demo, bench, tests) uses Start; port 0 picks a free
// one.
package server

import "github.com/headrace/headrace/server/broker"

// A Broker is what the fronts share.
type Broker = broker.Broker

// Pipelines is the engine as the fronts see it.
type Pipelines = broker.Pipelines

// A CodeInfo is one row of the table of error codes.
type CodeInfo = broker.CodeInfo

// Codes is the table of the log's and the server's error codes, E1001 and up, in order.
func Codes() []CodeInfo { return broker.Codes() }
