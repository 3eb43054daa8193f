package broker

import (
	"errors"
	"fmt"
	"sort"
)

// A Code is the stable name of an error of the log and the server, E1001 and up.
type Code uint16

// The codes. A number is never reused.
const (
	UnknownTopic       Code = 1001
	UnknownPartition   Code = 1002
	TopicExists        Code = 1003
	InvalidTopicName   Code = 1004
	InvalidConfig      Code = 1005
	InvalidPartitions  Code = 1006
	InvalidReplication Code = 1007
	TopicIsDerived     Code = 1008
	TopicIsView        Code = 1009
	TopicInUse         Code = 1010
	OffsetOutOfRange   Code = 1011
	CorruptBatch       Code = 1012
	BatchTooLarge      Code = 1013
	InvalidBatch       Code = 1014
	BadCompression     Code = 1015
	TooManyPartitions  Code = 1016
	KeyMissing         Code = 1017
	OtherSchema        Code = 1018
	NotARow            Code = 1019
	OutOfSequence      Code = 1020
	ProducerFenced     Code = 1021
	NoTransactions     Code = 1022
	UnknownProducer    Code = 1023
	OutcomeUnknown     Code = 1030
	Busy               Code = 1031
	NotReady           Code = 1032
	StorageFailed      Code = 1033
	Timeout            Code = 1034
	NoRoom             Code = 1035
	RottenRecords      Code = 1036
	NoNewPartitions    Code = 1040
	NotEmpty           Code = 1041
	UnknownGroup       Code = 1042
	SettingFixed       Code = 1043
	BadRequest         Code = 1060
	BodyTooLarge       Code = 1061
	NoSuchResource     Code = 1062
	WrongMethod        Code = 1063
	UnknownModule      Code = 1064
	UnknownPipeline    Code = 1065
	Conflict           Code = 1066
	DoesNotCompile     Code = 1067
	NoEngine           Code = 1068
	Internal           Code = 1069
	Denied             Code = 1070
)

// A CodeInfo is one row of the table of codes.
type CodeInfo struct {
	Code   string `json:"code"`
	Status int    `json:"status"` // HTTP status
	Title  string `json:"title"`
	Why    string `json:"why"`
	Fix    string `json:"fix"`
}

