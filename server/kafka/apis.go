package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Keys of the APIs that the connection treats specially.
const (
	keyProduce     = 0
	keyFetch       = 1
	keyAPIVersions = 18
)

// An api is one row of what this front serves.
type api struct {
	key      int16
	min, max int16 // advertised
	accept   int16 // first version handled; above min only for Produce
	flexAt   int16 // first flexible version
}

// flexible says whether requests and responses of this version use compact encodings and tags.
func (a *api) flexible(version int16) bool { return version >= a.flexAt }

// FeatureColumns is the feature by which ApiVersions says that Produce takes columnar batches, of the version that it
// names.
const FeatureColumns = "headrace.columns"

// apis is everything that is served, and so everything that is advertised. Versions stop where the
// behaviour of the next one is not built: Fetch 13 and Produce 13 need topic ids, Produce 12 means
// implicit transactions, ListOffsets 8 knows tiers, OffsetCommit and OffsetFetch 9 belong to the
// group protocol of KIP-848.
var apis = makeAPIs([]api{
	{key: keyProduce, min: 0, accept: 3, max: 11},
	{key: keyFetch, min: 4, max: 12},
	{key: 2, min: 0, max: 7},
	{key: 3, min: 0, max: 12},
	{key: 8, min: 0, max: 8},
	{key: 9, min: 0, max: 8},
	{key: 10, min: 0, max: 4},
	{key: 11, min: 0, max: 9},
	{key: 12, min: 0, max: 4},
	{key: 13, min: 0, max: 5},
	{key: 14, min: 0, max: 5},
	{key: 15, min: 0, max: 6},
	{key: 16, min: 0, max: 5},
	{key: keyAPIVersions, min: 0, max: 4},
	{key: 19, min: 0, max: 7},
	{key: 20, min: 0, max: 6},
	{key: 21, min: 0, max: 2},
	{key: 22, min: 0, max: 4},
	{key: 23, min: 0, max: 4},
	{key: 32, min: 0, max: 4},
	{key: 33, min: 0, max: 2},
	{key: 35, min: 0, max: 4},
	{key: 37, min: 0, max: 3},
	{key: 42, min: 0, max: 2},
	{key: 44, min: 0, max: 1},
	{key: 47, min: 0, max: 0},
	{key: 60, min: 0, max: 1},
})

// makeAPIs indexes the rows by key and learns from kmsg where flexible versions begin.
func makeAPIs(rows []api) []*api {
	var out []*api
	for i := range rows {
		a := &rows[i]
		a.accept = max(a.accept, a.min)
		req := kmsg.RequestForKey(a.key)
		a.flexAt = req.MaxVersion() + 1
		for v := int16(0); v <= req.MaxVersion(); v++ {
			if req.SetVersion(v); req.IsFlexible() {
				a.flexAt = v
				break
			}
		}
		for int(a.key) >= len(out) {
			out = append(out, nil)
		}
		out[a.key] = a
	}
	return out
}

// apiFor returns the row of a key, or nil.
func apiFor(key int16) *api {
	if key < 0 || int(key) >= len(apis) {
		return nil
	}
	return apis[key]
}

// dispatch runs the handler of every API but Produce and Fetch.
func dispatch(ctx context.Context, c *conn, req kmsg.Request, clientID string) kmsg.Response {
	var h func(context.Context, *conn, kmsg.Request, string) kmsg.Response
	switch req.Key() {
	case 2:
		h = listOffsets
	case 3:
		h = metadata
	case 8:
		h = offsetCommit
	case 9:
		h = offsetFetch
	case 10:
		h = findCoordinator
	case 11:
		h = joinGroup
	case 12:
		h = heartbeat
	case 13:
		h = leaveGroup
	case 14:
		h = syncGroup
	case 15:
		h = describeGroups
	case 16:
		h = listGroups
	case keyAPIVersions:
		h = apiVersions
	case 19:
		h = createTopics
	case 20:
		h = deleteTopics
	case 21:
		h = deleteRecords
	case 22:
		h = initProducerID
	case 23:
		h = offsetForLeaderEpoch
	case 32:
		h = describeConfigs
	case 33:
		h = alterConfigs
	case 35:
		h = describeLogDirs
	case 37:
		h = createPartitions
	case 42:
		h = deleteGroups
	case 44:
		h = incrementalAlterConfigs
	case 47:
		h = offsetDelete
	case 60:
		h = describeCluster
	default:
		panic(fmt.Sprintf("kafka: api %d is served without a handler", req.Key()))
	}
	return h(ctx, c, req, clientID)
}

// apiVersions also learns the client's name. Its answer is the same before and after anything else.
func apiVersions(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.ApiVersionsRequest)
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	if req.Version >= 3 {
		if !validSoftware(req.ClientSoftwareName) || !validSoftware(req.ClientSoftwareVersion) {
			resp.ErrorCode = codeInvalidRequest
			return resp
		}
		// Said to whoever asks; a client that does not know the feature passes it over.
		resp.SupportedFeatures = append(resp.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{Name: FeatureColumns, MinVersion: 1, MaxVersion: 1})
		c.client.Store(&clientName{printable(req.ClientSoftwareName), printable(req.ClientSoftwareVersion)})
	}
	for _, a := range apis {
		if a != nil {
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: a.key, MinVersion: a.min, MaxVersion: a.max})
		}
	}
	return resp
}

// validSoftware is KIP-511's rule: [a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?
func validSoftware(s string) bool {
	alnum := func(b byte) bool {
		return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
	}
	if s == "" || !alnum(s[0]) || !alnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if b := s[i]; !alnum(b) && b != '-' && b != '.' {
			return false
		}
	}
	return true
}

// Served returns the versions of an API that are handled, or ok = false.
func Served(key int16) (first, last int16, ok bool) {
	a := apiFor(key)
	if a == nil {
		return 0, 0, false
	}
	return a.accept, a.max, true
}
