package scalar

// Width is the bytes that a value of a kind takes in a column: 0 where it depends on the value.
func Width(k Kind) int {
	switch k {
	case KindBool, KindInt8, KindUint8:
		return 1
	case KindInt16, KindUint16:
		return 2
	case KindInt32, KindUint32, KindFloat32, KindDate:
		return 4
	case KindInt64, KindUint64, KindFloat64, KindTime, KindDuration:
		return 8
	case KindDecimal:
		return 16
	}
	return 0
}