var codes = map[Code]CodeInfo{
	UnknownTopic:       {Status: 404, Title: "topic does not exist", Why: "No topic or view has this name.", Fix: "List the names with `headrace topic list`, or create the topic."},
	UnknownPartition:   {Status: 404, Title: "partition does not exist", Why: "The topic has fewer partitions.", Fix: "Describe the topic to see its partitions."},
	TopicExists:        {Status: 409, Title: "topic already exists", Why: "Topic and view names share one space.", Fix: "Use another name, or use the topic that is there."},
	InvalidTopicName:   {Status: 400, Title: "topic name is not allowed", Why: "A name has 1 to 200 of the characters A-Z a-z 0-9 . _ - and is not . or ..", Fix: "Use another name."},
	InvalidConfig:      {Status: 400, Title: "topic setting is not valid", Why: "The setting is unknown or its value is out of range.", Fix: "`headrace topic describe TOPIC --all` lists every setting with its value; docs/kafka.md says what they do."},
	InvalidPartitions:  {Status: 400, Title: "partition count is not valid", Why: "A topic has 1 to 10000 partitions.", Fix: "Give a count in range, or -1 for the default."},
	InvalidReplication: {Status: 400, Title: "replication factor is not valid", Why: "There are fewer nodes than replicas asked for.", Fix: "Use 1 or -1 on a single node."},
	TopicIsDerived:     {Status: 403, Title: "topic is written by a pipeline", Why: "Only the owning pipeline may write a derived topic; a record from outside would break exactly-once.", Fix: "Produce to the pipeline's source, or to a topic of your own."},
	TopicIsView:        {Status: 403, Title: "view is read only", Why: "A view is computed while it is read and stores nothing.", Fix: "Produce to the view's source."},
	TopicInUse:         {Status: 409, Title: "topic is in use", Why: "A module reads or writes it.", Fix: "Delete the module first."},
	OffsetOutOfRange:   {Status: 400, Title: "offset is out of range", Why: "It is below the log start or beyond the log end.", Fix: "Ask for the first and last offsets, or consume from earliest or latest."},
	CorruptBatch:       {Status: 400, Title: "record batch is corrupt", Why: "Length or checksum does not match its bytes.", Fix: "Send it again; if it repeats, look at the network or the client."},
	BatchTooLarge:      {Status: 400, Title: "record batch is too large", Why: "It is larger than the topic's max.message.bytes.", Fix: "Make the producer's batches smaller, or raise max.message.bytes."},
	InvalidBatch:       {Status: 400, Title: "record batch is not acceptable", Why: "A produce request carries one record batch of magic 2 for each partition, neither control nor transactional.", Fix: "Use a client of Kafka 0.11 or later, without transactions."},
	KeyMissing:         {Status: 400, Title: "record without key for a compacted topic", Why: "A topic with cleanup.policy=compact keeps the latest record of each key; a record without one could never be replaced.", Fix: "Give every record a key (an empty one counts), or set the topic's cleanup.policy to delete."},
	OtherSchema:        {Status: 400, Title: "columns of another schema", Why: "A columnar batch names its schema, and the topic declares another one.", Fix: "Send columns with the names, types, nullability and order that the topic declares; `headrace topic describe TOPIC` lists them."},
	NotARow:            {Status: 400, Title: "record is no row of the topic", Why: "A topic of format arrow holds columns, so a record must be a JSON object that fits them when it comes in.", Fix: "Correct the record, or declare the topic with format json, whose pipelines set such records aside."},
	BadCompression:     {Status: 400, Title: "compression is not supported", Why: "The codec is none of none, gzip, snappy, lz4, zstd, or needs a newer request version.", Fix: "Use another codec or a newer client."},
	TooManyPartitions:  {Status: 400, Title: "too many partitions", Why: "The node's limit of partitions would be exceeded.", Fix: "Delete topics, or raise the limit."},
	OutOfSequence:      {Status: 409, Title: "sequence is out of order", Why: "A batch before this one was not accepted.", Fix: "Clients with idempotence handle this; otherwise restart the producer."},
	ProducerFenced:     {Status: 409, Title: "producer epoch is fenced", Why: "A newer instance of this producer exists.", Fix: "Stop the older instance."},
	NoTransactions:     {Status: 400, Title: "transactions are not supported", Why: "This server has idempotent producers only; pipelines are exactly-once without transactions.", Fix: "Remove transactional.id from the producer's settings."},
	UnknownProducer:    {Status: 409, Title: "producer is not known", Why: "Its records are older than the producer expiry, or it did not begin with sequence 0.", Fix: "Clients with idempotence begin anew; otherwise restart the producer."},
	OutcomeUnknown:     {Status: 503, Title: "outcome is unknown", Why: "The write may or may not be in the log.", Fix: "Retry with the same producer sequence; an idempotent client does."},
	Busy:               {Status: 503, Title: "server is busy", Why: "Too many bytes wait for the disk.", Fix: "Retry later."},
	NotReady:           {Status: 503, Title: "server is not ready", Why: "The log has no leader yet, or the topic is being opened.", Fix: "Retry; see /readyz?verbose for the reason."},
	StorageFailed:      {Status: 503, Title: "storage has failed", Why: "A file could not be read, written or synced. After a failed write or sync nothing is acknowledged until the server is started again.", Fix: "See the message, /readyz?verbose and the server's log, and look at the disk."},
	Timeout:            {Status: 503, Title: "request timed out", Why: "The server did not finish in the time that the request gave.", Fix: "Retry."},
	NoRoom:             {Status: 503, Title: "the disk takes no records", Why: "It is full, or writing to it fails; what was acknowledged is safe, and reads, commits and deletes go on.", Fix: "Make room: delete topics, shorten their retention, or free space on the disk. Records are taken again without a restart; retry then."},
	RottenRecords:      {Status: 500, Title: "records are damaged on the disk", Why: "Bytes of a file are no longer what was written. The records in that range cannot be read; everything else is served.", Fix: "`headrace status` names the file and the offset. Look at the disk, then stop the server and run `headrace debug log --data DIR`: it lists all damage; with `--repair` it makes anew what the other files still hold. To read on behind the damage, ask for a later offset."},
	NoNewPartitions:    {Status: 400, Title: "partitions cannot be added", Why: "A key's records must stay in one partition for windows and order to hold.", Fix: "Create a topic with more partitions and copy the records."},
	NotEmpty:           {Status: 409, Title: "group is not empty", Why: "It has members.", Fix: "Stop its consumers first."},
	UnknownGroup:       {Status: 404, Title: "group does not exist", Why: "It has neither members nor offsets.", Fix: "List groups."},
	SettingFixed:       {Status: 403, Title: "setting cannot be changed", Why: "It is given when the node starts, or by the pipeline that writes the topic.", Fix: "Start the node with another value, or change the module."},
	BadRequest:         {Status: 400, Title: "request is not valid", Why: "A parameter or the body cannot be read.", Fix: "Correct the parameter or field that the message names; docs/http.md lists those of each request."},
	BodyTooLarge:       {Status: 413, Title: "request body is too large", Why: "The body exceeds the limit of this resource.", Fix: "Send less."},
	NoSuchResource:     {Status: 404, Title: "no such resource", Why: "The path names nothing of this API.", Fix: "See the list at /api/v1."},
	WrongMethod:        {Status: 405, Title: "method is not allowed here", Why: "The path exists, with other methods.", Fix: "See the Allow header."},
	UnknownModule:      {Status: 404, Title: "module does not exist", Why: "No module has this name.", Fix: "List the names with `headrace module list`."},
	UnknownPipeline:    {Status: 404, Title: "pipeline does not exist", Why: "No pipeline has this name; names are module/topic.", Fix: "List the names with `headrace pipeline list`."},
	Conflict:           {Status: 409, Title: "conflicting change", Why: "Something else changed it at the same time, or it is in use.", Fix: "Read it again and retry."},
	DoesNotCompile:     {Status: 422, Title: "module does not compile", Why: "See the list of errors.", Fix: "Correct the places that the errors name."},
	NoEngine:           {Status: 503, Title: "pipelines are not available", Why: "The server runs without its pipeline engine, or it is still starting.", Fix: "Retry; see /readyz?verbose for the reason."},
	Denied:             {Status: 403, Title: "request is denied", Why: "A page of another origin sent it.", Fix: "Use the command, or a page that this server serves."},
	Internal:           {Status: 500, Title: "internal error", Why: "A bug in the server; it was logged.", Fix: "Report it with the server's log."},
}

