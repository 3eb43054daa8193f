package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Sentinel errors of a Producer.
var (
	// ErrProducerClosed refuses records after Close, and is why those failed that Close gave up.
	ErrProducerClosed = errors.New("client: the producer is closed")
	// ErrBufferFull refuses a record of TryProduce because the producer's buffer is full.
	ErrBufferFull = errors.New("client: the producer's buffer is full")
	// ErrRecordTooLarge refuses a record that does not fit a batch of its own.
	ErrRecordTooLarge = errors.New("client: the record is larger than a batch may be")
	// ErrUnknownOutcome marks a failure after which the record may be in the log or not: its acknowledgement did not
	// come. Every other failure is a definite no.
	ErrUnknownOutcome = errors.New("client: the outcome is unknown")
	// ErrDeliveryTimeout is why a record was given up that could not be delivered within
	// ProducerOptions.DeliveryTimeout.
	ErrDeliveryTimeout = errors.New("client: delivery timed out")
)

// A ProduceError says why a record was not acknowledged. It is ErrUnknownOutcome if the record may be in the log all
// the same; otherwise it is not there and never will be. errors.Is finds Kafka's error (package kerr) in it.
type ProduceError struct {
	Topic     string
	Partition int32
	Unknown   bool
	Err       error
}

func (e *ProduceError) Error() string {
	s := fmt.Sprintf("client: produce to partition %d of %s: %v", e.Partition, e.Topic, e.Err)
	if e.Unknown {
		s += "; the outcome is unknown"
	}
	return s
}

// Is reports that an error of unknown outcome is ErrUnknownOutcome.
func (e *ProduceError) Is(target error) bool { return e.Unknown && target == ErrUnknownOutcome }

// Unwrap returns the cause.
func (e *ProduceError) Unwrap() error { return e.Err }

// A WireError is a refusal over the Kafka protocol with the server's own words beside Kafka's error, which errors.Is and
// errors.As find in it.
type WireError struct {
	Code    string // the server's, such as E1017; "" if it gave none
	Message string // without the code
	Err     error  // of package kerr
}

func (e *WireError) Error() string {
	s := e.Message
	if e.Code != "" {
		s = e.Code + " " + s
	}
	return s + " (" + e.Err.Error() + ")"
}

// Unwrap returns Kafka's error.
func (e *WireError) Unwrap() error { return e.Err }

// wireError is Kafka's error of a code with the server's words.
func wireError(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err == nil || message == nil || *message == "" {
		return err
	}
	w := &WireError{Message: *message, Err: err}
	if own, rest, ok := strings.Cut(*message, " "); ok && isCode(own) {
		w.Code, w.Message = own, rest
	}
	return w
}

// isCode reports whether a word is a code of the server, E and four digits.
func isCode(s string) bool {
	if len(s) != 5 || s[0] != 'E' {
		return false
	}
	for _, c := range s[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// A verdict is what an answer of the server means for a batch.
type verdict uint8

const (
	taken      verdict = iota // in the log
	retry                     // not in the log, worth another attempt
	retryLater                // likewise, once the topic's leader is known again
	unsure                    // may be in the log; worth another attempt
	outOfOrder                // not in the log, since the batch before it is not
	forgotten                 // not in the log, since the server does not know the producer (any more)
	tooLarge                  // not in the log; smaller batches may be taken
	refused                   // not in the log, for good
)

// judge turns an answer into a verdict. Only a code whose meaning is that nothing was written may be a no: after a
// false no, a record could be sent twice.
func judge(code int16, message *string) verdict {
	if code == 0 || code == kerr.DuplicateSequenceNumber.Code {
		return taken
	}
	switch kerr.ErrorForCode(code) {
	case kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch:
		return retryLater
	case kerr.CorruptMessage, kerr.NotEnoughReplicas, kerr.ThrottlingQuotaExceeded:
		return retry
	case kerr.KafkaStorageError:
		// Kafka says so after a failed write too; our server does not.
		if message != nil && slices.ContainsFunc(definite, func(code string) bool { return strings.HasPrefix(*message, code) }) {
			return retry
		}
		return unsure
	case kerr.OutOfOrderSequenceNumber:
		return outOfOrder
	case kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidProducerIDMapping:
		return forgotten
	case kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return tooLarge
	}
	if kerr.IsRetriable(kerr.ErrorForCode(code)) || code == kerr.UnknownServerError.Code {
		return unsure
	}
	return refused
}

// definite are our server's codes for a busy log, a failed shard and a full disk: refusals before anything is written.
var definite = []string{"E1031", "E1033", "E1035"}
