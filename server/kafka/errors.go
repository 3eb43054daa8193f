package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/headrace/headrace/server/broker"
)

var (
	codeUnsupportedVersion = kerr.UnsupportedVersion.Code
	codeInvalidRequest     = kerr.InvalidRequest.Code
)

// wireCodes says what each refusal is on the wire. Whether a client retries depends on it: what may
// succeed later must be one of Kafka's retriable codes, and nothing else may be.
var wireCodes = map[broker.Code]*kerr.Error{
	broker.UnknownTopic:       kerr.UnknownTopicOrPartition,
	broker.UnknownPartition:   kerr.UnknownTopicOrPartition,
	broker.TopicExists:        kerr.TopicAlreadyExists,
	broker.InvalidTopicName:   kerr.InvalidTopicException,
	broker.InvalidConfig:      kerr.InvalidConfig,
	broker.InvalidPartitions:  kerr.InvalidPartitions,
	broker.InvalidReplication: kerr.InvalidReplicationFactor,
	broker.TopicIsDerived:     kerr.PolicyViolation,
	broker.TopicIsView:        kerr.PolicyViolation,
	broker.TopicInUse:         kerr.PolicyViolation,
	broker.OffsetOutOfRange:   kerr.OffsetOutOfRange,
	broker.CorruptBatch:       kerr.CorruptMessage,
	broker.BatchTooLarge:      kerr.MessageTooLarge,
	broker.InvalidBatch:       kerr.InvalidRecord,
	broker.KeyMissing:         kerr.InvalidRecord,
	broker.OtherSchema:        kerr.InvalidRecord,
	broker.NotARow:            kerr.InvalidRecord,
	broker.BadCompression:     kerr.UnsupportedCompressionType,
	broker.TooManyPartitions:  kerr.InvalidPartitions,
	broker.OutOfSequence:      kerr.OutOfOrderSequenceNumber,
	broker.ProducerFenced:     kerr.InvalidProducerEpoch,
	broker.UnknownProducer:    kerr.UnknownProducerID,
	broker.NoTransactions:     kerr.TransactionalIDAuthorizationFailed,
	broker.OutcomeUnknown:     kerr.RequestTimedOut,
	broker.Busy:               kerr.KafkaStorageError,
	broker.NotReady:           kerr.NotLeaderForPartition,
	broker.StorageFailed:      kerr.KafkaStorageError,
	broker.NoRoom:             kerr.KafkaStorageError,
	broker.RottenRecords:      kerr.CorruptMessage, // not KafkaStorageError, which clients retry for ever without a word
	broker.Timeout:            kerr.RequestTimedOut,
	broker.NoNewPartitions:    kerr.PolicyViolation,
	broker.SettingFixed:       kerr.InvalidConfig,
	broker.NotEmpty:           kerr.NonEmptyGroup,
	broker.UnknownGroup:       kerr.GroupIDNotFound,
	broker.BadRequest:         kerr.InvalidRequest,
	broker.Conflict:           kerr.InvalidRequest,
	broker.NoEngine:           kerr.NotLeaderForPartition,
}

// errorCode is the wire code of an error; 0 for nil.
func errorCode(err error) int16 {
	if isNil(err) {
		return 0
	}
	switch {
	case errors.Is(err, broker.ErrFencedEpoch):
		return kerr.FencedLeaderEpoch.Code
	case errors.Is(err, broker.ErrUnknownEpoch):
		return kerr.UnknownLeaderEpoch.Code
	}
	if k := wireCodes[broker.AsError(err).Code]; k != nil {
		return k.Code
	}
	return kerr.UnknownServerError.Code
}

// errorMessage is what to show beside the code, or nil.
func errorMessage(err error) *string {
	if isNil(err) {
		return nil
	}
	e := broker.AsError(err)
	message, _, fix := e.Explain()
	s := e.Code.String() + " " + message + ". " + fix
	return &s
}

// isNil also sees a nil *broker.Error in an error.
func isNil(err error) bool {
	if err == nil {
		return true
	}
	e, ok := err.(*broker.Error)
	return ok && e == nil
}