// String is the printed form, "E1001".
func (c Code) String() string { return fmt.Sprintf("E%04d", uint16(c)) }

// Info returns the code's row.
func (c Code) Info() CodeInfo {
	info := codes[c]
	info.Code = c.String()
	return info
}

// Codes returns the table in the order of the codes.
func Codes() []CodeInfo {
	keys := make([]int, 0, len(codes))
	for c := range codes {
		keys = append(keys, int(c))
	}
	sort.Ints(keys)
	out := make([]CodeInfo, 0, len(keys))
	for _, k := range keys {
		out = append(out, Code(k).Info())
	}
	return out
}

// An Error is a refusal in a user's terms. Message says what happened in this case; why and fix come
// from the code unless the case knows better.
type Error struct {
	Code    Code
	Message string
	Why     string // "" is the code's
	Fix     string // "" is the code's
	Err     error  // cause, or nil
	Plan    any    // the plan difference that was refused, or nil
}

// Errorf makes an Error. A %w verb sets the cause.
func Errorf(c Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Message: err.Error(), Err: errors.Unwrap(err)}
}

func (e *Error) Error() string { return e.Code.String() + " " + e.Message }

func (e *Error) Unwrap() error { return e.Err }

// Explain returns message, why and fix for showing.
func (e *Error) Explain() (message, why, fix string) {
	info := e.Code.Info()
	message, why, fix = e.Message, e.Why, e.Fix
	if message == "" {
		message = info.Title
	}
	if why == "" {
		why = info.Why
	}
	if fix == "" {
		fix = info.Fix
	}
	return message, why, fix
}

// AsError makes any error an *Error: itself, or Internal with err as the cause.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Message: err.Error(), Err: err}
}
