package record

import "encoding/binary"

// Control records carry their version and type in the key.
const (
	controlVersion = 0

	// ControlTimeMark is the type of a time mark: no earlier event is expected in this partition.
	ControlTimeMark int16 = 100
)

// TimeMark returns a control batch that says: the event-time watermark of this partition has reached w (ns since
// 1970). ts is the batch's timestamp in ms.
func TimeMark(w, ts int64) []byte {
	var key [4]byte
	binary.BigEndian.PutUint16(key[0:], controlVersion)
	binary.BigEndian.PutUint16(key[2:], uint16(ControlTimeMark))
	var value [8]byte
	binary.BigEndian.PutUint64(value[:], uint64(w))
	var b Builder
	b.SetControl()
	b.Append(ts, key[:], value[:], nil)
	return b.Finish()
}

// ParseTimeMark returns the watermark of a batch made by TimeMark, and whether it is one. It does not check the
// checksum.
func ParseTimeMark(batch []byte) (w int64, ok bool) {
	h, err := ParseHeader(batch)
	if err != nil || !h.Control() || h.Codec() != None || h.Count != 1 || h.Size() != len(batch) {
		return 0, false
	}
	var f frame
	if f.parse(batch[HeaderSize:]) < 0 || len(f.key) != 4 || len(f.value) != 8 {
		return 0, false
	}
	if binary.BigEndian.Uint16(f.key) != controlVersion || int16(binary.BigEndian.Uint16(f.key[2:])) != ControlTimeMark {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(f.value)), true
}
